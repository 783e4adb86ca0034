"""Send initial settings to a guest agent: what processes that start later inherit."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping

from sandyard.engine.contract import AGENT_PORT, Handle
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import Defaults
from sandyard.kit.errors import UnreachableError

MAX_ANSWER = 64 * 1024  # the agent runs next to hostile code, so its response is read with a limit


async def initialise_agent(
    calls: DriverCalls, handle: Handle, template_id: str, env: Mapping[str, str], defaults: Defaults
) -> None:
    """Send the agent of a new sandbox its identity, environment variables, user and working directory."""
    identity = {"E2B_SANDBOX_ID": handle.id, "E2B_TEMPLATE_ID": template_id}

    async def tell() -> None:
        await send_settings(await calls.driver.connect(handle, AGENT_PORT), {**identity, **env}, defaults)

    await calls.run("init", handle.id, tell())


async def send_settings(connection: socket.socket, env: Mapping[str, str], defaults: Defaults) -> None:
    """Send `POST /init` on a connected socket and close it. Raises UnreachableError if the agent does not accept it."""
    body = {"envVars": dict(env), "defaultUser": defaults.user}
    if defaults.workdir is not None:
        body["defaultWorkdir"] = defaults.workdir
    content = json.dumps(body).encode()
    head = (
        "POST /init HTTP/1.1\r\nHost: sandbox\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    with connection:
        try:
            await loop.sock_sendall(connection, head.encode("ascii") + content)
            status = await _read_status(connection)
        except OSError as error:
            raise UnreachableError(f"Could not send the agent its settings: {error}.") from error
    if not 200 <= status < 300:
        raise UnreachableError(f"The agent rejected its settings with status {status}.")


async def _read_status(connection: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    answer = b""
    while b"\r\n\r\n" not in answer:
        received = await loop.sock_recv(connection, 4096)
        answer += received
        if not received or len(answer) > MAX_ANSWER:
            break
    words = answer.split(b"\r\n", 1)[0].split(b" ")
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise UnreachableError("The agent sent no valid HTTP response to its settings.")
    return int(words[1])
