"""Previews with a test server in place of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sandyard.kit.errors import SandyardError
from sandyard.platform.api import previews as previews_api
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.e2b import Route
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.repository import build_sandbox_row
from tests.unit.platform.world import Person, World, client, open_world

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Frame-Options: DENY\r\n\r\nhello"


@dataclass
class Server:
    """Sends the same answer to every request and closes the connection."""

    port: int = 0
    reply: bytes = HELLO
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.reply)
            await writer.drain()
        writer.close()


@dataclass
class PreviewHarness:
    """A signed-in owner, their sandbox, and its previews. `wake_requests`: whether each route was opened with `wake`. `failure`: what
    opening a route raises."""

    world: World
    app: FastAPI
    server: Server
    previews: Previews
    owner: Person
    sandbox: Sandbox
    wake_requests: list[bool]
    failure: SandyardError | None = None

    def url(self, path: str = "/") -> str:
        assert self.previews.addresses is not None
        host = f"3000-{self.sandbox.id.removeprefix('sbx_')}.{self.previews.addresses.domain}"
        return f"{self.previews.addresses.scheme}://{host}{path}"

    async def create_url(self, path: str = "/") -> str:
        async with client(self.app, self.owner, base=self.world.settings.url) as web:
            answer = await web.post(f"/api/v1/sandboxes/{self.sandbox.id}/previews", json={"port": 3000, "path": path})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["url"])

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a browser that is signed in to the preview and keeps its cookies."""
        async with client(self.app, base="http://unused") as web:
            answer = await web.get(await self.create_url())
            assert answer.status_code == 303, answer.text
            kept = [item.partition(";")[0] for item in answer.headers.get_list("set-cookie")]
            web.cookies.clear()
            web.headers["Cookie"] = "; ".join(kept)
            yield web


@contextlib.asynccontextmanager
async def create_preview_harness(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[PreviewHarness]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with open_world(folder, **settings) as world:
        owner = await world.create_person("owner")
        sandbox = build_sandbox_row(owner.principal.user_id, template="base", idle_seconds=300)
        sandbox.status, sandbox.engine_id = "running", "i1"
        async with world.database.transaction() as tx:
            tx.add(sandbox)
        lifecycle = Lifecycle(
            world.database, world.engine, world.vault, Activity(world.clock), instance="test", idle_margin_s=60
        )
        parts = {"tickets": world.users, "vault": world.vault, "settings": world.settings, "clock": world.clock}
        previews = Previews(world.database, lifecycle, **parts)  # type: ignore[arg-type]
        world.previews = previews  # type: ignore[attr-defined]
        harness = PreviewHarness(world, world.app(previews_api.router), server, previews, owner, sandbox, [])

        @contextlib.asynccontextmanager
        async def open_test_route(preview: object, *, wake: bool) -> AsyncIterator[Route]:
            harness.wake_requests.append(wake)
            if harness.failure is not None:
                raise harness.failure
            yield Route(f"http://127.0.0.1:{server.port}", {"E2b-Sandbox-Id": "i1"}, keeps_host=True)

        monkeypatch.setattr(previews, "open_route", open_test_route)
        yield harness
        await previews.close()
    listener.close()
