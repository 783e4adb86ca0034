"""The client side of the SSH WebSocket: forwards standard input to it, and what it receives to standard output."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from sandyard.cli.config import Login
from sandyard.cli.connection import quote_segment
from sandyard.cli.errors import FAILED, ApiError, NoResponseError, NotLoggedInError
from sandyard.cli.output import echo, escape

OPEN_SECONDS = 120.0
"""A sandbox may have to be created or resumed first."""
CHUNK = 64 << 10


def forward(login: Login, sandbox_id: str, public_key: str, on_host_key: Callable[[str], None]) -> int:
    """Forward until either side ends and return the exit code. `on_host_key` gets the host key before any data is forwarded.
    Raises ApiError and NoResponseError."""
    try:
        return asyncio.run(_forward(login, sandbox_id, public_key, on_host_key))
    except InvalidStatus as error:
        raise _to_error(login, error) from None
    except (OSError, TimeoutError, WebSocketException) as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise NoResponseError(f"Could not open an SSH connection through {login.url}: {reason}.") from None


async def _forward(login: Login, sandbox_id: str, public_key: str, on_host_key: Callable[[str], None]) -> int:
    base = "ws" + login.url.removeprefix("http")
    address = f"{base}/api/v1/sandboxes/{quote_segment(sandbox_id)}/ssh?{urlencode({'key': public_key})}"
    headers = {"Authorization": f"Bearer {login.token.reveal()}"} if login.token else {}
    proxy: Literal[True] | None = None if login.is_local else True
    async with connect_websocket(
        address,
        additional_headers=headers,
        proxy=proxy,
        compression=None,  # encrypted data cannot be compressed
        max_size=None,
        open_timeout=OPEN_SECONDS,
    ) as socket:
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    await asyncio.to_thread(_write, message)
                    continue
                control: Any = json.loads(message)
                if control["type"] == "opened":
                    on_host_key(control["hostKey"])
                    _start_reading(socket, asyncio.get_running_loop())
                elif control["type"] == "closed":
                    return _report_end(control.get("reason"))
        except BrokenPipeError:  # the process that started this one is gone
            return 0
        return _report_end("The connection was closed.")


def _start_reading(socket: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
    """Send standard input from a separate thread, which works for files, pipes and terminals."""

    def read() -> None:
        try:
            while data := os.read(0, CHUNK):
                asyncio.run_coroutine_threadsafe(socket.send(data), loop).result()
            asyncio.run_coroutine_threadsafe(socket.send(json.dumps({"type": "eof"})), loop).result()
        except (ConnectionClosed, OSError, RuntimeError, asyncio.CancelledError):
            return  # the loop reports the reason, or has ended

    threading.Thread(target=read, daemon=True).start()


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _report_end(reason: str | None) -> int:
    if reason is None:
        return 0
    echo(f"sandyard: {escape(reason)}", err=True)
    return FAILED


def _to_error(login: Login, error: InvalidStatus) -> Exception:
    status = error.response.status_code
    if status == 401 and login.token is None:
        return NotLoggedInError(f"Not logged in to {login.url}. Run `sandyard login {login.url}`.")
    try:
        detail = json.loads(error.response.body or b"{}").get("detail")
    except (ValueError, AttributeError):
        detail = None
    return ApiError(escape(detail or f"The server refused the SSH connection with status {status}."), status)
