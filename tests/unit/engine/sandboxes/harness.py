"""Runs one engine core at a time on one data directory and one host. It can crash and start again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sandyard.engine.contract import Condition, Isolation
from sandyard.engine.sandboxes.model import CreateSandbox, LogQuery, PauseKind, Sandbox, State, Template
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.clock import ManualClock
from tests.unit.engine.sandboxes.double import DoubleDriver, Host

BASE = Template(id="base0000000000000000", layers=("tpl:base",), aliases=("base",))


def expected_settings(sandbox: Sandbox, env: dict[str, str] | None = None, user: str = "user") -> dict[str, object]:
    """Return the settings that a sandbox's guest agent has after its `/init`."""
    identity = {"E2B_SANDBOX_ID": sandbox.id, "E2B_TEMPLATE_ID": sandbox.template_id}
    return {"envVars": {**identity, **(env or {})}, "defaultUser": user}


class StaticTemplates:
    def __init__(self, *templates: Template) -> None:
        self.templates = list(templates)

    def resolve(self, name: str) -> Template | None:
        return next(
            (template for template in self.templates if name.partition(":")[0] in {template.id, *template.aliases}),
            None,
        )

    def list(self) -> Sequence[Template]:
        return self.templates


class SandboxesHarness:
    def __init__(
        self,
        path: Path,
        *,
        freeze: bool = True,
        suspend: bool = False,
        gvisor: bool = False,
        containers: Collection[Isolation] = (),
        **settings: Any,
    ) -> None:
        self.path = path
        self.host = Host()
        self.clock = ManualClock()
        self.boot_id = "boot-1"
        self.templates = StaticTemplates(BASE)
        self._features = {"freeze": freeze, "suspend": suspend, "gvisor": gvisor, "containers": containers}
        values: dict[str, Any] = {"pool_size": 0, "kill_patience_s": 0.05}
        values |= {"memory_reserve_mb": 0, "disk_reserve_mb": 0, "data_dir": path, "metrics_interval_s": 1000}
        self.settings = EngineSettings(**(values | settings))
        self.interrupted: list[tuple[str, str]] = []

    async def start(self, *, open_: bool = True) -> Sandboxes:
        self.database = Database(self.path / "engine.db")
        self.database.open()
        self.driver = DoubleDriver(self.host, **self._features)
        self.service = Sandboxes(
            self.database,
            self.driver,
            self.templates,
            self.settings,
            clock=self.clock,
            boot_id=self.boot_id,
            get_deadline=self.driver.deadline,
        )
        self.service.on_interrupted(lambda sandbox_id, reason: self.interrupted.append((sandbox_id, reason)))
        if open_:
            await self.service.open()
        return self.service

    @property
    def available_memory(self) -> int | None:
        return self.host.available_memory

    @available_memory.setter
    def available_memory(self, value: int) -> None:
        self.host.available_memory = value

    async def crash(self) -> None:
        """Simulate kill -9: the driver does nothing more, nothing reaches the database, and no task continues."""
        self.driver.die()
        self.database.abandon()
        self.database.drop_connections()
        await self.service.components.stop_now()
        for _ in range(3):  # tasks that ended may have started others
            await asyncio.sleep(0)
            await self.service.components.stop_now()

    async def restart(self) -> Sandboxes:
        await self.crash()
        return await self.start()

    async def stop(self) -> None:
        self.driver.clear_faults()
        await self.service.close()
        self.database.close()

    async def create(self, **fields: Any) -> Sandbox:
        return await self.service.create(CreateSandbox(**{"timeout_s": 300, **fields}))

    async def settle(self) -> None:
        """Let background tasks run until they are idle."""
        for _ in range(200):
            await asyncio.sleep(0)

    def check(self) -> None:
        """Check that the records match the host and that the host has nothing else."""
        conditions = {
            State.RUNNING: {None: Condition.RUNNING},
            State.PAUSED: {
                PauseKind.MEMORY: Condition.FROZEN,
                PauseKind.DISK: Condition.SUSPENDED,
                PauseKind.FILESYSTEM: Condition.STOPPED,
            },
        }
        records = self.service.list().items
        expected = {record.id: conditions[record.state][record.pause_kind] for record in records}
        actual = {sandbox_id: machine.condition for sandbox_id, machine in self.host.machines.items()}
        assert actual == expected, self.history({*actual.items()} ^ {*expected.items()})
        for record in records:
            assert record.intent is None
            if record.running:
                assert self.host.machines[record.id].policy == record.network.policy, self.history({(record.id, "")})
        assert self.driver.overlaps == []
        stored = self.service.components.repository.list_all()
        assert sorted(stored, key=lambda candidate: candidate.id) == sorted(records, key=lambda candidate: candidate.id)

    def history(self, conditions_by_sandbox: set[tuple[str, str]]) -> str:
        """Describe records, logs and driver calls of some sandboxes for a failure message."""
        lines = []
        for sandbox_id in sorted({sandbox_id for sandbox_id, _ in conditions_by_sandbox}):
            lines.append(f"{sandbox_id}: {self.host.machines.get(sandbox_id)} {self.service.find(sandbox_id)}")
            lines += [
                f"    log: {entry.message}" for entry in self.service.components.logs.query(sandbox_id, LogQuery())
            ]
            lines += [f"    driver: {verb}" for verb, subject in self.driver.calls if subject == sandbox_id]
        return "\n".join(lines)
