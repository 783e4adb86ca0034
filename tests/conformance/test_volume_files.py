"""The files of volumes, used from outside of sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandyard.engine.contract import FileKind, FileOwner, Mount, VolumeFiles
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from tests.conformance.harness import DriverHarness

VOLUME = "files1"
DEFAULT = FileOwner()
CHUNK_BYTES = 1 << 20


@pytest_asyncio.fixture(loop_scope="module")
async def files(harness: DriverHarness) -> AsyncIterator[VolumeFiles]:
    await harness.driver.create_volume(VOLUME, 64)
    yield harness.driver.get_volume_files(VOLUME)
    await harness.clear()
    await harness.driver.delete_volume(VOLUME)


async def iterate(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def write(files: VolumeFiles, path: str, *chunks: bytes, force: bool = False) -> None:
    await files.write(path, iterate(*chunks), DEFAULT, force=force)


async def read(files: VolumeFiles, path: str) -> bytes:
    reader = await files.open(path)
    content = b""
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            assert len(chunk) <= CHUNK_BYTES
            content += chunk
        assert reader.size == len(content)
    finally:
        await reader.close()
        await reader.close()
    return content


async def list_paths(files: VolumeFiles, path: str = "/", depth: int = 1) -> list[str]:
    return [entry.path for entry in await files.list(path, depth)]


async def test_a_file_is_written_and_read_in_chunks(files: VolumeFiles) -> None:
    chunks = [bytes([number]) * CHUNK_BYTES for number in range(5)]
    entry = await files.write("/folder/file", iterate(*chunks, b"end"), FileOwner(mode=0o600), force=True)
    assert (entry.name, entry.path, entry.kind, entry.mode) == ("file", "/folder/file", FileKind.FILE, 0o600)
    assert entry.size == 5 * CHUNK_BYTES + 3
    assert await files.stat("folder/file") == entry
    assert await read(files, "folder/file") == b"".join(chunks) + b"end"


async def test_directories_are_created_listed_and_removed(files: VolumeFiles) -> None:
    await files.make_dir("a", DEFAULT, force=False)
    with pytest.raises(ConflictError):
        await files.make_dir("a", DEFAULT, force=False)
    with pytest.raises(NotFoundError):
        await files.make_dir("b/c", DEFAULT, force=False)
    assert (await files.make_dir("b/c", DEFAULT, force=True)).kind is FileKind.DIRECTORY
    await write(files, "b/c/file", b"x")
    assert await list_paths(files) == ["/a", "/b"]
    assert await list_paths(files, "/", 3) == ["/a", "/b", "/b/c", "/b/c/file"]
    await files.remove("b")
    assert await list_paths(files) == ["/a"]
    for path in ("b", "b/c/file", "nothing"):
        with pytest.raises(NotFoundError):
            await files.stat(path)
    with pytest.raises(InvalidInputError):
        await files.remove("/")
    with pytest.raises(InvalidInputError):
        await files.open("a")


async def test_permissions_are_changed(files: VolumeFiles) -> None:
    await write(files, "file", b"x")
    assert (await files.change("file", FileOwner(mode=0o640))).mode == 0o640
    assert (await files.stat("file")).mode == 0o640


async def test_a_path_that_is_taken_is_reported_before_any_data_is_requested(files: VolumeFiles) -> None:
    await write(files, "file", b"first")

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("data was requested")
        yield b""

    with pytest.raises(ConflictError):
        await files.write("file", never(), DEFAULT, force=False)
    await write(files, "file", b"second", force=True)
    assert await read(files, "file") == b"second"


async def test_an_incomplete_file_is_never_visible(files: VolumeFiles) -> None:
    written = asyncio.Event()

    async def break_off() -> AsyncIterator[bytes]:
        yield b"x" * CHUNK_BYTES
        assert await list_paths(files) == []
        written.set()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await files.write("file", break_off(), DEFAULT, force=False)
    assert written.is_set() and await list_paths(files) == []

    async def hang() -> AsyncIterator[bytes]:
        yield b"x" * CHUNK_BYTES
        written.set()
        await asyncio.get_running_loop().create_future()

    written.clear()
    writing = asyncio.ensure_future(files.write("file", hang(), DEFAULT, force=False))
    await written.wait()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert await list_paths(files) == []


async def test_sandboxes_and_clients_see_the_same_files(harness: DriverHarness, files: VolumeFiles) -> None:
    _, agent = await harness.create(mounts=(Mount(VOLUME, "/data"),))
    await write(files, "from-client", b"one\n")
    assert await agent.read("data/from-client") == "one\n"
    await agent.run("echo two > data/from-sandbox; ln -s from-sandbox data/link; ln -s /etc data/out")
    assert await read(files, "link") == b"two\n"
    link = await files.stat("link")
    assert link.kind is FileKind.SYMLINK and link.target == "from-sandbox"
    with pytest.raises(NotFoundError):
        await files.open("out/passwd")  # resolved inside the volume


async def test_a_volume_that_does_not_exist_is_reported(harness: DriverHarness) -> None:
    files = harness.driver.get_volume_files("nothing")
    for operation in (files.stat("file"), files.list("/"), files.open("file"), files.remove("file")):
        with pytest.raises(NotFoundError):
            await operation
    with pytest.raises(NotFoundError):
        await write(files, "file", b"x", force=True)
