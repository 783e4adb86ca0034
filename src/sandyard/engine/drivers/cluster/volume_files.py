"""The files of a volume on another host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Sequence
from typing import Any

from sandyard.engine.contract import FileEntry, FileOwner, FileReader
from sandyard.engine.drivers.cluster import codec
from sandyard.engine.drivers.cluster.connections import CHUNK_LENGTH, Streams, encode_chunk, read_message
from sandyard.engine.drivers.cluster.layers import CHUNK_BYTES, MAX_CHUNK_BYTES
from sandyard.engine.drivers.cluster.link import HostLink
from sandyard.kit.errors import ConflictError, SandyardError, UnreachableError

_MAX_SIZE = 1 << 50


class RemoteVolumeFiles:
    """Implements `contract.VolumeFiles` over the connection to the host."""

    def __init__(self, link: HostLink, volume_id: str) -> None:
        self._link = link
        self._volume_id = volume_id

    async def _call(self, operation: str, path: str, **arguments: Any) -> Any:
        return await self._link.call("change_volume", do=operation, volume=self._volume_id, path=path, **arguments)

    async def _get_entry(self, operation: str, path: str, **arguments: Any) -> FileEntry:
        entry = await self._call(operation, path, **arguments)
        with self._link.translate_parse_errors():
            return codec.decode_entry(entry)

    async def stat(self, path: str) -> FileEntry:
        return await self._get_entry("stat", path)

    async def list(self, path: str, depth: int = 1) -> Sequence[FileEntry]:
        entries = await self._call("list", path, depth=depth)
        with self._link.translate_parse_errors():
            return [codec.decode_entry(entry) for entry in entries]

    async def make_dir(self, path: str, owner: FileOwner, *, force: bool) -> FileEntry:
        return await self._get_entry("make_dir", path, owner=codec.encode_owner(owner), force=force)

    async def change(self, path: str, owner: FileOwner) -> FileEntry:
        return await self._get_entry("change", path, owner=codec.encode_owner(owner))

    async def remove(self, path: str) -> None:
        await self._call("remove", path)

    async def open(self, path: str) -> FileReader:
        connection, answer = await self._link.open_stream("send_file", volume=self._volume_id, path=path)
        with self._link.translate_parse_errors():
            size = int(answer["size"])
            if not 0 <= size <= _MAX_SIZE:
                raise ValueError("the size of the file is not valid")
        return RemoteFileReader(connection.make_streams(), size)

    async def write(
        self, path: str, chunks: AsyncIterable[bytes], owner: FileOwner, *, force: bool, reserve: int = 0
    ) -> FileEntry:
        connection, _ = await self._link.open_stream(
            "receive_file",
            volume=self._volume_id,
            path=path,
            owner=codec.encode_owner(owner),
            force=force,
            reserve=reserve,
        )
        reader, writer = connection.make_streams()
        outcome = asyncio.ensure_future(read_message(reader))
        try:
            async for chunk in chunks:
                for start in range(0, len(chunk), CHUNK_BYTES):
                    await _send_chunk(writer, chunk[start : start + CHUNK_BYTES])
                if outcome.done():  # before the last chunk, so the host has failed to write the file
                    break
            else:
                await _send_chunk(writer, b"")
            entry = await outcome
            with self._link.translate_parse_errors():
                return codec.decode_entry(entry)
        finally:
            outcome.cancel()
            with contextlib.suppress(asyncio.CancelledError, SandyardError):
                await outcome
            writer.close()


async def _send_chunk(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    """Send a chunk with its length in front. If the connection is lost, do nothing: the outcome of the transfer says why."""
    with contextlib.suppress(OSError):
        writer.write(encode_chunk(chunk))
        await writer.drain()


class RemoteFileReader:
    """Implements `contract.FileReader` for a stream of chunks of a file with `size` bytes."""

    def __init__(self, streams: Streams, size: int) -> None:
        self.size = size
        self._reader, self._writer = streams
        self._chunk = b""
        self._remaining = size

    async def read(self, max_bytes: int) -> bytes:
        if not self._remaining:
            return b""
        if not self._chunk:
            try:
                (length,) = CHUNK_LENGTH.unpack(await self._reader.readexactly(CHUNK_LENGTH.size))
                if length > min(MAX_CHUNK_BYTES, self._remaining):
                    raise UnreachableError("The host sent more of the file than it has announced.")
                self._chunk = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, OSError):
                raise ConflictError("The file became shorter while it was read, or its host is unreachable.") from None
            if not self._chunk:
                raise ConflictError("The file became shorter while it was read.")
        part, self._chunk = self._chunk[:max_bytes], self._chunk[max_bytes:]
        self._remaining -= len(part)
        return part

    async def close(self) -> None:
        self._writer.transport.abort()
