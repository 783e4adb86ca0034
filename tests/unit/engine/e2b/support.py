"""Fakes for the E2B endpoint: sandboxes that are plain sockets, and a real server in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandyard.engine.contract import AGENT_PORT, Handle, Limits
from sandyard.engine.e2b.dataplane.asgi import App, Receive, Scope, Send
from sandyard.engine.e2b.dataplane.gateway import Gateway
from sandyard.engine.e2b.dataplane.tunnel import Tunnel
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.engine.sandboxes.model import Network, Page, Sandbox, SandboxQuery, State
from sandyard.kit.errors import UnreachableError
from sandyard.kit.secret import Secret
from tests.harness.asgi import serve_app

TOKEN = "token-of-the-sandbox"
API_KEY = "e2b_key"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def sandbox(sandbox_id: str = "iabc", **changes: Any) -> Sandbox:
    record = Sandbox(
        id=sandbox_id,
        template_id="t",
        state=State.RUNNING,
        handle=Handle(sandbox_id, "none"),
        layers=(),
        limits=Limits(),
        network=Network(),
        created_at=0.0,
        started_at=0.0,
        ends_at=0.0,
        timeout_s=0.0,
        access_token=Secret(TOKEN),
    )
    return replace(record, **changes)


class FakeSandboxes:
    """The part of the sandbox service that the data plane uses. A port is open when a test listens on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listener: Callable[[str, str], None] | None = None
        self._servers: list[asyncio.Server] = []
        self.records: dict[str, Sandbox] = {"iabc": sandbox()}
        self.dials = 0

    async def listen(
        self, handler: Handler, port: int = AGENT_PORT, sandbox_id: str = "iabc", *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._servers.append(await asyncio.start_unix_server(handler, self._path(sandbox_id, port), ssl=tls))

    async def dial(self, sandbox_id: str, port: int) -> socket.socket:
        self.dials += 1
        record = self.records.get(sandbox_id)
        if record is not None and not record.running and record.auto_resume:
            self.records[sandbox_id] = replace(record, state=State.RUNNING)
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, self._path(sandbox_id, port))
        except OSError:
            sock.close()
            raise UnreachableError("The sandbox is running but port is not open") from None
        return sock

    def find(self, sandbox_id: str) -> Sandbox | None:
        return self.records.get(sandbox_id)

    def list(self, query: SandboxQuery) -> Page[Sandbox]:
        """Return pages of one item, so that callers that ignore the cursor fail."""
        names = sorted(self.records)
        names = names[names.index(query.cursor) + 1 :] if query.cursor else names
        return Page(tuple(self.records[name] for name in names[:1]), names[0] if len(names) > 1 else None)

    def on_interrupted(self, listener: Callable[[str, str], None]) -> None:
        self._listener = listener

    def interrupt(self, sandbox_id: str = "iabc", reason: str = "killed") -> None:
        if reason == "paused":
            self.records[sandbox_id] = replace(self.records[sandbox_id], state=State.PAUSED)
        else:
            del self.records[sandbox_id]
        assert self._listener is not None
        self._listener(sandbox_id, reason)

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def _path(self, sandbox_id: str, port: int) -> str:
        return str(self._folder / f"{sandbox_id}-{port}")


async def control_api(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": b"control"})


def serving(app: App, ws: Any = "none") -> contextlib.AbstractAsyncContextManager[int]:
    """Serve the application with the engine's own server and yield its port."""
    return serve_app(app, http=EngineProtocol, ws=ws, proxy_headers=False)


class GatewayHarness:
    """A running gateway, the fake sandboxes behind it, and client connections to it."""

    def __init__(self, sandboxes: FakeSandboxes, gateway: Gateway, port: int) -> None:
        self.sandboxes = sandboxes
        self.gateway = gateway
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        self._writers.append(writer)
        return reader, writer

    async def send_request(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send one request on a new connection and return status, headers and body."""
        reader, writer = await self.connect()
        writer.write(request)
        return await read_reply(reader)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def start_gateway() -> AsyncIterator[GatewayHarness]:
    with tempfile.TemporaryDirectory(prefix="e2b-") as folder:
        sandboxes = FakeSandboxes(Path(folder))
        gateway = Gateway(sandboxes, control_api, is_api_key=lambda text: text == API_KEY)  # type: ignore[arg-type]
        async with serving(gateway, Tunnel.factory(gateway)) as port:
            harness = GatewayHarness(sandboxes, gateway, port)
            try:
                yield harness
            finally:
                harness.close()
                gateway.close()
                sandboxes.close()


def request(method: str = "GET", path: str = "/x", *lines: str, body: bytes = b"", port: int = AGENT_PORT) -> bytes:
    """Build a request to the sandbox `iabc` with its token."""
    head = [f"{method} {path} HTTP/1.1", "Host: engine", "E2b-Sandbox-Id: iabc", f"E2b-Sandbox-Port: {port}"]
    head += [f"X-Access-Token: {TOKEN}", *lines]
    if body:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Read one reply. Raises asyncio.IncompleteReadError if it is cut off."""
    status, headers = await read_reply_head(reader)
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while chunk := await read_chunk(reader):
            body += chunk
        return status, headers, body
    return status, headers, await reader.readexactly(int(headers.get("content-length", "0")))


async def read_reply_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    return int(lines[0].split(" ")[1]), headers


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
    return (await reader.readexactly(size + 2))[:-2]


async def read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    """Read one request as a sandbox receives it: request line, headers, and the body if its length is known."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while chunk := await read_chunk(reader):
            body += chunk
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return lines[0], headers, body


def reply(body: bytes = b"", status: str = "200 OK", *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body
