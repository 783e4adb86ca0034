from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.sandboxes.e2b import EngineSandbox, FileMissingError, SandboxEngine
from sandyard.platform.domain.sandboxes.e2b.directory_pages import FilePage
from tests.unit.platform.domain.sandboxes.e2b.command_reader import run

MIB = 1 << 20


async def stream_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def read_all(engine: SandboxEngine, sandbox_id: str, path: str) -> bytes:
    _, chunks = await engine.files.read(sandbox_id, path)
    return b"".join([chunk async for chunk in chunks])


async def test_files_are_written_and_read_unchanged(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    content = bytes(range(256)) * 1000
    path = "/home/user/new/deep/файл 1.bin"
    assert await engine.files.write(sandbox.id, path, stream_chunks(content[:1000], b"", content[1000:])) == len(
        content
    )
    size, chunks = await engine.files.read(sandbox.id, path)
    assert size == len(content)
    assert b"".join([chunk async for chunk in chunks]) == content
    assert await engine.files.write(sandbox.id, path, stream_chunks(b"short")) == 5
    assert await read_all(engine, sandbox.id, path) == b"short"
    assert await engine.files.write(sandbox.id, path, stream_chunks()) == 0
    assert await read_all(engine, sandbox.id, path) == b""
    assert await read_all(engine, sandbox.id, "/proc/version") != b"", "files that report no size are read too"


async def test_large_files_are_streamed(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    block, count = os.urandom(MIB), 128
    sums = hashlib.md5(), hashlib.md5()

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(count):
            sums[0].update(block)
            yield block

    await engine.files.write(sandbox.id, "/tmp/warm", stream_chunks(block))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await engine.files.write(sandbox.id, "/tmp/large", blocks()) == count * MIB
    size, chunks = await engine.files.read(sandbox.id, "/tmp/large")
    assert size == count * MIB
    async for chunk in chunks:
        assert len(chunk) <= 8 * MIB
        sums[1].update(chunk)
    assert sums[0].digest() == sums[1].digest()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024, "memory does not grow with the file"


async def test_a_missing_file_is_reported_by_name(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    for attempt in (
        engine.files.read(sandbox.id, "/no/such file"),
        engine.files.stat(sandbox.id, "/no/such file"),
        engine.files.list(sandbox.id, "/no/such file"),
    ):
        with pytest.raises(FileMissingError, match="'/no/such file'"):
            await attempt


async def test_a_directory_is_not_a_file_and_a_file_not_a_directory(
    engine: SandboxEngine, sandbox: EngineSandbox
) -> None:
    with pytest.raises(InvalidInputError, match="'/etc'"):
        await engine.files.read(sandbox.id, "/etc")
    with pytest.raises(InvalidInputError, match="'/etc'"):
        await engine.files.write(sandbox.id, "/etc", stream_chunks(b"x"))
    with pytest.raises(InvalidInputError, match="'/etc/hostname'"):
        await engine.files.list(sandbox.id, "/etc/hostname")
    too_long = "/tmp/" + "n" * 256
    for call in (
        engine.files.read(sandbox.id, too_long),
        engine.files.write(sandbox.id, too_long, stream_chunks(b"x")),
        engine.files.stat(sandbox.id, too_long),
        engine.files.list(sandbox.id, too_long),
        engine.files.remove(sandbox.id, too_long),
        engine.files.make_dir(sandbox.id, too_long),
    ):
        with pytest.raises(InvalidInputError, match=r"(?i)file name too long"):
            await call
    for path in ("", "/a\0b"):
        with pytest.raises(InvalidInputError, match="path"):
            await engine.files.read(sandbox.id, path)


async def test_an_error_of_the_source_of_an_upload_is_raised_unchanged(
    engine: SandboxEngine, sandbox: EngineSandbox
) -> None:
    class TooLargeError(Exception):
        pass

    async def broken() -> AsyncIterator[bytes]:
        yield b"begin"
        raise TooLargeError

    with pytest.raises(TooLargeError):
        await engine.files.write(sandbox.id, "/tmp/broken", broken())
    assert (await run(engine, sandbox.id, "echo still there")).stdout == b"still there\n"


async def test_directories_are_created_listed_and_removed(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    assert await engine.files.make_dir(sandbox.id, "/tmp/tree/branch") is True
    assert await engine.files.make_dir(sandbox.id, "/tmp/tree/branch") is False
    await engine.files.write(sandbox.id, "/tmp/tree/branch/leaf", stream_chunks(b"green"))
    await run(engine, sandbox.id, "ln -s branch/leaf /tmp/tree/link")

    shallow = {entry.name: entry for entry in (await engine.files.list(sandbox.id, "/tmp/tree", 1)).entries}
    assert {name: entry.kind for name, entry in shallow.items()} == {"branch": "dir", "link": "symlink"}
    assert shallow["link"].symlink_target is not None
    page = await engine.files.list(sandbox.id, "/tmp/tree", 3)
    everything = page.entries
    assert page.next is None
    deep = {entry.path for entry in everything}
    assert await engine.files.list(sandbox.id, "/tmp/tree", 3, first=1, limit=1) == FilePage(everything[1:2], 2)
    assert await engine.files.list(sandbox.id, "/tmp/tree", 3, first=2, limit=1) == FilePage(everything[2:], None)
    branch = await engine.files.stat(sandbox.id, "/tmp/tree/branch")
    assert abs(everything[0].modified_at - branch.modified_at) <= timedelta(microseconds=1), "the SDK rounds timestamps"
    assert replace(everything[0], modified_at=branch.modified_at) == branch
    assert "/tmp/tree/branch/leaf" in deep

    leaf = await engine.files.stat(sandbox.id, "/tmp/tree/branch/leaf")
    assert (leaf.kind, leaf.size, leaf.owner) == ("file", 5, "user")
    await engine.files.remove(sandbox.id, "/tmp/tree")
    await engine.files.remove(sandbox.id, "/tmp/tree")
    with pytest.raises(FileMissingError):
        await engine.files.stat(sandbox.id, "/tmp/tree")


async def test_a_reader_that_stops_early_closes_its_stream(engine: SandboxEngine, sandbox: EngineSandbox) -> None:
    await run(engine, sandbox.id, "head -c 20000000 /dev/zero > /tmp/zeros")
    for _ in range(5):
        _, chunks = await engine.files.read(sandbox.id, "/tmp/zeros")
        await anext(chunks)
        await chunks.aclose()  # type: ignore[attr-defined]
    assert len(await read_all(engine, sandbox.id, "/tmp/zeros")) == 20000000
