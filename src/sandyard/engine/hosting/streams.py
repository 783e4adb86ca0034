"""Streams from an engine to this host: connections to sandboxes, layers, and the content of files in volumes.

The first line is the engine's request, answered with a line that has the result or an error. Raw bytes follow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from sandyard.engine.drivers.cluster import codec
from sandyard.engine.drivers.cluster.codec import Json
from sandyard.engine.drivers.cluster.connections import (
    CHUNK_LENGTH,
    LineProtocol,
    encode_chunk,
    explain_failure,
    make_failure,
    make_result,
    relay,
)
from sandyard.engine.drivers.cluster.layers import CHUNK_BYTES, MAX_CHUNK_BYTES, LayerPackage
from sandyard.engine.hosting.service import HostService
from sandyard.kit.errors import InvalidInputError, SandyardError, UnreachableError

_DRAIN_S = 10.0


async def serve_stream(service: HostService, connection: LineProtocol, message: Json) -> None:
    """Handle the request in the first line of a stream, and transfer the bytes."""
    try:
        service.check_owner(message)
        kind, arguments = str(message["stream"]), message["arguments"]
        if kind == "connect":
            await _connect(service, connection, arguments)
            return
        transfer = _TRANSFERS.get(kind)
        if transfer is None:
            raise InvalidInputError(f"This host does not know the stream {kind!r}. Upgrade it.")
    except (SandyardError, KeyError, TypeError, ValueError) as error:
        connection.transport.write(make_failure(error))
        connection.transport.close()
        return
    reader, writer = connection.make_streams()
    try:
        await transfer(service, reader, writer, arguments)
        await writer.drain()
    except (SandyardError, OSError, KeyError, TypeError, ValueError) as error:
        shown = error if isinstance(error, SandyardError) else UnreachableError(explain_failure(error))
        with contextlib.suppress(OSError, TimeoutError):
            writer.write(make_failure(shown))
            async with asyncio.timeout(_DRAIN_S):  # a connection with unread data would be reset, and the error lost
                while await reader.read(CHUNK_BYTES):
                    pass
    finally:
        writer.close()


async def _connect(service: HostService, connection: LineProtocol, arguments: Json) -> None:
    handle = codec.decode_handle(arguments["handle"])
    target = await service.driver.connect(handle, int(arguments["port"]))
    connection.transport.write(make_result(None))
    await relay(connection, target)


async def _send_layer(
    service: HostService, _: asyncio.StreamReader, writer: asyncio.StreamWriter, arguments: Json
) -> None:
    async with service.copies.open(str(arguments["layer"])) as chunks:
        writer.write(make_result(None))
        async for chunk in chunks:
            writer.write(chunk)
            await writer.drain()


async def _receive_layer(
    service: HostService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, arguments: Json
) -> None:
    package = LayerPackage.from_dict(arguments["package"])
    writer.write(make_result(None))
    await service.copies.add(str(arguments["layer"]), package, read_bytes(reader, package.size))
    writer.write(make_result(None))


async def _send_file(
    service: HostService, _: asyncio.StreamReader, writer: asyncio.StreamWriter, arguments: Json
) -> None:
    """Send a file of a volume: its size, then chunks with a length prefix. An empty chunk marks the end; if it is missing, the
    file was truncated in the meantime."""
    file = await service.driver.get_volume_files(str(arguments["volume"])).open(str(arguments["path"]))
    try:
        writer.write(make_result({"size": file.size}))
        while chunk := await file.read(CHUNK_BYTES):
            writer.write(encode_chunk(chunk))
            await writer.drain()
        writer.write(encode_chunk(b""))
    finally:
        await file.close()


async def _receive_file(
    service: HostService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, arguments: Json
) -> None:
    """Write a file of a volume. The first result tells the engine that the file can be written, and to send the chunks."""
    started = False

    async def receive() -> AsyncIterator[bytes]:
        nonlocal started
        started = True
        writer.write(make_result(None))
        async for chunk in read_chunks(reader):
            yield chunk

    entry = await service.driver.get_volume_files(str(arguments["volume"])).write(
        str(arguments["path"]),
        receive(),
        codec.decode_owner(arguments["owner"]),
        force=bool(arguments["force"]),
        reserve=int(arguments["reserve"]),
    )
    if not started:
        raise SandyardError("Internal error: the driver wrote the file without reading its content.")
    writer.write(make_result(codec.encode_entry(entry)))


_TRANSFERS: Any = {
    "send_layer": _send_layer,
    "receive_layer": _receive_layer,
    "send_file": _send_file,
    "receive_file": _receive_file,
}


async def read_bytes(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    """Yield exactly that many bytes. Raises UnreachableError if there are fewer."""
    while size:
        chunk = await reader.read(min(size, CHUNK_BYTES))
        if not chunk:
            raise UnreachableError("The connection ended before the end of the transfer.")
        size -= len(chunk)
        yield chunk


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield chunks up to the empty one that ends a transfer. Raises UnreachableError if it is missing."""
    try:
        while size := CHUNK_LENGTH.unpack(await reader.readexactly(CHUNK_LENGTH.size))[0]:
            if size > MAX_CHUNK_BYTES:
                raise InvalidInputError("A chunk of the transfer is too large.")
            yield await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise UnreachableError("The connection ended before the end of the transfer.") from None
