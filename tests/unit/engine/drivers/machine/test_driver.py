from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.engine.contract import Handle, Isolation, Limits, Spec
from sandyard.engine.drivers.machine import pause
from sandyard.engine.drivers.machine.driver import MachineDriver
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher
from sandyard.engine.drivers.machine.machine import DriverOptions
from sandyard.engine.drivers.machine.record import Life, Record
from sandyard.kit.errors import FullError, SandyardError

ORIGINAL = Handle("original", Isolation.GVISOR.value)


class Forks:
    """A driver with one running sandbox whose forks start as `outcomes` says: the first at once, the others later."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Exception | None]) -> None:
        self.outcomes = outcomes
        self.copy_exists = False
        self.killed: list[str] = []
        self.continued: list[str] = []
        unused: Any = None
        images: Any = SimpleNamespace(copy_memory=self._copy_memory, continue_processes=self._continue_processes)
        runtime: Any = SimpleNamespace(isolation=Isolation.GVISOR, images=images)
        self.driver = MachineDriver(DriverOptions(folder), [runtime], unused)
        machine: Any = SimpleNamespace(
            run_dir=folder,
            store=SimpleNamespace(check_room=lambda: None),
            memory=SimpleNamespace(check=lambda: None),
            network=None,
        )
        self.driver._machine = machine
        self.driver._watcher = ExitWatcher(machine)
        capabilities: Any = SimpleNamespace(memory_fork={Isolation.GVISOR})
        self.driver.capabilities = capabilities
        self.driver._records["original"] = Record("original", "gvisor", (), Limits(), life=Life(1, 1, 1))
        monkeypatch.setattr(self.driver, "_create_sandbox", self._create)
        monkeypatch.setattr(self.driver, "kill", self._kill)

    @contextlib.asynccontextmanager
    async def _copy_memory(self, record: Record, copy_files: object) -> AsyncIterator[None]:
        self.copy_exists = True
        yield
        self.copy_exists = False

    async def _continue_processes(self, running: Sequence[Record]) -> None:
        self.continued += [record.id for record in running]

    async def _create(self, record: Record, *_: object) -> Handle:
        if record.id != next(iter(self.outcomes)):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        outcome = self.outcomes[record.id]
        if outcome is not None:
            raise outcome
        assert self.copy_exists
        return record.make_handle()

    async def _kill(self, handle: Handle) -> None:
        self.killed.append(handle.id)
        if len(self.killed) == 1:
            raise SandyardError("a process does not end")

    async def fork(self) -> Sequence[Handle | SandyardError]:
        return await self.driver.fork_with_memory(ORIGINAL, [Spec(name, ()) for name in self.outcomes])


async def test_forks_with_memory_succeed_or_fail_independently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullError("no slot is left")
    forks = Forks(tmp_path, monkeypatch, {"one": full, "two": None})
    first, second = await forks.fork()
    assert first is full and isinstance(second, Handle) and second.id == "two"
    assert forks.killed == []


async def test_an_unexpected_failure_of_a_fork_leaves_no_other_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = Forks(tmp_path, monkeypatch, {"one": ValueError("broken"), "two": None, "three": None})
    with pytest.raises(ValueError, match="broken"):
        await forks.fork()
    assert forks.killed == ["two", "three"], "all, although the first cannot be killed"


async def test_processes_that_are_still_paused_for_a_checkpoint_continue_after_a_pause_of_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = Forks(tmp_path, monkeypatch, {})
    monkeypatch.setattr(pause, "thaw", lambda machine, record: None)
    await forks.driver.thaw(ORIGINAL)
    assert forks.continued == ["original"]
