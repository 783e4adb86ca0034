"""The least HTTP client there is, for measurements in which a client must not be what is measured."""

from __future__ import annotations

import asyncio
from typing import cast


class Wire(asyncio.Protocol):
    """One kept connection that asks one thing at a time: the least a client can do."""

    def __init__(self) -> None:
        self._data = b""
        self._answer: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport | None = None
        self.body = b""  # of the last response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes) -> asyncio.Future[int]:
        """Return the status of the response."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if end else 0
        if end and len(body) >= length and self._answer is not None:
            self._data, self.body = b"", body
            self._answer.set_result(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server hung up"))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()
