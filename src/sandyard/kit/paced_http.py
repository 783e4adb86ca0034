"""Protect this process from servers that it does not control: limit the head of a response, and read in turns with everything else.

httpx parses all the data that it has read without a pause and waits for the head of a response as long as any data arrives. A server could
occupy the event loop with endless interim (1xx) responses or very many tiny pieces.
"""

from __future__ import annotations

import re
import ssl
import time
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

from sandyard.kit.pacing import take_turn

READ_BYTES = 16 << 10
"""Maximum size of one read: that of a TLS record."""
HEAD_BYTES = 64 << 10
"""Maximum size of a response's head, together with the interim responses before it."""
HEAD_LINES, INTERIM_RESPONSES = 500, 20
_HEAD_READ_BYTES = 4 << 10
_INTERIM = re.compile(rb"\nHTTP/\d\.\d 1")
_INTERIM_LENGTH = len(b"\nHTTP/1.1 1")


def limit_responses(client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Limit the responses of all servers, with and without a proxy, and return the client. The read timeout also limits the time in
    which the whole head must arrive."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.AsyncHTTPTransport):
            pace_reads(transport)
    client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], _limit_head]}
    return client


def pace_reads(transport: httpx.AsyncHTTPTransport) -> httpx.AsyncHTTPTransport:
    """Make all connections of the transport read in turns and return it. httpx has no option for this."""
    transport._pool._network_backend = PacedBackend(transport._pool._network_backend)
    return transport


class PacedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections with another backend. Their reads are small and take turns with those of other connections."""

    def __init__(self, inner: httpcore.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _PacedStream(await self._inner.connect_tcp(*args, **options))

    async def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _PacedStream(await self._inner.connect_unix_socket(*args, **options))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _PacedStream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the interface has it
        head = _RECEIVED_HEAD.get()
        if head is None:
            data = await self._inner.read(min(max_bytes, READ_BYTES), timeout)
        else:
            data = await self._inner.read(min(max_bytes, _HEAD_READ_BYTES), head.get_remaining_seconds())
            head.add(data)
        await take_turn("http")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        return _PacedStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Head:
    """The head of a response while it is received."""

    def __init__(self, seconds: float | None) -> None:
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._size = self._lines = self._interim = 0
        self._end = b""

    def get_remaining_seconds(self) -> float | None:
        """Raise ReadTimeout if the time is over."""
        if self._deadline is None:
            return None
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise httpcore.ReadTimeout("The server did not send the head of its response in time.")
        return remaining

    def add(self, data: bytes) -> None:
        """Raise RemoteProtocolError if the head is too large. Only what came before `data` is measured, because this may be the body."""
        if self._size >= HEAD_BYTES or self._lines >= HEAD_LINES:
            raise httpcore.RemoteProtocolError("The head of the response is too large.")
        self._size += len(data)
        self._lines += data.count(b"\n")
        recent = self._end + data
        self._interim += len(_INTERIM.findall(recent))
        self._end = recent[1 - _INTERIM_LENGTH :]
        if self._interim > INTERIM_RESPONSES:
            raise httpcore.RemoteProtocolError("The server sent too many interim (1xx) responses.")


_RECEIVED_HEAD: ContextVar[_Head | None] = ContextVar("received_head", default=None)


async def _limit_head(request: httpx.Request) -> None:
    """Limit the head of the response to this request. httpcore reads it in the task that sends the request."""

    async def trace(event: str, _: object) -> None:
        if event.endswith(".receive_response_headers.started"):
            _RECEIVED_HEAD.set(_Head(request.extensions.get("timeout", {}).get("read")))
        elif ".receive_response_headers." in event:  # complete or failed
            _RECEIVED_HEAD.set(None)

    request.extensions = {**request.extensions, "trace": trace}
