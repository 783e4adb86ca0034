"""Host access to a directory that untrusted sandboxes modify at the same time."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from sandyard.engine.contract import FileKind, FileOwner
from sandyard.engine.drivers.volume_files import content as contents
from sandyard.engine.drivers.volume_files.content import Content
from sandyard.engine.drivers.volume_files.download import Download
from sandyard.engine.drivers.volume_files.upload import Upload
from sandyard.kit.errors import BusyError, ConflictError, InvalidInputError, NoSpaceError, NotFoundError, SandyardError

ANYBODY = FileOwner()
requires_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the volume that its users must not reach."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def volume(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


@pytest.fixture
def content(volume: Path) -> Content:
    return Content(volume)


def write(
    content: Content, path: str, data: bytes = b"data", *, force: bool = False, owner: FileOwner = ANYBODY
) -> None:
    upload = Upload.begin(content, path, owner, force=force)
    upload.write(data)
    upload.finish()


def read(content: Content, path: str) -> bytes:
    download = Download.begin(content, path)
    try:
        return b"".join(iter(lambda: download.read(3), b""))
    finally:
        download.close()


def list_files(volume: Path) -> list[str]:
    return [path.name for path in volume.iterdir()]


def list_paths(content: Content, path: str = "/", depth: int = 1) -> list[str]:
    return [entry.path for entry in content.list(path, depth)]


# Ordinary use ---------------------------------------------------------------------------------------------------------------


def test_written_files_can_be_read(content: Content) -> None:
    write(content, "/file", b"hello")
    write(content, "empty", b"")
    assert read(content, "file") == b"hello"
    assert read(content, "/empty") == b""
    entry = content.stat("//file/.")
    assert (entry.name, entry.path, entry.kind, entry.size, entry.mode) == (
        "file",
        "/file",
        FileKind.FILE,
        5,
        0o644,
    )
    assert content.stat("/").path == "/"


@requires_root
def test_owners_and_modes_are_set(content: Content) -> None:
    write(content, "file")
    assert (content.stat("file").uid, content.stat("file").gid) == (1000, 1000)
    write(content, "theirs", owner=FileOwner(12345, 54321, 0o4750))
    entry = content.stat("theirs")
    assert (entry.uid, entry.gid, entry.mode) == (12345, 54321, 0o4750)
    content.make_dir("a/b", FileOwner(7, None, 0o700), force=True)
    assert [(content.stat(path).uid, content.stat(path).mode) for path in ("a", "a/b")] == [(7, 0o755), (7, 0o700)]
    changed = content.change("a/b", FileOwner(gid=9))
    assert (changed.uid, changed.gid, changed.mode) == (7, 9, 0o700)
    assert content.change("a/b", FileOwner(mode=0o711)).mode == 0o711


def test_existing_files_and_directories_are_kept_without_force(content: Content) -> None:
    write(content, "file", b"first")
    with pytest.raises(ConflictError):
        write(content, "file", b"second")
    assert read(content, "file") == b"first"
    write(content, "file", b"second", force=True)
    assert read(content, "file") == b"second"
    content.make_dir("folder", ANYBODY, force=False)
    for path in ("folder", "file", "/"):
        with pytest.raises(ConflictError):
            content.make_dir(path, ANYBODY, force=False)
    assert content.make_dir("folder", ANYBODY, force=True).kind is FileKind.DIRECTORY
    with pytest.raises(SandyardError):
        content.make_dir("file", ANYBODY, force=True)
    for force in (False, True):
        with pytest.raises(ConflictError):
            write(content, "folder", force=force)


def test_missing_paths_are_reported(content: Content) -> None:
    for call in (
        lambda: content.stat("none"),
        lambda: content.list("none"),
        lambda: content.change("none", FileOwner(mode=0o600)),
        lambda: content.remove("none"),
        lambda: content.open_file("none"),
        lambda: content.make_dir("none/folder", ANYBODY, force=False),
        lambda: write(content, "none/file"),
    ):
        with pytest.raises(NotFoundError):
            call()
    write(content, "some/where/file", force=True)
    assert list_paths(content, "/", 3) == ["/some", "/some/where", "/some/where/file"]


def test_directories_are_listed_to_a_limited_depth_and_size(
    content: Content, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content.make_dir("b/c/d", ANYBODY, force=True)
    write(content, "a")
    assert list_paths(content) == ["/a", "/b"]
    assert list_paths(content, "/b", 2) == ["/b/c", "/b/c/d"]
    assert list_paths(content, "/", 0) == ["/a", "/b"]
    with pytest.raises(InvalidInputError, match="depth"):
        content.list("/", 11)
    with pytest.raises(InvalidInputError, match="not a directory"):
        content.list("a")
    monkeypatch.setattr(contents, "MAX_ENTRIES", 3)
    assert len(list_paths(content, "/", 2)) == 3
    with pytest.raises(InvalidInputError, match="more than 3"):
        content.list("/", 3)


def test_the_total_length_of_names_in_a_list_is_limited(
    content: Content, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (volume / f"link{number}").symlink_to("x" * 1000)
    assert len(list_paths(content)) == 3
    monkeypatch.setattr(contents, "MAX_CHARACTERS", 2000)
    with pytest.raises(InvalidInputError, match="too long for one list"):
        content.list("/")


def test_opening_a_leased_file_fails_at_once(content: Content, volume: Path) -> None:
    write(content, "leased")
    fd = os.open(volume / "leased", os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(BusyError, match="lease"):
            content.open_file("leased")
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_file_names_may_contain_any_bytes(content: Content, volume: Path) -> None:
    for name in ("new\nline", "ünï→code", " space ", "back\\slash", "%2e%2e", "-rf"):
        write(content, f"/{name}", name.encode())
        assert read(content, name) == name.encode()
    (volume / os.fsdecode(b"not\xffutf8")).touch()
    assert "/not\ufffdutf8" in list_paths(content)
    for path in ("", " ", "nul\0byte", "\udcff"):
        with pytest.raises(InvalidInputError):
            content.stat(path)
    with pytest.raises(InvalidInputError, match="too long"):
        content.stat("x" * 300)


def test_files_and_directories_are_removed(content: Content, volume: Path) -> None:
    write(content, "deep/er/file", force=True)
    content.remove("deep/er/file")
    content.remove("deep")
    assert list_paths(content) == []
    with pytest.raises(InvalidInputError):
        content.remove("/")
    with pytest.raises(InvalidInputError):
        content.remove("a/..")


def test_very_deep_and_very_wide_trees_are_removed(content: Content, volume: Path) -> None:
    (volume / "top").mkdir()
    fd = os.open(volume / "top", os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    for number in range(2500):
        (volume / "top" / f"f{number}").touch()
    content.remove("top")
    assert list_paths(content) == []


# Attacks --------------------------------------------------------------------------------------------------------------------


def test_parent_segments_do_not_leave_the_volume(content: Content, volume: Path, outside: Path) -> None:
    for path in ("../outside/secret", "/../outside/secret", "a/../../outside/secret", f"..{outside}/secret"):
        with pytest.raises(NotFoundError):
            content.open_file(path)
    write(content, "../../escaped")
    assert (volume / "escaped").exists()


def test_symbolic_links_do_not_leave_the_volume(content: Content, volume: Path, outside: Path) -> None:
    (volume / "absolute").symlink_to(outside)
    (volume / "relative").symlink_to("../outside")
    (volume / "file").symlink_to(outside / "secret")
    (volume / "proc").symlink_to("/proc/self/root")
    (volume / "loop").symlink_to("loop")
    for path in ("absolute/secret", "relative/secret", "file", "proc/etc/passwd", "loop"):
        for call in (
            lambda path=path: content.open_file(path),
            lambda path=path: content.change(path, FileOwner(mode=0o666)),
            lambda path=path: content.list(path),
        ):
            with pytest.raises((NotFoundError, InvalidInputError)):
                call()
    for path in ("absolute/new", "relative/new"):
        with pytest.raises(NotFoundError):
            write(content, path)
        with pytest.raises(SandyardError):
            write(content, path, force=True)
        with pytest.raises(NotFoundError):
            content.remove(path)
        with pytest.raises(SandyardError):
            content.make_dir(path, ANYBODY, force=True)
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_text() == "secret"


def test_operations_on_a_symbolic_link_do_not_touch_its_target(content: Content, volume: Path, outside: Path) -> None:
    (volume / "link").symlink_to(outside / "secret")
    entry = content.stat("link")
    assert (entry.kind, entry.target) == (FileKind.SYMLINK, str(outside / "secret"))
    write(content, "link", b"mine", force=True)
    assert read(content, "link") == b"mine"
    assert (outside / "secret").read_text() == "secret"
    (volume / "folder").symlink_to(outside)
    content.remove("folder")
    (volume / "tree").mkdir()
    (volume / "tree/inner").symlink_to(outside)
    assert list_paths(content, "/", 5) == ["/link", "/tree", "/tree/inner"]
    content.remove("tree")
    assert (outside / "secret").exists()


def test_symbolic_links_inside_the_volume_are_followed(content: Content, volume: Path) -> None:
    """Absolute links start at the volume's root, as in a sandbox that contains only the volume."""
    write(content, "real/file", b"it", force=True)
    (volume / "absolute").symlink_to("/real")
    (volume / "relative").symlink_to("real/file")
    assert read(content, "absolute/file") == b"it"
    assert read(content, "relative") == b"it"
    assert list_paths(content, "absolute") == ["/absolute/file"]
    write(content, "absolute/new")
    assert (volume / "real/new").exists()


