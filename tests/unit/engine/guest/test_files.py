"""Uploads, downloads and listings of the guest agent, without its process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sandyard.engine.guest.config import GuestConfig
from sandyard.engine.guest.files import trees
from sandyard.engine.guest.files.download import Downloads
from sandyard.engine.guest.files.service import FilesystemService
from sandyard.engine.guest.files.target import Target
from sandyard.engine.guest.files.upload import Uploads
from sandyard.engine.guest.files.watch import Watch
from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.sandbox import PathError, Sandbox
from sandyard.engine.guest.users import User
from sandyard.engine.guest.wire.connection import Connection
from sandyard.engine.guest.wire.http1 import Exchange, HttpError, read_request
from tests.harness.descriptors import list_open_files

DEPTH = sys.getrecursionlimit() + 10
USER = User("user", os.getuid(), os.getgid(), "/", "/bin/sh", (os.getgid(),))


def handle(handler: Callable[[Exchange], Awaitable[None]], request: bytes) -> bytes:
    """Return the response of a handler to one request."""
    loop = Loop()
    ours, theirs = socket.socketpair()
    conn, client = Connection(loop, ours), Connection(loop, theirs)

    async def serve() -> None:
        try:
            parsed = await read_request(conn)
            assert parsed is not None
            await handler(Exchange(conn, parsed))
        finally:
            conn.close()

    async def main() -> bytes:
        await client.send(request)
        serving = loop.create_task(serve())
        response, view = b"", memoryview(bytearray(1 << 16))
        while count := await client.receive_into(view, 10):
            response += view[:count]
        await serving
        return response

    try:
        return loop.run(main())
    finally:
        client.close()
        loop.close()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(GuestConfig(root=str(tmp_path)))


def test_a_file_of_proc_is_downloaded_completely() -> None:
    # The kernel returns such files one page at a time.
    assert Path("/proc/self/smaps").stat().st_size == 0
    downloads = Downloads(Sandbox(GuestConfig(root="/usr/..")))
    head, _, body = handle(downloads.get, b"GET /files?path=/proc/self/smaps HTTP/1.1\r\nHost: x\r\n\r\n").partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200")
    assert len(body) > 2 * os.sysconf("SC_PAGE_SIZE")
    assert b"VmFlags" in body[-200:]


@pytest.fixture
def no_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without extended attributes."""

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    for name in ("getxattr", "setxattr", "listxattr"):
        monkeypatch.setattr(os, name, refuse)


@pytest.mark.usefixtures("no_attributes")
def test_an_upload_whose_metadata_cannot_be_stored_leaves_no_file(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(HttpError, match="does not store metadata"):
        Target(sandbox, "/new", USER, {"key": "value"}, 3)
    assert not (tmp_path / "new").exists()
    assert list_open_files(tmp_path) == []


@pytest.mark.usefixtures("no_attributes")
def test_an_upload_whose_metadata_cannot_be_stored_keeps_the_existing_file(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "existing").write_text("precious")

    async def upload() -> None:
        with Target(sandbox, "/existing", USER, {"key": "value"}, 3) as target:
            target.write(memoryview(b"new"))
            await target.finish()

    loop = Loop()
    with pytest.raises(HttpError, match="does not store metadata"):
        loop.run(upload())
    loop.close()
    assert (tmp_path / "existing").read_text() == "precious"


@pytest.mark.parametrize("source", ["/folder//file", "/link/file", "/folder/./file"])
def test_a_file_cannot_be_composed_of_itself_under_another_spelling(tmp_path: Path, source: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("precious")
    (tmp_path / "link").symlink_to("folder")
    uploads = Uploads(Sandbox(GuestConfig()))
    body = json.dumps(
        {"source_paths": [f"{tmp_path}{source}"], "destination": f"{tmp_path}/folder/file", "username": "root"}
    ).encode()
    request = b"POST /files/compose HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with pytest.raises(HttpError, match="cannot be the same as destination"):
        handle(uploads.compose, request)
    assert (tmp_path / "folder/file").read_text() == "precious"


def test_a_directory_replaced_during_a_listing_does_not_fail_it(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/inner").mkdir(parents=True)
    (tmp_path / "b").touch()
    opened = sandbox.open_directory

    def replace_and_open(path: str) -> int:
        if path.endswith("/a"):
            shutil.rmtree(path)
            Path(path).touch()
        return opened(path)

    monkeypatch.setattr(sandbox, "open_directory", replace_and_open)
    loop = Loop()
    listed = json.loads(loop.run(FilesystemService(sandbox).list_directory("/", 2)))
    loop.close()
    assert [entry["name"] for entry in listed["entries"]] == ["a", "b"]


def test_a_path_with_a_lone_surrogate_is_invalid(sandbox: Sandbox) -> None:
    with pytest.raises(PathError):
        sandbox.resolve("/\ud800", USER)
    assert sandbox.resolve("/\udcff", USER) == "/\udcff"


@pytest.fixture
def deep_folder(tmp_path: Path) -> Iterator[int]:
    """The innermost directory of a tree below /top. Removed here, because shutil.rmtree cannot."""
    (tmp_path / "top").mkdir()
    folder = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    yield folder
    os.close(folder)
    for _ in trees.remove(str(tmp_path / "top")):
        pass


def test_a_deeply_nested_directory_can_be_watched(sandbox: Sandbox, deep_folder: int) -> None:
    events: list[str] = []
    loop = Loop()
    watch = Watch(
        loop,
        sandbox,
        "/top",
        recursive=True,
        include_entry=False,
        on_event=lambda event: events.append(event["name"]),
        on_error=pytest.fail,
    )
    os.mkdir("new", dir_fd=deep_folder)
    watch.read_events()
    watch.close()
    loop.close()
    assert events == ["d/" * DEPTH + "new"]
