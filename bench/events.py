"""Measure how long an event takes to reach all readers. Many SSE clients run in one process on plain sockets, so that the
platform is measured and not the clients."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from bench.report import percentile

_MARK = re.compile(rb"bench-(\d{6})-end")
_MARK_SIZE = len("bench-000000-end")
OPEN_SECONDS = 30.0
LAST_SECONDS = 10.0
WARM_UP = 30


@dataclass(frozen=True, slots=True)
class Delivery:
    """Milliseconds from before an event was caused until a client had it, over all clients and events."""

    p50: float
    p95: float
    p99: float
    worst: float
    expected: int
    missed: int


class _Client(asyncio.Protocol):
    """Notes when each mark arrives. Sees only marks, whatever the chunks they come in."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arrived: dict[int, float] = {}
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._tail + data
        if not self.opened.done():
            if b"retry:" not in data:
                self._tail = data
                return
            if data.startswith(b"HTTP/1.1 200"):
                self.opened.set_result(None)
            else:
                self.opened.set_exception(RuntimeError(data[:300].decode(errors="replace")))
        for mark in _MARK.findall(data):
            self.arrived.setdefault(int(mark), now)
        self._tail = data[1 - _MARK_SIZE :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            words = self._tail[:300].decode(errors="replace")
            self.opened.set_exception(RuntimeError(f"the stream was not opened: {exc or words}"))


async def delivery(
    base_url: str,
    token: str,
    cause: Callable[[str], Awaitable[object]],
    *,
    clients: int = 200,
    rate: float = 10,
    seconds: float = 10,
) -> Delivery:
    """Open `clients` streams of `base_url`/api/v1/events and cause `rate` events a second. `cause(mark)` makes one event
    that carries the mark somewhere in its data, and that the token's user may see. `base_url` is plain http."""
    address = urlsplit(base_url)
    request = (
        f"GET {address.path.rstrip('/')}/api/v1/events HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n"
    ).encode()
    loop = asyncio.get_running_loop()
    readers: list[_Client] = []
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            for _ in range(clients):
                _, reader = await loop.create_connection(lambda: _Client(request), address.hostname, address.port or 80)
                readers.append(reader)
            await asyncio.gather(*(reader.opened for reader in readers))
        await _cause_all(cause, WARM_UP, 1 / rate, "warm-{:06}-up")  # what follows 200 logins at once is not counted
        started = await _cause_all(cause, round(rate * seconds), 1 / rate, "bench-{:06}-end")
        await _wait_for(readers, len(started))
    finally:
        for reader in readers:
            if reader.transport is not None:
                reader.transport.abort()
    return _summary(readers, started)


async def _cause_all(cause: Callable[[str], Awaitable[object]], count: int, pause: float, mark: str) -> list[float]:
    """Cause the events one after the other at the given pace. Return when each began."""
    started: list[float] = []
    begin = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + number * pause - time.perf_counter()))
        started.append(time.perf_counter())
        await cause(mark.format(number))
    return started


async def _wait_for(readers: list[_Client], count: int) -> None:
    deadline = time.perf_counter() + LAST_SECONDS
    while any(len(reader.arrived) < count for reader in readers) and time.perf_counter() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def _summary(readers: list[_Client], started: list[float]) -> Delivery:
    times = [(at - started[mark]) * 1000 for reader in readers for mark, at in reader.arrived.items()]
    if not times:
        raise RuntimeError("no event arrived at any client")
    expected = len(readers) * len(started)
    p50, p95, p99 = (percentile(times, q) for q in (0.5, 0.95, 0.99))
    return Delivery(p50, p95, p99, max(times), expected, expected - len(times))
