"""WebSocket connections to an application without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI


async def connect(app: FastAPI, url: str, headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return everything the application sends to a client that connects and disconnects at once."""
    messages: list[dict[str, Any]] = []
    incoming = asyncio.Queue[dict[str, Any]]()
    incoming.put_nowait({"type": "websocket.connect"})
    incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def send(message: Any) -> None:
        messages.append(dict(message))

    await asyncio.wait_for(app(make_scope(url, headers), incoming.get, send), 30)
    return messages


def make_scope(url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    parts = urlsplit(url)
    given = {"host": "localhost:8700", **(headers or {})}
    return {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8700),
        "subprotocols": [],
        "state": {},
        "extensions": {"websocket.http.response": {}},
    }


def denial(messages: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Return the status and the problem of a refused connection."""
    assert messages[0]["type"] == "websocket.http.response.start", messages
    return messages[0]["status"], json.loads(b"".join(message.get("body", b"") for message in messages[1:]))
