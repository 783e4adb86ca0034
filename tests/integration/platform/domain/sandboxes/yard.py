"""A whole platform, without its API, before a real engine: time is the test's to move, and so is the way to the engine."""

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
from tests.protocol.engine import Engine
from tests.unit.platform.world import ROOT

DEADLINE = 90
ROUNDS_S = 4.0
"""Longer sleeps are those between two rounds of maintenance: they never end, so that a round is there when a test asks for it."""


class MovableClock:
    """The real time, and what a test adds to it."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds

    async def sleep(self, seconds: float) -> None:
        if seconds >= ROUNDS_S:
            await asyncio.Event().wait()
        await asyncio.sleep(min(seconds, 0.2))


class Door:
    """The only way to the engine. When it is shut, nobody is there: connections are refused and those there were are cut."""

    def __init__(self, port: int) -> None:
        self._engine = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._engine)
        self._open |= {writer, here}
        with contextlib.suppress(asyncio.CancelledError):  # the loop ends: asyncio would complain about this task
            await asyncio.gather(_copy(reader, here), _copy(there, writer))
        self._open -= {writer, here}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@dataclass
class Yard:
    services: Services
    clock: MovableClock
    door: Door
    owner: Principal

    # people and things -------------------------------------------------------------------------------------------------

    async def person(self, name: str, role: str = "member") -> Principal:
        user = await self.services.users.create(ROOT, name, role)
        return Principal(user.id, name, role, "test")

    async def project(self, owner: Principal, *members: Principal, **settings: Any) -> str:
        project = await self.services.projects.create(owner, "project", settings=ProjectSettings(**settings))
        for member in members:
            await self.services.projects.add_member(owner, project.id, member.user_id)
        return project.id

    async def sandbox(self, **wanted: Any) -> Sandbox:
        return await self.services.sandboxes.create_sandbox(self.owner, **wanted)

    async def row(self, row: Sandbox) -> Sandbox:
        return await self.services.lifecycle.repository.get(row.id)

    async def start(self, row: Sandbox, command: str, *, background: bool = False, **options: Any) -> Command:
        new = NewCommand(command=command, timeout_s=60, background=background, **options)
        return await self.services.commands.execute(self.owner, row.id, new)

    async def wait(self, command: Command) -> Command:
        async with asyncio.timeout(DEADLINE):
            return await self.services.commands.wait(command.id)

    async def run(self, row: Sandbox, command: str, **options: Any) -> str:
        """What it printed."""
        done = await self.wait(await self.start(row, command, **options))
        assert (done.status, done.exit_code) == ("exited", 0), (done.status, done.error)
        return (await self.output(done))[0].decode()

    async def output(self, command: Command) -> tuple[bytes, bytes]:
        read = self.services.commands.files.read
        return await read(command.id, STDOUT, 0, 1 << 30), await read(command.id, STDERR, 0, 1 << 30)

    async def kinds(self, row: Sandbox | None = None, about: str = "sandbox.") -> list[str]:
        """The events there were, in order."""
        query = select(Event).where(Event.kind.startswith(about)).order_by(Event.seq)
        async with self.services.database.reading() as session:
            found = await session.scalars(query if row is None else query.where(Event.sandbox_id == row.id))
            return [event.kind for event in found]

    # the engine --------------------------------------------------------------------------------------------------------

    async def state(self, row: Sandbox) -> str:
        """As the engine says."""
        assert row.engine_id is not None
        try:
            return (await self.services.engine.get_info(row.engine_id)).state
        except SandboxNotFoundError:
            return "gone"

    async def there(self) -> set[str]:
        """The engine's ids of this platform's sandboxes."""
        return {box.id for box in await self.services.engine.list({INSTANCE: self.services.lifecycle.instance})}

    async def back(self) -> None:
        """The engine is there again, and nobody waits for the breaker."""
        await self.door.open()
        self.services.engine.breaker.opened_at = None

    def second(self, instance: str | None = None) -> Lifecycle:
        """That of another process on the same database."""
        ours = self.services.lifecycle
        return Lifecycle(
            self.services.database,
            ours.engine,
            ours._sealer,
            Activity(self.clock),
            instance=instance or ours.instance,
            idle_margin_s=120,
        )


async def until(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    """What the condition says as soon as it says something."""
    deadline = asyncio.get_running_loop().time() + DEADLINE
    while not (found := await condition()):
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {DEADLINE} s"
        await asyncio.sleep(0.02)
    return found


@contextlib.asynccontextmanager
async def opened(
    folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, clock: MovableClock | None = None, **settings: Any
) -> AsyncIterator[Yard]:
    """Opened a second time in the same folder, it is the same platform after a restart."""
    clock = clock or MovableClock()
    monkeypatch.setattr(wiring, "SystemClock", lambda: clock)
    door = Door(engine.port)
    await door.open()
    rounds = {"reconcile_every_s": 1000, "health_every_s": 1000, "create_timeout_s": 20}
    configured = PlatformSettings.load(
        {},
        data_dir=folder,
        e2b_api_key=engine.key,
        e2b_api_url=door.url,
        e2b_sandbox_url=door.url,
        private_hosts=("127.0.0.1",),  # forges of tests are on this machine
        **rounds | settings,
    )
    try:
        async with wiring.opened(configured) as services:
            async with asyncio.timeout(DEADLINE):
                await services.maintenance.reconciled.wait()
            yard = Yard(services, clock, door, ROOT)
            users = (await services.users.list(ROOT, PageRequest())).items
            owner = next((user for user in users if user.name == "owner"), None)
            yard.owner = Principal(owner.id, "owner", "member", "test") if owner else await yard.person("owner")
            yield yard
    finally:
        await door.shut()


async def cleared(yard: Yard) -> None:
    """Nothing of this test is left in the engine."""
    if yard.door._server is None:
        await yard.back()
    for engine_id in await yard.there():
        await yard.services.engine.kill(engine_id)
