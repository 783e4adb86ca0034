"""Test files: reading, writing, listing, moving, and invalid requests."""

from __future__ import annotations

import io
import os

import pytest
from e2b import (
    AuthenticationException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
)

from .conftest import DataPlane


def test_write_and_read(sandbox: Sandbox) -> None:
    info = sandbox.files.write("note.txt", "Hello, world! ünï 🦀")
    assert (info.name, info.path, info.type) == ("note.txt", "/home/user/note.txt", FileType.FILE)
    assert sandbox.files.read("note.txt") == "Hello, world! ünï 🦀"
    assert sandbox.files.read("/home/user/note.txt", format="bytes") == "Hello, world! ünï 🦀".encode()
    assert sandbox.files.read("~/note.txt") == "Hello, world! ünï 🦀"


def test_writing_a_shorter_text_replaces_a_longer_one(sandbox: Sandbox) -> None:
    sandbox.files.write("note.txt", "a long first text")
    sandbox.files.write("note.txt", "short")
    assert sandbox.files.read("note.txt") == "short"


def test_write_creates_missing_directories(sandbox: Sandbox) -> None:
    sandbox.files.write("a/b/c/note.txt", "deep")
    assert sandbox.files.read("a/b/c/note.txt") == "deep"
    for folder in ("a", "a/b", "a/b/c"):
        info = sandbox.files.get_info(folder)
        assert (info.owner, info.group, info.permissions) == ("user", "user", "drwxr-xr-x")


def test_special_characters_in_names(sandbox: Sandbox) -> None:
    for name in ("with space.txt", "ünï-🦀.txt", "quote'\".txt", "a&b=c?d#e.txt", "100%.txt", "-dash", "semi;colon"):
        assert sandbox.files.write(name, name).path == f"/home/user/{name}"
        assert sandbox.files.read(name) == name
        assert sandbox.files.exists(name)


def test_write_accepts_every_data_type(sandbox: Sandbox) -> None:
    infos = sandbox.files.write_files(
        [
            {"path": "text.txt", "data": "Text"},
            {"path": "bytes.bin", "data": b"\0\xff\x80"},
            {"path": "bytesio.bin", "data": io.BytesIO(b"BytesIO")},
            {"path": "/tmp/stringio.txt", "data": io.StringIO("StringIO")},
        ]
    )
    assert [info.path for info in infos] == [
        "/home/user/text.txt",
        "/home/user/bytes.bin",
        "/home/user/bytesio.bin",
        "/tmp/stringio.txt",
    ]
    assert sandbox.files.read("bytes.bin", format="bytes") == b"\0\xff\x80"
    assert sandbox.files.read("bytesio.bin") == "BytesIO"
    assert sandbox.files.read("/tmp/stringio.txt") == "StringIO"
    assert sandbox.files.write_files([]) == []


def test_write_and_read_an_empty_file(sandbox: Sandbox) -> None:
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""
    assert sandbox.files.get_info("empty").size == 0


def test_read_as_a_stream(sandbox: Sandbox) -> None:
    data = os.urandom(3_000_000)
    sandbox.files.write("big.bin", data)
    with sandbox.files.read("big.bin", format="stream") as stream:
        assert b"".join(stream) == data
    stream = sandbox.files.read("big.bin", format="stream")
    assert next(iter(stream))
    stream.close()
    assert sandbox.files.read("big.bin", format="bytes") == data
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("nowhere", format="stream")


def test_read_returns_all_of_a_file_without_a_size(sandbox: Sandbox) -> None:
    assert len(sandbox.files.read("/proc/sys/kernel/random/boot_id").strip()) == 36
    assert "MemTotal:" in sandbox.files.read("/proc/meminfo")


DIGITS = b"0123456789"


