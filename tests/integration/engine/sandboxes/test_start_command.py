"""Start commands and the engine's own client of the guest agent, with real guest agents of the fake driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.sandboxes.agent import Agent
from sandyard.engine.sandboxes.model import CreateSandbox, Sandbox, StartCommand, Template
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.sandboxes.start_command import NotReadyError
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.errors import UnreachableError
from tests.unit.engine.sandboxes.harness import StaticTemplates

PLAIN = Template(id="base0000000000000000", layers=(), aliases=("base",))
SERVED = Template(
    id="served00000000000000",
    layers=(),
    aliases=("served",),
    start=StartCommand("echo begun >> $HOME/starts; sleep 0.3; touch $HOME/up; exec sleep 1002", "test -e $HOME/up"),
)


@asynccontextmanager
async def engine(path: Path, *templates: Template, **settings: Any) -> AsyncIterator[Sandboxes]:
    values: dict[str, Any] = {"pool_size": 0, "memory_reserve_mb": 0, "disk_reserve_mb": 0, "data_dir": path}
    database = Database(path / "engine.db")
    database.open()
    service = Sandboxes(database, FakeDriver(path), StaticTemplates(*templates), EngineSettings(**(values | settings)))
    await service.open()
    try:
        yield service
        for sandbox in service.list().items:
            await service.kill(sandbox.id)
    finally:
        await service.close()
        database.close()


def agent(service: Sandboxes, sandbox: Sandbox) -> Agent:
    return Agent(service.components.calls, sandbox.handle)


async def count_starts(service: Sandboxes, sandbox: Sandbox) -> int:
    output: list[bytes] = []
    await agent(service, sandbox).run("cat $HOME/starts", output=lambda _, data: output.append(data))
    return b"".join(output).count(b"begun")


async def test_a_command_reports_its_output_and_exit_code(tmp_path: Path) -> None:
    async with engine(tmp_path, PLAIN) as service:
        guest_agent = agent(service, await service.create(CreateSandbox("base")))
        output: list[tuple[str, bytes]] = []
        code = await guest_agent.run(
            "echo $A; echo b >&2; exit 3", env={"A": "a"}, output=lambda *one: output.append(one)
        )
        assert (code, sorted(output)) == (3, [("stderr", b"b\n"), ("stdout", b"a\n")])
        assert await guest_agent.run("kill -9 $$") == -1
        with pytest.raises(TimeoutError):
            await guest_agent.run("sleep 100", timeout_s=0.2)
        assert await guest_agent.spawn("exec sleep 1002") > 0
        with pytest.raises(UnreachableError, match="cwd"):
            await guest_agent.run("true", cwd="/nowhere/at/all")


async def test_files_can_be_written_whole_and_in_chunks(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for letter in (b"a", b"", b"b"):
            yield letter * 100_000

    async with engine(tmp_path, PLAIN) as service:
        guest_agent = agent(service, await service.create(CreateSandbox("base")))
        await guest_agent.write("small", b"one")
        await guest_agent.write("large", chunks())
        output: list[bytes] = []
        assert (
            await guest_agent.run("cat $HOME/small; wc -c < $HOME/large", output=lambda _, data: output.append(data))
            == 0
        )
        assert b"".join(output) == b"one200000\n"
        with pytest.raises(UnreachableError, match=r"\."):
            await guest_agent.write(".", b"a directory")


async def test_a_sandbox_is_ready_when_create_returns(tmp_path: Path) -> None:
    async with engine(tmp_path, SERVED) as service:
        sandbox = await service.create(CreateSandbox("served", env={"A": "1"}))
        assert await agent(service, sandbox).run("test -e $HOME/up && pgrep -f 'sleep 1002'") == 0
        assert await count_starts(service, sandbox) == 1


async def test_the_start_command_runs_again_in_forks_copies_and_booted_sandboxes(tmp_path: Path) -> None:
    async with engine(tmp_path, SERVED) as service:
        sandbox = await service.create(CreateSandbox("served"))
        await agent(service, sandbox).run("rm $HOME/up")
        fork = (await service.fork(sandbox.id, timeout_s=300))[0].sandbox
        assert fork is not None
        assert await count_starts(service, fork) == 2
        snapshot = await service.snapshot(sandbox.id)
        copy = await service.create(CreateSandbox(snapshot.id))
        assert await count_starts(service, copy) == 2
        await service.pause(sandbox.id, memory=False)
        booted, _ = await service.connect(sandbox.id, 60)
        assert await count_starts(service, booted) == 2


async def test_create_fails_when_the_sandbox_never_becomes_ready(tmp_path: Path) -> None:
    never = replace(SERVED, start=StartCommand("sleep 1002", "echo not yet; false"))
    async with engine(tmp_path, never, start_patience_s=0.5) as service:
        with pytest.raises(NotReadyError, match=r"not ready after 0\.5 s"):
            await service.create(CreateSandbox("served"))
        assert not service.list().items


async def test_pooled_sandboxes_have_run_the_start_command(tmp_path: Path) -> None:
    async with engine(tmp_path, SERVED, pool_size=2, pool_started_size=1) as service:
        first = await service.create(CreateSandbox("served"))
        pool = service.components.pool
        async with asyncio.timeout(60):
            while not pool.ready_count:
                await asyncio.sleep(0.05)
        second = service.components.creation.claim_pooled(CreateSandbox("served"), SERVED)
        assert second is not None
        assert await count_starts(service, second) == await count_starts(service, first) == 1
