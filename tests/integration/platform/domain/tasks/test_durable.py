"""Interrupted workflows continue where they stopped, and no recorded step runs again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import pickle
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sandyard.platform.domain.tasks.durable import Durable, RoundFunction, StepRunner
from sandyard.platform.domain.tasks.step_support import StepResult
from tests.harness.processes import ROOT

pytestmark = pytest.mark.both_databases

Make = Callable[[RoundFunction], Durable]


@pytest.fixture
async def make(database_url: str) -> AsyncIterator[Make]:
    made: list[Durable] = []

    def build(run_round: RoundFunction) -> Durable:
        made.append(Durable(database_url.replace("platform.db", "workflows.db"), "test", run_round))
        return made[-1]

    yield build
    for item in made:
        await item.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(40):
        while not await condition():
            await asyncio.sleep(0.05)


def is_in_state(durable: Durable, attempt: str, state: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await durable.get_state(attempt, 1) == state

    return check


def is_done(durable: Durable, attempt: str) -> Callable[[], Awaitable[bool]]:
    return is_in_state(durable, attempt, "done")


async def test_a_workflow_continues_in_another_process(make: Make) -> None:
    executed: list[str] = []
    reached, gate = asyncio.Event(), asyncio.Event()
    main_loop = asyncio.get_running_loop()

    async def act(name: str) -> StepResult:
        assert asyncio.get_running_loop() is main_loop
        if name == "second":
            reached.set()
            await gate.wait()
        executed.append(name)
        return {"name": name}

    async def run_round(step: StepRunner, attempt_id: str, number: int) -> None:
        first = await step("first", act, "first")
        second = await step("second", act, "second")
        await step("third", act, f"{attempt_id}-{number}-{first['name']}-{second['name']}")

    durable = make(run_round)
    assert await durable.get_state("att_1", 1) is None
    await durable.begin("att_1", 1)
    await durable.begin("att_1", 1)
    await reached.wait()
    assert await durable.get_state("att_1", 1) == "running"
    await durable.close()
    assert executed == ["first"]

    gate.set()
    again = make(run_round)
    await until(is_done(again, "att_1"))
    assert executed == ["first", "second", "att_1-1-first-second"]


async def test_workflows_that_ended_long_ago_are_deleted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.domain.tasks.durable.DELETE_BATCH", 2)
    gate = asyncio.Event()

    async def act() -> StepResult:
        return {}

    async def hold() -> StepResult:
        await gate.wait()
        return {}

    async def run_round(step: StepRunner, attempt_id: str, number: int) -> None:
        await step("act", act)
        if attempt_id == "att_fails":
            raise ValueError
        if attempt_id == "att_runs":
            await step("hold", hold)

    durable = make(run_round)
    await durable.tidy(timedelta())
    ended = {f"att_{number}": "done" for number in range(4)} | {"att_fails": "broken"}
    for attempt in [*ended, "att_runs"]:
        await durable.begin(attempt, 1)
    for attempt, state in ended.items():
        await until(is_in_state(durable, attempt, state))
    await durable.tidy(timedelta(days=1))
    assert [await durable.get_state(attempt, 1) for attempt in ended] == [*ended.values()]
    await durable.tidy(timedelta())
    assert [await durable.get_state(attempt, 1) for attempt in ended] == [None] * len(ended)
    gate.set()
    await until(is_done(durable, "att_runs"))


class TouchingFile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self._path), "w")


async def test_a_pickle_in_the_database_is_not_loaded(tmp_path: Path) -> None:
    """A backup that somebody has changed can bring one."""
    database, marker, gate = tmp_path / "workflows.db", tmp_path / "marker", asyncio.Event()

    async def hold() -> StepResult:
        await gate.wait()
        return {}

    async def run_round(step: StepRunner, attempt_id: str, number: int) -> None:
        await step("hold", hold)

    durable = Durable(f"sqlite:///{database}", "test", run_round)
    for attempt in ("att_1", "att_2"):
        await durable.begin(attempt, 1)
    await durable.close()
    pickled = base64.b64encode(pickle.dumps(TouchingFile(marker))).decode()
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE workflow_status SET serialization = 'py_pickle' WHERE workflow_uuid = 'att_1-1'")
        changed = connection.execute("UPDATE workflow_input SET inputs = ? WHERE workflow_uuid = 'att_1-1'", (pickled,))
        assert changed.rowcount == 1
    gate.set()
    again = Durable(f"sqlite:///{database}", "test", run_round)
    try:
        await until(is_done(again, "att_2"))
        with contextlib.suppress(Exception):
            await again.get_state("att_1", 1)
        assert not marker.exists()
    finally:
        await again.close()


async def test_closing_while_opening_does_not_hang(make: Make) -> None:
    async def run_round(step: StepRunner, attempt_id: str, number: int) -> None: ...

    durable = make(run_round)
    reading_state = asyncio.create_task(durable.get_state("att_1", 1))
    async with asyncio.timeout(40):
        while durable.loop is None:
            await asyncio.sleep(0)
        await durable.close()
    await asyncio.wait((reading_state,))


async def test_many_workflows_run_at_once_and_a_failing_one_is_broken(make: Make) -> None:
    executed: list[Any] = []

    async def act(number: int) -> StepResult:
        await asyncio.sleep(0)
        if number == 7:
            raise ValueError("seven")
        executed.append(number)
        return {}

    async def run_round(step: StepRunner, attempt_id: str, number: int) -> None:
        await step("act", act, int(attempt_id))

    durable = make(run_round)
    await asyncio.gather(*(durable.begin(str(number), 1) for number in range(20)))

    async def all_ended() -> bool:
        return all([await durable.get_state(str(number), 1) in ("done", "broken") for number in range(20)])

    await until(all_ended)
    assert sorted(executed) == [number for number in range(20) if number != 7]
    assert await durable.get_state("7", 1) == "broken"
    assert await asyncio.to_thread(lambda: "our threads work") == "our threads work"


KILLED = """
    import asyncio, os, sys
    from sandyard.platform.domain.tasks.durable import Durable

    async def act(name):
        if name == "second" and os.path.getsize("did") < 10_000 and sys.argv[1] == "die":
            os.kill(os.getpid(), 9)
        with open("did", "a") as file:
            file.write(name + "\\n")
        return {}

    async def run_round(step, attempt_id, number):
        for name in ("first", "second", "third"):
            await step(name, act, name)

    async def main():
        durable = Durable("sqlite:///workflows.db", "test", run_round)
        await durable.begin("att_1", 1)
        while await durable.get_state("att_1", 1) != "done":
            await asyncio.sleep(0.02)
        await durable.close()

    asyncio.run(main())
"""


@pytest.mark.slow  # tests/acceptance/test_tasks_chaos.py kills whole platforms
@pytest.mark.timeout(400)
def test_a_workflow_survives_repeated_kills(tmp_path: Path) -> None:
    (tmp_path / "did").touch()
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(KILLED))
    for how, code in (("die", -9), ("die", -9), ("live", 0)):
        ended = subprocess.run(
            [sys.executable, program, how], check=False, cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src")}, timeout=90
        )
        assert ended.returncode == code
    assert (tmp_path / "did").read_text().split() == ["first", "second", "third"]
