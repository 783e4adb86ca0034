from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.engine.contract import Limits
from sandyard.engine.drivers.machine.cgroups.tree import Usage
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher
from sandyard.engine.drivers.machine.record import Life, Record
from sandyard.engine.drivers.machine.slots import Slots


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    async def clear(_: str) -> bool:
        return True

    cgroups = SimpleNamespace(read_usage=lambda _: Usage(), clear=clear)
    return SimpleNamespace(cgroups=cgroups, run_dir=tmp_path, network=None, slots=Slots(1))


def _make_record() -> Record:
    return Record("one", "namespace", (), Limits())


@pytest.mark.parametrize(
    ("code", "reason"),
    [(-9, "killed from outside"), (-11, "its agent was ended by SIGSEGV"), (-40, "its agent was ended by signal 40")],
)
async def test_the_end_of_a_process_ends_its_sandbox_with_a_reason(machine: Any, code: int, reason: str) -> None:
    watcher, record = ExitWatcher(machine), _make_record()
    process, end = os.pipe()  # becomes readable like a pidfd
    watcher.watch(record, Life(10, 20, machine.slots.take()), process, -1, reports_exit=True)
    watcher.on_exit(10, code)
    os.close(end)
    assert await record.ended == reason
    await watcher.wait_for_tasks()
    assert machine.slots.take() == 0, "its slot is free again"


async def test_a_report_that_comes_before_the_watch_is_kept(machine: Any) -> None:
    watcher, record = ExitWatcher(machine), _make_record()
    process, end = os.pipe()
    os.close(end)
    watcher.on_exit(10, -9)
    watcher.watch(record, Life(10, 20, machine.slots.take()), process, -1, reports_exit=True)
    assert await asyncio.wait_for(record.ended, 10) == "killed from outside"


async def test_a_report_about_an_earlier_process_with_the_same_pid_is_ignored(machine: Any) -> None:
    watcher, record = ExitWatcher(machine), _make_record()
    process, end = os.pipe()
    watcher.on_exit(10, -9)
    watcher.watch(record, Life(10, 20, machine.slots.take()), process, -1, reports_exit=True)
    watcher.on_exit(10, 0)
    os.close(end)
    assert await record.ended == "it was shut down"


async def test_a_late_report_ends_the_wait(machine: Any) -> None:
    watcher, record = ExitWatcher(machine), _make_record()
    process, end = os.pipe()
    watcher.watch(record, Life(10, 20, machine.slots.take()), process, -1, reports_exit=True)
    os.close(end)
    await asyncio.sleep(0.05)
    watcher.on_exit(10, -9)
    assert await asyncio.wait_for(record.ended, 10) == "killed from outside"


async def test_waiting_ends_when_a_report_can_no_longer_arrive(machine: Any) -> None:
    watcher, record = ExitWatcher(machine), _make_record()
    process, end = os.pipe()
    watcher.watch(record, Life(10, 20, machine.slots.take()), process, -1, reports_exit=True)
    os.close(end)
    watcher.on_reports_lost()
    assert await asyncio.wait_for(record.ended, 10) == "ended for an unknown reason"
