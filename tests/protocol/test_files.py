"""Files: reading, writing, listing, moving, and what is refused."""

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

from .conftest import Plane


def test_write_read(sandbox: Sandbox) -> None:
    info = sandbox.files.write("note.txt", "Hello, world! ünï 🦀")
    assert (info.name, info.path, info.type) == ("note.txt", "/home/user/note.txt", FileType.FILE)
    assert sandbox.files.read("note.txt") == "Hello, world! ünï 🦀"
    assert sandbox.files.read("/home/user/note.txt", format="bytes") == "Hello, world! ünï 🦀".encode()
    assert sandbox.files.read("~/note.txt") == "Hello, world! ünï 🦀"


def test_a_shorter_text_replaces_a_longer_one(sandbox: Sandbox) -> None:
    sandbox.files.write("note.txt", "a long first text")
    sandbox.files.write("note.txt", "short")
    assert sandbox.files.read("note.txt") == "short"


def test_directories_are_made_on_the_way(sandbox: Sandbox) -> None:
    sandbox.files.write("a/b/c/note.txt", "deep")
    assert sandbox.files.read("a/b/c/note.txt") == "deep"
    for folder in ("a", "a/b", "a/b/c"):
        info = sandbox.files.get_info(folder)
        assert (info.owner, info.group, info.permissions) == ("user", "user", "drwxr-xr-x")


def test_odd_names(sandbox: Sandbox) -> None:
    for name in ("with space.txt", "ünï-🦀.txt", "quote'\".txt", "a&b=c?d#e.txt", "100%.txt", "-dash", "semi;colon"):
        assert sandbox.files.write(name, name).path == f"/home/user/{name}"
        assert sandbox.files.read(name) == name
        assert sandbox.files.exists(name)


def test_write_kinds_of_data(sandbox: Sandbox) -> None:
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


def test_empty_file(sandbox: Sandbox) -> None:
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""
    assert sandbox.files.get_info("empty").size == 0


def test_stream(sandbox: Sandbox) -> None:
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


def test_files_without_a_size_are_read_to_their_end(sandbox: Sandbox) -> None:
    assert len(sandbox.files.read("/proc/sys/kernel/random/boot_id").strip()) == 36
    assert "MemTotal:" in sandbox.files.read("/proc/meminfo")


DIGITS = b"0123456789"


@pytest.mark.parametrize(
    ("asked", "content", "told"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=7-99", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", DIGITS, "bytes 0-9/10"),
        ("bytes=0-0", b"0", "bytes 0-0/10"),
    ],
)
def test_a_part_of_a_file(sandbox: Sandbox, plane: Plane, asked: str, content: bytes, told: str) -> None:
    sandbox.files.write("digits", DIGITS)
    answer = plane(sandbox).get("/files", params={"path": "digits"}, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, content)
    assert (answer.headers["content-range"], answer.headers["content-length"]) == (told, str(len(content)))
    assert answer.headers["accept-ranges"] == "bytes"
    assert "content-encoding" not in answer.headers


def test_a_part_that_no_file_has(sandbox: Sandbox, plane: Plane) -> None:
    sandbox.files.write("digits", DIGITS)
    for asked in ("bytes=10-", "bytes=10-12", f"bytes={'9' * 5000}-"):
        answer = plane(sandbox).get("/files", params={"path": "digits"}, headers={"Range": asked})
        assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10"), asked
    for asked in ("bytes=1-2,4-5", "lines=1-2", "bytes=-", "nonsense"):
        answer = plane(sandbox).get("/files", params={"path": "digits"}, headers={"Range": asked})
        assert (answer.status_code, answer.content) == (200, DIGITS), asked


def test_reading_what_is_not_there(sandbox: Sandbox, plane: Plane) -> None:
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("demo/test.txt")
    answer = plane(sandbox).get("/files", params={"path": "demo/test.txt"})
    assert answer.status_code == 404
    assert answer.json() == {"code": 404, "message": "path '/home/user/demo/test.txt' does not exist"}


def test_reading_what_is_no_file(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/tmp")
    sandbox.commands.run("mkfifo pipe")
    with pytest.raises(SandboxException):
        sandbox.files.read("pipe", request_timeout=5)
    with pytest.raises(SandboxException):
        sandbox.files.read("/dev/zero", request_timeout=5)


def test_writing_where_it_cannot_be(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxException):
        sandbox.files.write("/tmp", "a directory")
    sandbox.files.write("plain", "x")
    with pytest.raises(SandboxException):
        sandbox.files.write("plain/below", "x")
    assert sandbox.files.read("plain") == "x"


def test_as_another_user(sandbox: Sandbox) -> None:
    assert sandbox.files.write("mine.txt", "root's", user="root").path == "/root/mine.txt"
    assert sandbox.files.read("mine.txt", user="root") == "root's"
    assert sandbox.files.get_info("mine.txt", user="root").owner == "root"
    with pytest.raises(AuthenticationException):
        sandbox.files.read("/etc/hostname", user="nobodyhere")
    with pytest.raises(AuthenticationException):
        sandbox.files.write("x", "x", user="nobodyhere")


def test_info(sandbox: Sandbox) -> None:
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
    assert sandbox.files.get_info("empty").size > 0, "a directory has a size on the file systems clients know"
    with pytest.raises(FileNotFoundException):
        sandbox.files.get_info("nowhere")


def test_symbolic_links(sandbox: Sandbox) -> None:
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


def test_a_large_directory(sandbox: Sandbox) -> None:
    sandbox.commands.run("mkdir many && cd many && touch $(seq -f f%04g 1 3000)")
    assert [entry.name for entry in sandbox.files.list("many")] == [f"f{number:04}" for number in range(1, 3001)]


def test_make_dir(sandbox: Sandbox) -> None:
    assert sandbox.files.make_dir("one/two") is True
    assert sandbox.files.make_dir("one/two") is False
    assert sandbox.files.make_dir("/elsewhere/deep") is True
    assert sandbox.files.get_info("/elsewhere/deep").owner == "user"
    sandbox.files.write("plain", "x")
    with pytest.raises(SandboxException):
        sandbox.files.make_dir("plain")


def test_rename(sandbox: Sandbox) -> None:
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


def test_remove(sandbox: Sandbox) -> None:
    sandbox.files.write("full/of/things.txt", "x")
    sandbox.commands.run("ln -s /etc outside", cwd="full")
    sandbox.files.remove("full")
    assert not sandbox.files.exists("full")
    assert sandbox.files.exists("/etc/passwd"), "a link is removed, not what it points to"
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
def test_bad_requests(sandbox: Sandbox, plane: Plane, path: str, body: str) -> None:
    kind = {"Content-Type": "application/json"}
    answer = plane(sandbox).post(f"/filesystem.Filesystem/{path}", content=body, headers=kind)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "invalid_argument"


def test_no_path_leads_out(sandbox: Sandbox, plane: Plane) -> None:
    sandbox.commands.run("ln -s ../../../../../../etc/passwd up")
    assert "user:" in sandbox.files.read("up"), "a link leads to the sandbox's own file"
    assert sandbox.files.read("../../../../../../etc/passwd") == sandbox.files.read("/etc/passwd")
    assert plane(sandbox).get("/files", params={"path": "/tmp/\0x"}).status_code == 400
