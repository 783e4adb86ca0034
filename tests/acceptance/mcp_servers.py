"""Two MCP servers with one tool each: a command for a sandbox, using only the standard library, and one over streamable HTTP, with a key."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.harness.platform import until

COMMAND = """
import json, os, sys

TOOL = {"name": "inner_word", "description": "The word inside.", "inputSchema": {"type": "object", "properties": {}}}


def answer(method, params):
    if method == "initialize":
        info = {"name": "inside", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "the inner word is " + os.environ["INNER_WORD"]}]}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked["method"], asked.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@dataclass
class HttpMcpServer:
    """`keys` are the keys that requests sent. A request with another key gets 401."""

    key: str
    url: str = ""
    keys: list[str] = field(default_factory=list)


@contextlib.contextmanager
def url_server(key: str, word: str) -> Iterator[HttpMcpServer]:
    created = HttpMcpServer(key)
    server = MCPServer("outside", version="1")

    @server.tool()
    def outer_word(echo: str) -> str:
        """Return the word that the server outside of the sandbox knows."""
        return f"the outer word is {word}, you said {echo}, and the key is {key}"

    app = _ApiKeyMiddleware(created, server.streamable_http_app())
    listener = socket.create_server(("127.0.0.1", 0))
    created.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    http_server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=http_server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        until(lambda: http_server.started)
        yield created
    finally:
        http_server.should_exit = True
        thread.join(30)
        listener.close()


class _ApiKeyMiddleware:
    def __init__(self, server: HttpMcpServer, app: ASGIApp) -> None:
        self._server = server
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            sent_key = dict(scope["headers"]).get(b"x-api-key", b"").decode()
            self._server.keys.append(sent_key)
            if sent_key != self._server.key:
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)
