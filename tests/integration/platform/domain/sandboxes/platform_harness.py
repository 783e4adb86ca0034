"""A whole platform without its API on a real engine. A test can move the time and cut the connection to the engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.platform import wiring
from sandyard.platform.db.models import Command, Event, Sandbox
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.command_output import STDERR, STDOUT
from sandyard.platform.domain.sandboxes.e2b import SandboxNotFoundError
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, Lifecycle
from sandyard.platform.domain.sandboxes.model import NewCommand
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.harness.engine import Engine
from tests.unit.platform.world import ROOT

DEADLINE = 90
MAX_SLEEP_S = 4.0
"""Longer sleeps are those between rounds of maintenance: they never end, so that rounds run only when a test calls them."""


class MovableClock:
    """The real time plus what a test adds to it."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds

    async def sleep(self, seconds: float) -> None:
        if seconds >= MAX_SLEEP_S:
            await asyncio.Event().wait()
        await asyncio.sleep(min(seconds, 0.2))


class EngineProxy:
    """The only way to the engine. While it is stopped, connections are refused, and existing ones are cut."""

    def __init__(self, port: int) -> None:
        self._engine = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._connections):
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._engine)
        self._connections |= {writer, here}
        with contextlib.suppress(asyncio.CancelledError):  # the loop is closing: asyncio would complain about this task
            await asyncio.gather(_copy(reader, here), _copy(there, writer))
        self._connections -= {writer, here}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@dataclass
class PlatformHarness:
    services: Services
    clock: MovableClock
    engine_proxy: EngineProxy
    owner: Principal

    # users and objects -------------------------------------------------------------------------------------------------

    async def create_person(self, name: str, role: str = "member") -> Principal:
        user = await self.services.users.create(ROOT, name, role)
        return Principal(user.id, name, role, "test")

    async def project(self, owner: Principal, *members: Principal, **settings: Any) -> str:
        project = await self.services.projects.create(owner, "project", settings=ProjectSettings(**settings))
        for member in members:
            await self.services.projects.add_member(owner, project.id, member.user_id)
        return project.id

    async def create_sandbox(self, **wanted: Any) -> Sandbox:
        return await self.services.sandboxes.create_sandbox(self.owner, **wanted)

    async def reload(self, row: Sandbox) -> Sandbox:
        return await self.services.lifecycle.repository.get(row.id)

    async def start(self, row: Sandbox, command: str, *, background: bool = False, **options: Any) -> Command:
        new = NewCommand(command=command, timeout_s=60, background=background, **options)
        return await self.services.commands.execute(self.owner, row.id, new)

    async def wait(self, command: Command) -> Command:
        async with asyncio.timeout(DEADLINE):
            return await self.services.commands.wait(command.id)

    async def run(self, row: Sandbox, command: str, **options: Any) -> str:
        """Run a command and return its output."""
        done = await self.wait(await self.start(row, command, **options))
        assert (done.status, done.exit_code) == ("exited", 0), (done.status, done.error)
        return (await self.output(done))[0].decode()

    async def output(self, command: Command) -> tuple[bytes, bytes]:
        read = self.services.commands.files.read
        return await read(command.id, STDOUT, 0, 1 << 30), await read(command.id, STDERR, 0, 1 << 30)

    async def list_event_kinds(self, row: Sandbox | None = None, prefix: str = "sandbox.") -> list[str]:
        """List the kinds of the stored events, in order."""
        query = select(Event).where(Event.kind.startswith(prefix)).order_by(Event.seq)
        async with self.services.database.reading() as session:
            found = await session.scalars(query if row is None else query.where(Event.sandbox_id == row.id))
            return [event.kind for event in found]

    async def finish_round(self, starting: Awaitable[None]) -> None:
        """Wait until all has ended that a round of the maintenance starts."""
        await starting
        await self.services.maintenance.wait()

    # the engine --------------------------------------------------------------------------------------------------------

    async def get_engine_state(self, row: Sandbox) -> str:
        """Return the state as reported by the engine."""
        assert row.engine_id is not None
        try:
            return (await self.services.engine.get_info(row.engine_id)).state
        except SandboxNotFoundError:
            return "gone"

    async def list_engine_ids(self) -> set[str]:
        """List the engine's ids of this platform's sandboxes."""
        return {box.id for box in await self.services.engine.list({INSTANCE: self.services.lifecycle.instance})}

    async def reconnect_engine(self) -> None:
        """Reconnect to the engine and reset the circuit breaker."""
        await self.engine_proxy.start()
        self.services.engine.breaker.opened_at = None

    def create_second_lifecycle(self, instance: str | None = None) -> Lifecycle:
        """Create the lifecycle of another process on the same database."""
        own = self.services.lifecycle
        return Lifecycle(
            self.services.database,
            own.engine,
            own.sealer,
            Activity(self.clock),
            instance=instance or own.instance,
            idle_margin_s=120,
        )


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Wait for a true result of the condition and return it."""
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while not (result := await condition()):
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {DEADLINE} s"
        await asyncio.sleep(0.02)
    return result


@contextlib.asynccontextmanager
async def open_platform(
    folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, clock: MovableClock | None = None, **settings: Any
) -> AsyncIterator[PlatformHarness]:
    """Open a platform. A second time in the same folder, it is the same platform after a restart."""
    clock = clock or MovableClock()
    monkeypatch.setattr(wiring, "SystemClock", lambda: clock)
    engine_proxy = EngineProxy(engine.port)
    await engine_proxy.start()
    rounds = {"reconcile_every_s": 1000, "health_every_s": 1000, "create_timeout_s": 20}
    configured = PlatformSettings.load(
        {},
        data_dir=folder,
        e2b_api_key=engine.key,
        e2b_api_url=engine_proxy.url,
        e2b_sandbox_url=engine_proxy.url,
        private_hosts=("127.0.0.1",),  # forges of tests are on this machine
        **rounds | settings,
    )
    try:
        async with wiring.open_services(configured) as services:
            async with asyncio.timeout(DEADLINE):
                await services.maintenance.reconciled.wait()
                await services.maintenance.wait()
            platform = PlatformHarness(services, clock, engine_proxy, ROOT)
            users = (await services.users.list(ROOT, PageRequest())).items
            owner = next((user for user in users if user.name == "owner"), None)
            platform.owner = (
                Principal(owner.id, "owner", "member", "test") if owner else await platform.create_person("owner")
            )
            yield platform
    finally:
        await engine_proxy.stop()


async def kill_sandboxes(platform: PlatformHarness) -> None:
    """Kill all sandboxes of this platform in the engine."""
    if not platform.engine_proxy.is_running:
        await platform.reconnect_engine()
    for engine_id in await platform.list_engine_ids():
        await platform.services.engine.kill(engine_id)
