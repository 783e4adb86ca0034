"""A terminal in a sandbox over a WebSocket.

Binary messages are the terminal's input and output. Text messages are JSON. The client sends `{"type": "resize", "cols": 120, "rows": 40}`.
The server first sends `{"type": "opened", "terminal": "trm_…"}` and last `{"type": "closed", "ended": bool, "exitCode": int | null}`. If the
shell has not ended, connect again with `?terminal=` to continue in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import Query, Response, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from sandyard.kit import bounded_json
from sandyard.kit.errors import SandyardError
from sandyard.kit.tasks import end_tasks
from sandyard.platform.api.auth import Caller, StreamCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.revocation import accept_socket, close_socket, wait_until_revoked
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.sandboxes import SandboxId
from sandyard.platform.api.schema import Instant, Model, example, id_in_path
from sandyard.platform.db import models
from sandyard.platform.domain.sandboxes import terminals as domain

router = api_router("terminals")
Terminals = Annotated[domain.Terminals, inject("terminals")]
TerminalId = Annotated[str, id_in_path("terminal", "trm_00mwhnkzc0a1b2c3d4e5")]
Cells = Annotated[int, Query(ge=1, le=1000)]
TEXT_LIMIT, TEXT_VALUES = 1024, 20
"""Limits of a text message. A resize message is much smaller."""


class TerminalView(Model):
    model_config = example(id="trm_00mwhnkzc0a1b2c3d4e5", pid=42)

    id: str
    sandbox_id: str
    pid: int
    created_at: Instant

    @classmethod
    def from_row(cls, row: models.Terminal) -> TerminalView:
        return cls.model_validate(row)


class TerminalList(Model):
    items: list[TerminalView]


@router.get("/sandboxes/{sandbox_id}/terminals", name="terminal.list")
async def list_(caller: Caller, terminals: Terminals, sandbox_id: SandboxId) -> TerminalList:
    """List the shells you can reconnect to."""
    return TerminalList(items=[TerminalView.from_row(row) for row in await terminals.list(caller, sandbox_id)])


@router.delete("/sandboxes/{sandbox_id}/terminals/{terminal_id}", name="terminal.close", status_code=204)
async def close(caller: Caller, terminals: Terminals, sandbox_id: SandboxId, terminal_id: TerminalId) -> Response:
    """End the shell. Idempotent."""
    await terminals.close(caller, sandbox_id, terminal_id)
    return Response(status_code=204)


@router.websocket("/sandboxes/{sandbox_id}/terminal", name="terminal.open")
async def open_(
    socket: WebSocket,
    caller: StreamCaller,
    terminals: Terminals,
    sandbox_id: str,
    terminal: Annotated[str | None, Query(max_length=40)] = None,
    cols: Cells = 80,
    rows: Cells = 24,
) -> None:
    terminal_id = terminal or (await terminals.open(caller, sandbox_id, cols, rows)).id
    async with terminals.view(caller, sandbox_id, terminal_id) as (shell, viewer):
        with contextlib.suppress(WebSocketDisconnect):
            await accept_socket(socket)
            await socket.send_text(json.dumps({"type": "opened", "terminal": terminal_id}))
            if terminal is not None:
                await terminals.resize(shell, cols, rows)
            revocation = wait_until_revoked(socket, caller, lambda: terminals.list(caller, sandbox_id))
            await _connect(socket, terminals, shell, viewer, revocation)


async def _connect(
    socket: WebSocket,
    terminals: domain.Terminals,
    shell: domain.Shell,
    viewer: domain.Viewer,
    wait_for_revocation: Coroutine[Any, Any, None],
) -> None:
    """Forward input and output until the shell ends, the user disconnects or loses access."""
    typing = asyncio.ensure_future(_forward_input(socket, terminals, shell))
    output = asyncio.ensure_future(_send_output(socket, viewer))
    revocation = asyncio.ensure_future(wait_for_revocation)
    try:
        await asyncio.wait((typing, output, revocation), return_when=asyncio.FIRST_COMPLETED)
        is_connected = not typing.done() and socket.client_state is WebSocketState.CONNECTED
        if output.done():
            output.result()
    finally:
        # before the closing message, which a client that reads nothing could delay while it keeps typing
        await end_tasks(typing, output, revocation)
    if is_connected:
        await close_socket(socket, {"type": "closed", "ended": shell.has_ended, "exitCode": shell.handle.exit_code})


async def _send_output(socket: WebSocket, viewer: domain.Viewer) -> None:
    """Send the shell's output until it ends. Raises WebSocketDisconnect."""
    while (data := await viewer.pieces.get()) is not None:
        await socket.send_bytes(data)


async def _forward_input(socket: WebSocket, terminals: domain.Terminals, shell: domain.Shell) -> None:
    """Forward the user's input until they disconnect. Unknown messages are ignored."""
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if message.get("bytes"):
                await terminals.write(shell, message["bytes"])
            elif message.get("text"):
                size = parse_size(message["text"])
                if size is not None:
                    await terminals.resize(shell, *size)
    except (WebSocketDisconnect, SandyardError):
        return


def parse_size(text: str) -> tuple[int, int] | None:
    try:
        message = bounded_json.parse(text, largest=TEXT_LIMIT, values=TEXT_VALUES)
        cols, rows = int(message["cols"]), int(message["rows"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return (cols, rows) if message.get("type") == "resize" and 0 < cols <= 1000 and 0 < rows <= 1000 else None
