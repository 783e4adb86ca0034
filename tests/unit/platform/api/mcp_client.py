"""The official MCP client, connected to a platform that listens on a port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx2
from fastapi import FastAPI

from sandyard.kit.listen import listen
from sandyard.platform import app as platform_app
from sandyard.platform.domain.sandboxes.model import Status
from tests.later import Later

if TYPE_CHECKING:
    import mcp
    from mcp import Client
    from mcp.client import streamable_http
    from mcp_types import CallToolResult

    from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness
else:
    mcp, streamable_http = Later("mcp"), Later("mcp.client.streamable_http")


@contextlib.asynccontextmanager
async def serving(app: FastAPI, port: int = 0) -> AsyncIterator[str]:
    """Yield the address of /mcp on loopback."""
    listener = listen("127.0.0.1", port)
    server = platform_app.make_server(app)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await task
        listener.close()


@contextlib.asynccontextmanager
async def client(url: str, token: str, *, mode: str = "auto", **headers: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}", **headers}, timeout=60) as web,
        mcp.Client(streamable_http.streamable_http_client(url, http_client=web), mode=mode) as made,
    ):
        yield made


@contextlib.asynccontextmanager
async def kept(url: str, token: str, *, mode: str = "auto") -> AsyncIterator[Client]:
    """Like `client`, for fixtures, which end in another task than they started in: the client runs in its own task."""
    ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def live() -> None:
        async with client(url, token, mode=mode) as made:
            ready.set_result(made)
            await over.wait()

    task = asyncio.create_task(live())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    yield ready.result()
    over.set()
    await task


async def call_tool(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return its result."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


async def call_failing_tool(client: Client, tool: str, **arguments: Any) -> tuple[str, str]:
    """Call a tool that returns an error. Return the code and the message of the error."""
    result: CallToolResult = await client.call_tool(tool, arguments)
    assert result.is_error and result.structured_content is None, result
    assert result.meta is not None
    return result.meta["code"], result.content[0].text  # type: ignore[union-attr]


async def token_of(platform: PlatformHarness, name: str | None = None) -> str:
    person = platform.owner if name is None else await platform.create_person(name)
    return (await platform.services.users.create_token(person, "mcp")).value.reveal()


async def require_running(platform: PlatformHarness, sandbox_id: str) -> None:
    row = await platform.services.lifecycle.wait_until_provisioned(sandbox_id)
    assert row.status == Status.RUNNING, row.error
