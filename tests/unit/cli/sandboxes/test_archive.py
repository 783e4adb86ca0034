"""Directories as tar streams. Archives from a sandbox are not trusted."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.errors import CommandError
from sandyard.cli.main import cli
from sandyard.cli.sandboxes import archive
from tests.unit.cli.server import Reply, Server


def pieces(data: bytes, size: int = 777) -> Iterator[bytes]:
    return iter([data[at : at + size] for at in range(0, len(data), size)])


def test_a_directory_is_packed_and_unpacked(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "file").write_bytes(os.urandom(300_000))
    (source / "link").symlink_to("a/file")
    os.mkfifo(source / "pipe")
    data = b"".join(archive.pack(source))
    assert abs(len(data) - archive.estimate_size(source)) <= archive.CHUNK
    archive.unpack(pieces(data), tmp_path / "target")
    assert (tmp_path / "target" / "link").read_bytes() == (source / "a" / "file").read_bytes()
    assert (tmp_path / "target" / "a" / "empty").is_dir()
    assert not (tmp_path / "target" / "pipe").exists()


def test_closing_the_stream_ends_the_writer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    stream = archive.pack(tmp_path)
    next(stream)
    stream.close()  # type: ignore[attr-defined]


def test_a_missing_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(archive.pack(tmp_path / "nothing"))


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_nothing_is_unpacked_outside_the_target(name: str, tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"no"))
    target = tmp_path / "target"
    try:
        archive.unpack(pieces(made.getvalue()), target)
    except CommandError as error:
        assert "outside" in error.message
    assert not (tmp_path / "outside").exists()
    assert not Path("/etc/outside").exists()


def make_archive(*entries: tuple[str, bytes, str]) -> Iterator[bytes]:
    """Return an archive of entries: name, type, and the content of a file or the target of a link."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, kind, text in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind == tarfile.REGTYPE:
                entry.size = len(text)
            else:
                entry.linkname = text
            tar.addfile(entry, io.BytesIO(text.encode()))
    return pieces(made.getvalue())


def test_links_that_lead_outside_are_skipped(tmp_path: Path) -> None:
    target = tmp_path / "target"
    links = {
        "absolute": "/etc/passwd",
        "own": str(target / "file"),
        "above": "../secret",
        "a/above": "../../secret",
        "inside": "a/file",
        "a/back": "../file",
        "dangling": "nothing",
        "chain": "inside",
        "up": "deep/link/../../secret",  # inside as long as deep/link does not exist
        "deep/link": "..",
        "loop": "loop",
    }
    entries = [(name, tarfile.SYMTYPE, text) for name, text in links.items()]
    files = [("file", tarfile.REGTYPE, "1"), ("a/file", tarfile.REGTYPE, "2")]
    skipped = archive.unpack(make_archive(*entries, *files), target)
    assert sorted(skipped) == ["a/above", "above", "absolute", "own", "up"]
    assert not any((target / name).is_symlink() for name in skipped)
    assert (target / "chain").read_text() == "2"
    assert (target / "a/back").read_text() == "1"
    assert (target / "dangling").readlink() == Path("nothing")


def test_cp_names_the_links_that_it_skips(server: Server, tmp_path: Path) -> None:
    links = [(f"link\u202e{number}", tarfile.SYMTYPE, "/etc/passwd") for number in range(21)]
    data = b"".join(make_archive(("file", tarfile.REGTYPE, "1"), *links))
    server.on("GET", "/sandboxes/sbx_1/files/list", Reply(200, {"items": [{"name": "dir", "kind": "dir"}]}))
    server.on("POST", "/sandboxes/sbx_1/execute", Reply(200, {"exitCode": 0}))
    server.on("GET", "/sandboxes/sbx_1/files", Reply(200, data, "application/octet-stream"))
    result = CliRunner().invoke(cli, ["sandbox", "cp", "sbx_1:dir", str(tmp_path / "copy")])
    assert result.exit_code == 0, result.output
    assert "Skipped links that can lead outside the copied directory: 'link\\u202e0', " in result.stderr
    assert result.stderr.endswith(" and 1 more.\n")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["file"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    target.mkdir()
    (target / "existing").symlink_to(outside)
    for name, link in (("link", str(outside)), ("link", "../outside"), ("link", "a/../../outside")):
        data = make_archive((name, tarfile.SYMTYPE, link), (f"{name}/file", tarfile.REGTYPE, "evil"))
        with pytest.raises(CommandError, match="'link' is a link in the sandbox, but a directory"):
            archive.unpack(data, target)
    with pytest.raises(CommandError, match="existing' is a link on this machine"):
        archive.unpack(make_archive(("existing/file", tarfile.REGTYPE, "evil")), target)
    archive.unpack(make_archive(("same", tarfile.SYMTYPE, "../outside/file"), ("same", tarfile.REGTYPE, "new")), target)
    assert (target / "same").read_text() == "new"
    assert (outside / "file").read_text() == "mine"


def test_links_of_earlier_copies_cannot_be_bent_to_lead_outside(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    links = (("sub", "d/d/../../outside"), ("a/sub", "../outside"))
    assert archive.unpack(make_archive(*((name, tarfile.SYMTYPE, text) for name, text in links)), target) == ["sub"]
    archive.unpack(make_archive(("d", tarfile.SYMTYPE, ".")), target)
    assert archive.unpack(make_archive(("moved", tarfile.LNKTYPE, "a/sub")), target) == ["moved"]
    assert sorted(path.name for path in target.iterdir()) == ["a", "d"]


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.REGTYPE])
def test_links_in_place_of_directories_are_refused(kind: bytes, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "real").mkdir(parents=True)
    (target / "link").symlink_to("real")  # also if they lead inside
    with pytest.raises(CommandError, match="link' is a link on this machine, but a directory in the sandbox"):
        archive.unpack(make_archive(("link" if kind == tarfile.DIRTYPE else "link/x/file", kind, "x")), target)
    with pytest.raises(CommandError, match="link' is a link on this machine"):
        archive.unpack(make_archive(("file", tarfile.REGTYPE, "x")), target / "link")
    assert list((target / "real").iterdir()) == []


