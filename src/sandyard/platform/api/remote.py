"""SSH into a sandbox over a WebSocket, and connection details for editors.

Binary messages are the bytes of SSH in both directions. Text messages are JSON. The server first sends `{"type": "opened", "hostKey":
"ssh-ed25519 …"}` with the key of the sandbox's sshd, and last `{"type": "closed", "reason": str | null}`. The client may send `{"type":
"eof"}` when it has no more input. `sandyard ssh --stdio` is the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Annotated

from fastapi import Query, Request, WebSocket
from pydantic import Field
from starlette.websockets import WebSocketDisconnect, WebSocketState

from sandyard.kit import bounded_json
from sandyard.kit.errors import SandyardError
from sandyard.kit.tasks import end_tasks
from sandyard.platform.api.auth import Caller, StreamCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.revocation import accept_socket, close_socket, wait_until_revoked
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.sandboxes import SandboxId
from sandyard.platform.api.schema import Model, example
from sandyard.platform.api.sessions import SessionId
from sandyard.platform.api.terminal import TEXT_LIMIT, TEXT_VALUES
from sandyard.platform.domain.remote import service
from sandyard.platform.domain.remote.connections import SshConnection
from sandyard.platform.domain.users.model import Principal

router = api_router("remote")
Remotes = Annotated[service.Remotes, inject("remotes")]


class EditorInfo(Model):
    """The browser editor. Start it with `POST /sandboxes/{id}/editor`."""

    available: bool | None = Field(
        description="Whether `code-server` is installed in the sandbox. Null if it was never checked while the sandbox was running."
    )


class RemoteView(Model):
    model_config = example(
        sandboxId="sbx_00mwhnkzb5gfh26ygacc",
        sshHost="ses_00mwhnkz2f0a9s8d7f6g.sandyard",
        sshAvailable=True,
        folder="/home/user/workspace",
        vscodeUrl="vscode://vscode-remote/ssh-remote+ses_00mwhnkz2f0a9s8d7f6g.sandyard/home/user/workspace",
        setup=["sandyard login https://sandyard.example", "sandyard ssh-config --write"],
        sshCommand="ssh ses_00mwhnkz2f0a9s8d7f6g.sandyard",
        codeCommand="code --remote ssh-remote+ses_00mwhnkz2f0a9s8d7f6g.sandyard /home/user/workspace",
        editor={"available": False},
    )

    sandbox_id: str
    ssh_host: str
    ssh_available: bool | None = Field(
        description="Whether the sandbox has an sshd. Null if it was never checked while the sandbox was running."
    )
    folder: str
    vscode_url: str
    setup: list[str] = Field(description="Commands to run once on your own machine.")
    ssh_command: str
    code_command: str
    editor: EditorInfo


class EditorView(Model):
    model_config = example(port=13337, path="/?folder=/home/user/workspace")

    port: int = Field(description="The port it listens on in the sandbox. Open it with a preview.")
    path: str = Field(description="The path to open.")


@router.get("/sessions/{session_id}/remote", name="session.remote")
async def remote(request: Request, caller: Caller, remotes: Remotes, session_id: SessionId) -> RemoteView:
    """Get the session's connection details for `ssh` and editors. Does not resume its sandbox."""
    found = await remotes.get_for_session(caller, session_id)
    address = request.app.state.services.settings.public_url or str(request.base_url)
    return RemoteView(
        sandbox_id=found.sandbox_id,
        ssh_host=found.ssh_host,
        ssh_available=found.ssh_available,
        folder=found.folder,
        vscode_url=found.vscode_url,
        setup=[f"sandyard login {address.rstrip('/')}", "sandyard ssh-config --write"],
        ssh_command=found.ssh_command,
        code_command=found.code_command,
        editor=EditorInfo(available=found.editor_available),
    )


@router.post("/sandboxes/{sandbox_id}/editor", name="editor.open")
async def open_editor(caller: Caller, remotes: Remotes, sandbox_id: SandboxId) -> EditorView:
    """Start `code-server` in the sandbox if it is installed and not running yet.

    It listens on loopback in the sandbox. Open it with a preview of the port.
    """
    return EditorView.model_validate(await remotes.open_editor(caller, sandbox_id))


@router.websocket("/sandboxes/{sandbox_id}/ssh", name="ssh.open")
async def ssh(
    socket: WebSocket,
    caller: StreamCaller,
    remotes: Remotes,
    sandbox_id: str,
    key: Annotated[str, Query(max_length=5000)] = "",
) -> None:
    async with remotes.ssh.open(caller, sandbox_id, key) as connection:
        with contextlib.suppress(WebSocketDisconnect):
            await accept_socket(socket)
            await socket.send_text(json.dumps({"type": "opened", "hostKey": connection.host_key}))
            await _connect(socket, caller, connection)


async def _connect(socket: WebSocket, caller: Principal, connection: SshConnection) -> None:
    """Forward input and output until sshd ends, the client disconnects or the user loses access."""
    input_task = asyncio.ensure_future(_forward_input(socket, connection))
    output_task = asyncio.ensure_future(_forward_output(socket, connection))
    revocation = asyncio.ensure_future(wait_until_revoked(socket, caller, lambda: connection.check(caller)))
    try:
        await asyncio.wait((input_task, output_task, revocation), return_when=asyncio.FIRST_COMPLETED)
        is_connected = not input_task.done() and socket.client_state is WebSocketState.CONNECTED
        reason = output_task.result() if output_task.done() else None
        if revocation.done() and not output_task.done():
            reason = "You no longer have access to this sandbox."
    finally:
        # before the closing message, which a client that reads nothing could delay while it keeps sending
        await end_tasks(input_task, output_task, revocation)
    if is_connected:
        await close_socket(socket, {"type": "closed", "reason": reason})


async def _forward_output(socket: WebSocket, connection: SshConnection) -> str | None:
    """Forward the output of sshd until it ends. Returns the reason."""
    try:
        while (data := await connection.receive()) is not None:
            await socket.send_bytes(data)
    except WebSocketDisconnect:
        return None
    except SandyardError as error:
        return error.message
    return connection.reason


async def _forward_input(socket: WebSocket, connection: SshConnection) -> None:
    """Forward the client's input until it disconnects. Unknown messages are ignored."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        if message.get("bytes"):
            await connection.send(message["bytes"])
        elif message.get("text") and is_end(message["text"]):
            connection.finish()


def is_end(text: str) -> bool:
    try:
        return bool(bounded_json.parse(text, largest=TEXT_LIMIT, values=TEXT_VALUES)["type"] == "eof")
    except (ValueError, TypeError, KeyError):
        return False