@pytest.mark.parametrize(
    ("byte_range", "content", "content_range"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=7-99", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", DIGITS, "bytes 0-9/10"),
        ("bytes=0-0", b"0", "bytes 0-0/10"),
    ],
)
def test_a_range_request_returns_part_of_a_file(
    sandbox: Sandbox, data_plane: DataPlane, byte_range: str, content: bytes, content_range: str
) -> None:
    sandbox.files.write("digits", DIGITS)
    response = data_plane(sandbox).get("/files", params={"path": "digits"}, headers={"Range": byte_range})
    assert (response.status_code, response.content) == (206, content)
    assert (response.headers["content-range"], response.headers["content-length"]) == (content_range, str(len(content)))
    assert response.headers["accept-ranges"] == "bytes"
    assert "content-encoding" not in response.headers


def test_ranges_beyond_the_end_or_unsupported(sandbox: Sandbox, data_plane: DataPlane) -> None:
    sandbox.files.write("digits", DIGITS)
    for byte_range in ("bytes=10-", "bytes=10-12", f"bytes={'9' * 5000}-"):
        response = data_plane(sandbox).get("/files", params={"path": "digits"}, headers={"Range": byte_range})
        assert (response.status_code, response.headers["content-range"]) == (416, "bytes */10"), byte_range
    for byte_range in ("bytes=1-2,4-5", "lines=1-2", "bytes=-", "nonsense"):
        response = data_plane(sandbox).get("/files", params={"path": "digits"}, headers={"Range": byte_range})
        assert (response.status_code, response.content) == (200, DIGITS), byte_range


def test_reading_a_missing_file_is_not_found(sandbox: Sandbox, data_plane: DataPlane) -> None:
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("demo/test.txt")
    response = data_plane(sandbox).get("/files", params={"path": "demo/test.txt"})
    assert response.status_code == 404
    assert response.json() == {"code": 404, "message": "path '/home/user/demo/test.txt' does not exist"}


def test_reading_directories_pipes_and_devices_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/tmp")
    sandbox.commands.run("mkfifo pipe")
    with pytest.raises(SandboxException):
        sandbox.files.read("pipe", request_timeout=5)
    with pytest.raises(SandboxException):
        sandbox.files.read("/dev/zero", request_timeout=5)


def test_writing_to_a_directory_or_below_a_file_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException):
        sandbox.files.write("/tmp", "a directory")
    sandbox.files.write("plain", "x")
    with pytest.raises(SandboxException):
        sandbox.files.write("plain/below", "x")
    assert sandbox.files.read("plain") == "x"


def test_read_and_write_as_another_user(sandbox: Sandbox) -> None:
    assert sandbox.files.write("mine.txt", "root's", user="root").path == "/root/mine.txt"
    assert sandbox.files.read("mine.txt", user="root") == "root's"
    assert sandbox.files.get_info("mine.txt", user="root").owner == "root"
    with pytest.raises(AuthenticationException):
        sandbox.files.read("/etc/hostname", user="nobodyhere")
    with pytest.raises(AuthenticationException):
        sandbox.files.write("x", "x", user="nobodyhere")


def test_info_of_files_and_directories(sandbox: Sandbox) -> None:
    sandbox.files.write("note.txt", "test")
    info = sandbox.files.get_info("note.txt")
    assert (info.name, info.path, info.type, info.size) == ("note.txt", "/home/user/note.txt", FileType.FILE, 4)
    assert (info.mode, info.permissions, info.owner, info.group) == (0o644, "-rw-r--r--", "user", "user")
    assert info.modified_time is not None
    assert info.symlink_target is None
    folder = sandbox.files.get_info("/home/user")
    assert folder.type == FileType.DIR
    assert folder.size > 0
    sandbox.files.make_dir("empty")
    assert sandbox.files.get_info("empty").size > 0, "clients expect directories to have a size"
    with pytest.raises(FileNotFoundException):
        sandbox.files.get_info("nowhere")


def test_info_and_list_with_symbolic_links(sandbox: Sandbox) -> None:
    sandbox.files.write("folder/note.txt", "linked")
    sandbox.commands.run("ln -s note.txt folder/link; ln -s /home/user/folder there; ln -s nowhere broken")
    link = sandbox.files.get_info("folder/link")
    assert (link.type, link.symlink_target) == (FileType.SYMLINK, "/home/user/folder/note.txt")
    assert sandbox.files.read("folder/link") == "linked"
    assert [entry.path for entry in sandbox.files.list("there")] == [
        "/home/user/there/link",
        "/home/user/there/note.txt",
    ]
    assert sandbox.files.exists("broken")
    assert "folder" in [entry.name for entry in sandbox.files.list("/home/user")]


