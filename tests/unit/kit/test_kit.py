from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import json
import logging
import pickle

import pytest

from sandyard.kit import logging as kit_logging
from sandyard.kit.clock import ManualClock, SystemClock
from sandyard.kit.errors import ConflictError
from sandyard.kit.ids import ALPHABET, make_ordered_id, make_random_id, make_random_secret
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import TaskSet, end_tasks


def test_secret_is_never_shown() -> None:
    secret = Secret("hunter2")
    shown = f"{secret} {secret!r} {secret!s} {secret:>5} {[secret]} { ({'k': secret}) }"
    assert "hunter2" not in shown and "***" in shown
    assert secret.reveal() == "hunter2"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)
    assert copy.deepcopy(secret) is secret


def test_secret_matches_only_itself() -> None:
    secret = Secret("hunter2")
    assert secret.matches("hunter2") and secret == Secret("hunter2") and hash(secret) == hash(Secret("hunter2"))
    assert not secret.matches(None) and not secret.matches("") and not secret.matches("hunter\udc80")
    assert secret != "hunter2" and not Secret("")


def test_random_ids_are_unique_and_use_the_whole_alphabet() -> None:
    ids = {make_random_id("i", 20) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(item) == 21 and item[0] == "i" and set(item) <= set(ALPHABET) for item in ids)
    assert set("".join(ids)) == set(ALPHABET)
    assert len(make_random_secret("e2b_", 20).reveal()) == 44


@pytest.fixture
def stream() -> io.StringIO:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield io.StringIO()
    root.handlers[:], root.level = before


def test_log_lines_for_people(stream: io.StringIO) -> None:
    kit_logging.configure("info", stream=stream)
    log = kit_logging.get_logger("x")
    log.debug("not_shown")
    log.info(
        "sandbox_created", sandbox="i1", ms=1.23456, token=Secret("hunter2"), words='a "b" c', bad="a\nb", none=None
    )
    line = stream.getvalue()
    assert line.count("\n") == 1 and "hunter2" not in line
    assert line.endswith(
        ' info sandbox_created sandbox=i1 ms=1.235 token=*** words="a \\"b\\" c" bad=a\\nb none=None\n'
    )


def test_log_lines_for_machines(stream: io.StringIO) -> None:
    kit_logging.configure("debug", as_json=True, stream=stream)
    kit_logging.get_logger("x").error("verb_failed", exc=ValueError("boom"), token=Secret("hunter2"), sandbox="i1")
    entry = json.loads(stream.getvalue())
    assert entry["event"] == "verb_failed" and entry["level"] == "error" and entry["token"] == "***"
    assert "ValueError: boom" in entry["exception"] and entry["time"].endswith("Z")


async def test_manual_clock_wakes_in_order() -> None:
    clock = ManualClock(100)
    woken = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.now()))

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (5, 1, 3, 50)]
    await asyncio.sleep(0)
    await clock.advance(10)
    assert woken == [(1, 101), (3, 103), (5, 105)] and clock.now() == 110
    tasks[3].cancel()
    await clock.advance(100)
    assert len(woken) == 3
    await clock.sleep(0)


async def test_the_system_clock_advances() -> None:
    clock = SystemClock()
    before = clock.now()
    await clock.sleep(0.001)
    assert clock.now() > before


async def test_finish_continues_when_its_caller_is_cancelled() -> None:
    tasks, gate, done = TaskSet("t"), asyncio.Event(), []

    async def work() -> int:
        await gate.wait()
        done.append(1)
        return 7

    caller = asyncio.create_task(tasks.finish(work()))
    await asyncio.sleep(0.001)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled() and len(tasks) == 1
    gate.set()
    assert await tasks.wait(1) and done == [1] and len(tasks) == 0
    assert await tasks.finish(work()) == 7


async def test_failures_reach_the_caller_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskSet("t")

    async def fail(error: Exception) -> None:
        raise error

    with pytest.raises(ConflictError):
        await tasks.finish(fail(ConflictError()))
    assert caplog.records == []
    tasks.spawn(fail(ConflictError()))
    tasks.spawn(fail(ValueError()))
    await tasks.wait(1)
    await asyncio.sleep(0)
    assert {record.message for record in caplog.records} == {"task_failed", "task_crashed"}


async def test_cancel_is_repeated_until_a_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.kit.tasks.RECANCEL_S", 0.01)
    tasks = TaskSet("t")

    async def ignore_cancellation() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(1000)

    tasks.spawn(ignore_cancellation())
    await asyncio.sleep(0)
    await asyncio.wait_for(tasks.cancel(), 10)
    assert len(tasks) == 0


async def test_a_cancelled_end_tasks_still_waits_for_its_tasks() -> None:
    release = asyncio.Event()

    async def ignore_cancellation() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    task = asyncio.create_task(ignore_cancellation())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_tasks(task))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait((ending,), timeout=0.01)
    assert not ending.done()
    release.set()
    await asyncio.wait((ending,), timeout=5)
    assert task.done()
    assert ending.cancelled()


async def test_a_repeatedly_cancelled_end_tasks_lets_its_tasks_clean_up() -> None:
    """AnyIO cancels in every iteration of the loop until its scope is left."""
    ended = False

    async def clean_up() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(1000)
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            ended = True

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_tasks(task))
    while not ending.done():
        await asyncio.sleep(0)
        ending.cancel("by a scope")
    assert ended
    with pytest.raises(asyncio.CancelledError, match="by a scope"):
        await ending


async def test_cancel_ends_current_and_later_tasks() -> None:
    tasks = TaskSet("t")
    first = tasks.spawn(asyncio.sleep(1000))
    assert not await tasks.wait(0.001)
    await tasks.cancel()
    late = tasks.spawn(asyncio.sleep(1000))
    await asyncio.gather(first, late, return_exceptions=True)
    assert first.cancelled() and late.cancelled()


def test_later_ids_sort_after_earlier_ones() -> None:
    """Also within a millisecond."""
    made_ids = [make_ordered_id("x_") for _ in range(5000)]
    assert made_ids == sorted(set(made_ids))
    assert {len(made_id) for made_id in made_ids} == {22}
