"""Connections between an engine and a host service: what both ends share.

A connection begins with one line of JSON from the engine, which says what it is for, and one line of the host: its
answer, or an error. After that, a control connection carries frames (`peer.py`), and a stream carries bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, cast

from sandyard.engine.drivers.cluster.codec import decode_error, encode_error
from sandyard.kit.bounded_json import parse
from sandyard.kit.errors import SandyardError, UnreachableError, UnsupportedError

PROTOCOL, OLDEST_PROTOCOL = 1, 1
"""The versions of the protocol that this release speaks. It changes when releases that are one apart would not
understand each other otherwise; fields that are added do not change it."""
MAX_LINE, MAX_LINE_VALUES = 1 << 20, 100_000
HANDSHAKE_S = 10.0
FIRST_LINE_S = 90.0
"""How long a host waits for the first line. The engine opens some connections before it needs them."""
_KEEPALIVE_S = 10
BUFFER_BYTES = 1 << 20  # that wait to be sent, before reading from the other side pauses
CHUNK_LENGTH = struct.Struct("!I")
"""The length in front of each chunk of a file that is transferred. An empty chunk ends the file."""


class LineProtocol(asyncio.Protocol):
    """Receives the first line of a connection, and then leaves the connection to another protocol."""

    def __init__(self) -> None:
        self.first_line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\n")
        if self.first_line.done():
            if len(self._received) > MAX_LINE:
                self.transport.pause_reading()
        elif end >= 0:
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            self.first_line.set_result(line)
        elif len(self._received) > MAX_LINE:
            self.first_line.set_exception(UnreachableError("The first line of a connection is too long."))
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.first_line.done():
            self.first_line.set_exception(UnreachableError("The connection was closed before its first line."))
            self.first_line.exception()  # prevents a warning if nobody awaits it

    def send_line(self, message: Mapping[str, Any]) -> None:
        self.transport.write(json.dumps(message).encode() + b"\n")

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Let another protocol have the connection, with everything that was received after the first line."""
        received = bytes(self._received)
        self._received.clear()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if received:
            protocol.data_received(received)
        if self.transport.is_closing():
            protocol.connection_lost(None)
        else:
            self.transport.resume_reading()

    def make_streams(self) -> Streams:
        """Return the connection as streams."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=BUFFER_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        writer = asyncio.StreamWriter(self.transport, protocol, reader, loop)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self.hand_over(protocol)
        return reader, writer


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def read_message(reader: asyncio.StreamReader) -> Any:
    """Read one line of a stream that is a result or an error, and return or raise it."""
    try:
        line = await reader.readline()
    except (OSError, ValueError) as error:
        raise UnreachableError(f"The connection to the host failed: {error}") from None
    if not line.endswith(b"\n"):
        raise UnreachableError("The host closed the connection.")
    return parse_result(line)


def make_result(value: Any) -> bytes:
    """Return the line that `read_message` understands as this result."""
    return json.dumps({"ok": value}).encode() + b"\n"


def make_failure(error: BaseException) -> bytes:
    """Return the line that `read_message` understands as this error."""
    return json.dumps({"error": encode_error(error)}).encode() + b"\n"


def parse_line(line: bytes) -> dict[str, Any]:
    """Parse a line of JSON. Raises UnreachableError if it is anything else, because the peer then speaks another protocol."""
    try:
        message = parse(line, largest=2 * MAX_LINE, values=MAX_LINE_VALUES)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise UnreachableError("The other end does not speak the protocol of Sandyard's hosts.")
    return message


def parse_result(line: bytes) -> Any:
    """Return the result, or raise the error, in a line."""
    message = parse_line(line)
    if "error" in message:
        raise decode_error(message["error"])
    return message.get("ok")


def encode_chunk(chunk: bytes) -> bytes:
    """Return a chunk of a file with its length in front."""
    return CHUNK_LENGTH.pack(len(chunk)) + chunk


def describe_protocol() -> dict[str, int]:
    """Return the part of the first line by which the other end finds out whether it can talk to this one."""
    return {"protocol": PROTOCOL, "oldest": OLDEST_PROTOCOL}


def check_protocol(message: Mapping[str, Any], other: str, this: str) -> None:
    """Raise UnsupportedError unless both ends have a version of the protocol in common. `other` and `this` name the ends."""
    newest, oldest = message.get("protocol"), message.get("oldest")
    subject = other[0].upper() + other[1:]
    if not isinstance(newest, int) or not isinstance(oldest, int):
        raise UnreachableError(f"{subject} does not speak the protocol of Sandyard's hosts.")
    if newest < OLDEST_PROTOCOL or oldest > PROTOCOL:
        behind = other if newest < OLDEST_PROTOCOL else this
        raise UnsupportedError(
            f"{subject} speaks versions {oldest} to {newest} of the host protocol, and {this} versions {OLDEST_PROTOCOL} "
            f"to {PROTOCOL}. Releases may be one apart: upgrade {behind}."
        )


class _End(asyncio.Protocol):
    """One end of a relay."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)

    def eof_received(self) -> None:
        """Close this end too, after everything that was received before has been sent to the other one."""

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()


async def relay(connection: LineProtocol, target: socket.socket) -> None:
    """Copy bytes between a connection whose first lines were exchanged and a socket, in both directions and in the
    background, until one of them is closed. Both are closed then."""
    far, near = _End(), _End()
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: near, sock=target)
    except BaseException:
        target.close()
        connection.transport.abort()
        raise
    assert near.transport is not None
    near.other, far.other = connection.transport, near.transport
    connection.hand_over(far)
    if near.transport.is_closing():
        connection.transport.close()


def enable_keepalive(transport: asyncio.Transport) -> None:
    """Make the kernel end the connection if the other end has not acknowledged anything for half a minute."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3 * _KEEPALIVE_S * 1000)


def explain_failure(error: BaseException) -> str:
    """Return why a connection to a host could not be opened."""
    if isinstance(error, SandyardError):
        return error.message
    if isinstance(error, TimeoutError):
        return "it does not answer"
    verify = getattr(error, "verify_message", "")
    if verify:
        return f"its certificate is not accepted: {verify}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