def test_links_through_local_links_that_lead_outside_are_skipped(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "local").symlink_to(tmp_path)
    assert archive.unpack(make_archive(("link", tarfile.SYMTYPE, "local/secret")), target) == ["link"]
    assert not (target / "link").is_symlink()


def copy_without_tar(server: Server, target: Path) -> Result:
    """Copy a directory with `sub/keys` and `keys` from a sandbox that has no tar."""
    folders = {
        ".": [{"name": "dir", "kind": "dir"}],
        "dir": [{"name": "keys", "kind": "file"}, {"name": "sub", "kind": "dir"}],
        "dir/sub": [{"name": "keys", "kind": "file"}],
    }
    server.on(
        "GET", "/sandboxes/sbx_1/files/list", lambda request: Reply(200, {"items": folders[request.query["path"]]})
    )
    server.on("POST", "/sandboxes/sbx_1/execute", Reply(200, {"exitCode": 1}))
    server.on("GET", "/sandboxes/sbx_1/files", Reply(200, b"evil", "application/octet-stream"))
    return CliRunner().invoke(cli, ["sandbox", "cp", "sbx_1:dir", str(target)])


@pytest.mark.parametrize("link", ["dir", "dir/sub"])
def test_nothing_is_written_through_a_link_without_tar(link: str, server: Server, tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    (target / link).parent.mkdir(parents=True)
    (target / link).symlink_to(outside)
    result = copy_without_tar(server, target)
    assert result.exit_code == 1
    assert f"'{target / link}' is a link on this machine, but a directory in the sandbox." in result.stderr
    assert list(outside.iterdir()) == []


def test_links_in_place_of_files_are_replaced_without_tar(server: Server, tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.write_text("mine")
    (target / "dir").mkdir(parents=True)
    (target / "dir" / "keys").symlink_to(outside)
    assert copy_without_tar(server, target).exit_code == 0
    assert outside.read_text() == "mine"
    assert (target / "dir" / "keys").read_text() == (target / "dir" / "sub" / "keys").read_text() == "evil"
    assert not (target / "dir" / "keys").is_symlink()


def test_hard_links_to_links_are_links(tmp_path: Path) -> None:
    entries = (("file", tarfile.REGTYPE, "1"), ("one", tarfile.SYMTYPE, "file"), ("two", tarfile.LNKTYPE, "one"))
    assert archive.unpack(make_archive(*entries), tmp_path / "target") == []
    assert (tmp_path / "target" / "two").readlink() == Path("file")


def test_invalid_data_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="did not send a valid tar archive"):
        archive.unpack(pieces(b"hello" * 1000), tmp_path / "target")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_large_headers_are_not_read_into_memory(kind: bytes, tmp_path: Path) -> None:
    entry = tarfile.TarInfo("header")
    entry.type, entry.size = kind, 1 << 30
    read = 0

    def send() -> Iterator[bytes]:
        nonlocal read
        yield entry.tobuf()
        while read < 16 << 20:
            read += archive.CHUNK
            yield bytes(archive.CHUNK)

    with pytest.raises(CommandError, match="header that is too large"):
        archive.unpack(send(), tmp_path / "target")
    assert read <= archive.CHUNK


def test_entries_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()
    monkeypatch.setattr(archive, "_extract_entry", lambda tar, *_: kept.append(len(tar.members)))
    archive.unpack(
        make_archive(*((f"file-{number}", tarfile.REGTYPE, "") for number in range(100))), tmp_path / "target"
    )
    assert len(kept) == 100 and max(kept) <= 1


def test_small_archives_do_not_become_large_files(tmp_path: Path) -> None:
    size = 64 << 20
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("hole")
        content = f"1\n{size}\n0\n".encode().ljust(512, b"\0")
        sparse = {"major": "1", "minor": "0", "name": "hole", "realsize": str(size)}
        entry.size, entry.pax_headers = len(content), {f"GNU.sparse.{name}": value for name, value in sparse.items()}
        tar.addfile(entry, io.BytesIO(content))
    with pytest.raises(CommandError, match="sparse"):
        archive.unpack(pieces(target.getvalue()), tmp_path / "target")
    assert not (tmp_path / "target/hole").exists()
