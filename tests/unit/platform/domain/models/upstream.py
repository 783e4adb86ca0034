"""A scripted model provider: records every request and answers as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seen:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Reply:
    """The provider's side of one answer."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    async def send(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.head(status, **{"content-type": "application/json", "content-length": str(len(data)), **headers})
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [
            f"HTTP/1.1 {status} Status",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self.writer.drain()

    async def stream(self, **headers: str) -> None:
        await self.head(200, **{"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers})

    async def event(self, data: Any, name: str | None = None) -> None:
        text = (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
        await self.chunk(text.encode())

    async def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


Handler = Callable[[Seen, Reply], Awaitable[None]]


class Upstream:
    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.left = asyncio.Event()  # set when a client closes a connection before the answer is complete
        self.handler: Handler = chat
        self.port = 0
        self.open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                seen = await self._read(reader)
                self.seen.append(seen)
                answering = asyncio.ensure_future(self.handler(seen, Reply(writer)))
                gone = asyncio.ensure_future(_until_gone(reader))
                await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                if not answering.done():
                    self.left.set()
                    answering.cancel()
                    break
                answering.result()
                if writer.is_closing():
                    break
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Seen:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Seen(method, target, headers, body)


async def _until_gone(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():
        await asyncio.sleep(0.01)
        reader._maybe_resume_transport()  # type: ignore[attr-defined] # nothing is read here: only its end is waited for


@contextlib.asynccontextmanager
async def open_upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=1 << 26)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for writer in upstream.open:
            writer.transport.abort()


async def chat(seen: Seen, reply: Reply) -> None:
    """Send a small chat completion: 10 tokens in, 5 out."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    await reply.send({"choices": [{"message": {"role": "assistant", "content": "ok"}}], "usage": usage})