def test_pipes_sockets_and_devices_are_never_opened(content: Content, volume: Path) -> None:
    os.mkfifo(volume / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(volume / "socket"))
    kinds = ["pipe", "socket"]
    if os.geteuid() == 0:
        os.mknod(volume / "zero", 0o20666, os.makedev(1, 5))
        kinds.append("zero")
    for name in kinds:
        assert content.stat(name).kind is FileKind.UNKNOWN
        with pytest.raises(InvalidInputError, match="not a regular file"):
            content.open_file(name)
        assert content.change(name, FileOwner(mode=0o600)).mode == 0o600
        write(content, name, b"file now", force=True)
        assert read(content, name) == b"file now"


def test_a_directory_swapped_with_a_link_does_not_lead_out_of_the_volume(
    content: Content, volume: Path, outside: Path
) -> None:
    """A sandbox swaps them as fast as it can while the host works."""
    (volume / "real").mkdir()
    (volume / "real/secret").write_text("inside")
    (volume / "link").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        place = volume / "place"
        while not stop.is_set():
            for name in ("real", "link"):
                (volume / name).rename(place)
                place.rename(volume / name)

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        successful_reads = 0
        for number in range(3000):
            for call in (
                lambda: read(content, "place/secret"),
                lambda number=number: write(content, f"place/new{number % 7}", force=False),
                lambda number=number: content.remove(f"place/new{number % 7}"),
                lambda: content.change("place/secret", FileOwner(mode=0o640)),
                lambda: [entry.name for entry in content.list("place")],
            ):
                try:
                    result = call()
                except SandyardError:
                    continue
                if isinstance(result, bytes):
                    assert result == b"inside"
                    successful_reads += 1
    finally:
        stop.set()
        attacker.join()
    assert successful_reads
    assert (outside / "secret").read_text() == "secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").stat().st_mode & 0o777 == 0o644


