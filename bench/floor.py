"""A server that does nothing: it answers the SDK with canned bytes, so that what is left is the SDK and the socket.

Run as a process of its own (`python -m bench.floor`), because the engine is one too; prints its port and serves until
its standard input closes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import cast

import httptools
import uvloop

SANDBOX = {
    "sandboxID": "ifloor0000000000000",
    "templateID": "base",
    "clientID": "floor",
    "envdVersion": "0.6.4",
    "envdAccessToken": "floor",
    "domain": "floor.invalid",
}
DOWNLOAD = b"\0" * (1 << 20)


def reply(status: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def frame(message: object, flag: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return bytes([flag]) + len(data).to_bytes(4, "big") + data


EXEC = b"".join(
    [
        frame({"event": {"start": {"pid": 7}}}),
        frame({"event": {"data": {"stdout": base64.b64encode(b"hi\n").decode()}}}),
        frame({"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}}),
        frame({}, flag=2),
    ]
)
TEMPLATE = {"templateID": "floor", "buildID": "build", "public": False, "names": ["floor"], "tags": [], "aliases": []}
STATUS = {"templateID": "floor", "buildID": "build", "status": "ready", "logs": [], "logEntries": []}
ANSWERS = {
    "templates": reply("202 Accepted", json.dumps(TEMPLATE).encode()),
    "build": reply("202 Accepted"),
    "status": reply("200 OK", json.dumps(STATUS).encode()),
    "sandboxes": reply("201 Created", json.dumps(SANDBOX).encode()),
    "fork": reply("201 Created", json.dumps([{"sandbox": SANDBOX}]).encode()),
    "Start": reply("200 OK", EXEC, "application/connect+json"),
    "pause": reply("204 No Content"),
    "connect": reply("201 Created", json.dumps(SANDBOX).encode()),
    "files": reply("200 OK", json.dumps([{"name": "f", "path": "/f", "type": "file"}]).encode()),
}


class Floor(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_message_complete(self) -> None:
        path, _, query = self.url.decode().partition("?")
        verb = path.rsplit("/", 1)[-1]
        self.url = b""
        if verb == "files" and self.parser.get_method() == b"GET":
            size = 100 * len(DOWNLOAD) if "big" in query else 1
            self.transport.write(
                f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n".encode()
            )
            for _ in range(size // len(DOWNLOAD)):
                self.transport.write(DOWNLOAD)
            self.transport.write(DOWNLOAD[: size % len(DOWNLOAD)])
        elif verb == "health":
            self.transport.write(reply("204 No Content"))
        else:
            self.transport.write(ANSWERS.get(verb) or reply("204 No Content"))


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Floor, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