def test_list_depth_and_order(sandbox: Sandbox) -> None:
    for folder in ("top/a/x", "top/a/y", "top/b/z"):
        sandbox.files.make_dir(folder)
    sandbox.files.write("top/file.txt", "x")
    root = "/home/user/top"
    assert [entry.path for entry in sandbox.files.list("top")] == [f"{root}/a", f"{root}/b", f"{root}/file.txt"]
    deep = [f"{root}/{name}" for name in ("a", "a/x", "a/y", "b", "b/z", "file.txt")]
    assert [entry.path for entry in sandbox.files.list("top", depth=2)] == deep
    assert [entry.path for entry in sandbox.files.list("top", depth=9)] == deep
    assert sandbox.files.list("top/a/x") == []
    with pytest.raises(FileNotFoundException):
        sandbox.files.list("nowhere")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("top/file.txt")
    with pytest.raises(InvalidArgumentException, match="depth should be at least 1"):
        sandbox.files.list("top", depth=0)


def test_list_a_large_directory(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir many && cd many && touch $(seq -f f%04g 1 3000)")
    assert [entry.name for entry in sandbox.files.list("many")] == [f"f{number:04}" for number in range(1, 3001)]


def test_make_dir_returns_whether_it_was_created(sandbox: Sandbox) -> None:
    assert sandbox.files.make_dir("one/two") is True
    assert sandbox.files.make_dir("one/two") is False
    assert sandbox.files.make_dir("/elsewhere/deep") is True
    assert sandbox.files.get_info("/elsewhere/deep").owner == "user"
    sandbox.files.write("plain", "x")
    with pytest.raises(SandboxException):
        sandbox.files.make_dir("plain")


def test_rename_moves_files_and_directories(sandbox: Sandbox) -> None:
    sandbox.files.write("old.txt", "content")
    info = sandbox.files.rename("old.txt", "sub/new.txt")
    assert (info.name, info.path) == ("new.txt", "/home/user/sub/new.txt")
    assert not sandbox.files.exists("old.txt")
    assert sandbox.files.read("sub/new.txt") == "content"
    sandbox.files.write("other.txt", "other")
    sandbox.files.rename("other.txt", "sub/new.txt")
    assert sandbox.files.read("sub/new.txt") == "other"
    sandbox.files.rename("sub", "moved")
    assert sandbox.files.read("moved/new.txt") == "other"
    with pytest.raises(NotFoundException):
        sandbox.files.rename("nowhere", "anywhere")


def test_remove_does_not_follow_links(sandbox: Sandbox) -> None:
    sandbox.files.write("full/of/things.txt", "x")
    sandbox.commands.run("ln -s /etc outside", cwd="full")
    sandbox.files.remove("full")
    assert not sandbox.files.exists("full")
    assert sandbox.files.exists("/etc/passwd"), "the link must be removed, not its target"
    sandbox.files.remove("full")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("Stat", "{"),
        ("Stat", '{"path": 5}'),
        ("ListDir", '{"path": "/", "depth": "deep"}'),
        ("MakeDir", "[]"),
        ("Move", '{"source": {}}'),
        ("Stat", '{"path": "/tmp/\\u0000"}'),
    ],
)
def test_invalid_requests_are_refused(sandbox: Sandbox, data_plane: DataPlane, path: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    response = data_plane(sandbox).post(f"/filesystem.Filesystem/{path}", content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["code"] == "invalid_argument"


def test_paths_stay_inside_the_sandbox(sandbox: Sandbox, data_plane: DataPlane) -> None:
    sandbox.commands.run("ln -s ../../../../../../etc/passwd up")
    assert "user:" in sandbox.files.read("up"), "the link must resolve to the sandbox's own file"
    assert sandbox.files.read("../../../../../../etc/passwd") == sandbox.files.read("/etc/passwd")
    assert data_plane(sandbox).get("/files", params={"path": "/tmp/\0x"}).status_code == 400