# Uploads --------------------------------------------------------------------------------------------------------------------


def test_a_partial_upload_is_never_visible(content: Content, volume: Path) -> None:
    write(content, "file", b"old")
    upload = Upload.begin(content, "file", ANYBODY, force=True)
    upload.write(b"ne")
    assert read(content, "file") == b"old"
    assert list_files(volume) == ["file"]
    upload.write(b"w")
    upload.finish()
    assert read(content, "file") == b"new"
    abandoned = Upload.begin(content, "other", ANYBODY, force=False)
    abandoned.write(b"x")
    abandoned.abandon()
    abandoned.abandon()
    assert list_files(volume) == ["file"]


def test_one_of_two_uploads_to_the_same_new_file_wins(content: Content) -> None:
    first, second = (Upload.begin(content, "file", ANYBODY, force=False) for _ in range(2))
    second.write(b"second")
    second.finish()
    first.write(b"first")
    with pytest.raises(ConflictError):
        first.finish()
    assert read(content, "file") == b"second"


def test_concurrent_writers_never_mix_their_content(content: Content, volume: Path) -> None:
    def work(number: int) -> None:
        for _ in range(20):
            write(content, "file", bytes([number]) * 50_000, force=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        try:
            data = read(content, "file")
        except NotFoundError:
            continue
        assert len(data) == 50_000
        assert len(set(data)) == 1
    assert list_files(volume) == ["file"]


def test_an_upload_that_would_use_the_disk_reserve_is_rejected(content: Content, volume: Path) -> None:
    upload = Upload.begin(content, "file", ANYBODY, force=False, reserve=1 << 60)
    with pytest.raises(NoSpaceError):
        upload.write(b"x")
    upload.abandon()
    assert list_files(volume) == []


def test_a_download_ignores_appended_data_and_fails_if_the_file_shrinks(content: Content, volume: Path) -> None:
    write(content, "file", b"0123456789")
    download = Download.begin(content, "file")
    with (volume / "file").open("ab") as file:
        file.write(b"more")
    assert download.read(100) == b"0123456789"
    assert download.read(100) == b""
    download.close()
    assert download.read(1) == b""
    shrinking = Download.begin(content, "file")
    (volume / "file").write_bytes(b"")
    with pytest.raises(ConflictError, match="shorter"):
        shrinking.read(100)
    shrinking.close()
    shrinking.close()
