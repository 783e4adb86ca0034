"""A driver that is broken, stuck or slow, and clients that go away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, NetworkPolicy
from sandyard.engine.sandboxes.errors import StuckError
from sandyard.engine.sandboxes.model import Network, OnTimeout, PauseKind
from sandyard.kit.errors import BusyError, FullError, NoSpaceError, NotFoundError, SandyardError
from tests.unit.engine.sandboxes.harness import SandboxesHarness


async def finish(*tasks: asyncio.Task) -> list:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)


VERBS = {
    "freeze": lambda harness, sandbox_id: harness.service.pause(sandbox_id),
    "stop": lambda harness, sandbox_id: harness.service.pause(sandbox_id, memory=False),
    "snapshot": lambda harness, sandbox_id: harness.service.snapshot(sandbox_id),
    "set_network": lambda harness, sandbox_id: harness.service.set_network(sandbox_id, Network(NetworkPolicy(False))),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("deaf", [False, True])
async def test_a_stuck_verb_says_so_and_the_sandbox_recovers(
    harness: SandboxesHarness, verb: str, when: str, deaf: bool
) -> None:
    sandbox = await harness.create()
    harness.driver.stuck(verb, when, deaf=deaf)
    with pytest.raises(StuckError, match=f"did not complete '{verb}'"):
        await asyncio.wait_for(VERBS[verb](harness, sandbox.id), 30)
    harness.driver.heal()
    await harness.settle()
    await harness.clock.advance(2)
    await harness.settle()
    harness.driver.overlaps.clear()  # a deaf verb went on while the host was asked, which is nobody's fault but its own
    if verb == "snapshot":
        assert harness.host.snapshots == {}
    harness.check()
    current = harness.service.get(sandbox.id)
    if current.running:
        await harness.service.pause(sandbox.id)
    await harness.service.connect(sandbox.id, 60)
    harness.check()


async def test_a_stuck_thaw_leaves_it_paused(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.service.pause(sandbox.id)
    harness.driver.stuck("thaw", "after")
    with pytest.raises(StuckError):
        await harness.service.connect(sandbox.id, 60)
    harness.driver.heal()
    await harness.settle()
    assert harness.service.get(sandbox.id).pause_kind is PauseKind.MEMORY
    harness.check()


async def test_while_its_condition_cannot_be_learned_a_sandbox_is_not_used(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.driver.stuck("freeze", "after")
    harness.driver.stuck("condition")
    with pytest.raises(StuckError):
        await harness.service.pause(sandbox.id)
    with pytest.raises(StuckError, match="condition"):
        await harness.service.snapshot(sandbox.id)
    harness.driver.heal()
    await harness.service.snapshot(sandbox.id)
    harness.check()


@pytest.mark.parametrize("verb", ["set_timeout", "refresh"])
async def test_nobody_is_told_that_a_sandbox_lives_on_which_is_about_to_pause(
    harness: SandboxesHarness, verb: str
) -> None:
    sandbox = await harness.create(timeout_s=30, on_timeout=OnTimeout.PAUSE)
    harness.service._components.calls._deadline = lambda verb: 60.0
    reached = harness.driver.stuck("freeze")
    await harness.clock.advance(31)
    await reached.wait()
    asking = asyncio.create_task(getattr(harness.service, verb)(sandbox.id, 300))
    await harness.settle()
    assert not asking.done()
    harness.driver.heal()
    (outcome,) = await finish(asking)
    assert isinstance(outcome, NotFoundError)
    assert "is paused" in outcome.message
    harness.check()


@pytest.mark.parametrize("verb", ["create", "fork"])
async def test_what_a_stuck_verb_makes_in_the_end_is_removed(harness: SandboxesHarness, verb: str) -> None:
    sandbox = await harness.create()
    harness.driver.stuck(verb, "after", deaf=True)
    if verb == "create":
        with pytest.raises(StuckError):
            await harness.create()
    else:
        (outcome,) = await harness.service.fork(sandbox.id)
        assert isinstance(outcome.error, StuckError)
    assert len(harness.host.machines) == 2
    harness.driver.heal()
    await harness.settle()
    harness.check()


@pytest.mark.parametrize("verb", ["freeze", "stop", "snapshot", "fork", "set_network"])
@pytest.mark.parametrize("deaf", [False, True])
async def test_kill_does_not_wait_for_a_stuck_verb(tmp_path: Path, verb: str, deaf: bool) -> None:
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    harness.service._components.calls._deadline = lambda verb: 60.0
    sandbox = await harness.create()
    reached = harness.driver.stuck(verb, deaf=deaf)
    run = VERBS.get(verb, lambda harness, sandbox_id: harness.service.fork(sandbox_id))
    task = asyncio.create_task(run(harness, sandbox.id))
    await reached.wait()
    waiting = asyncio.create_task(harness.service.snapshot(sandbox.id))
    await asyncio.wait_for(harness.service.kill(sandbox.id), 30)
    assert harness.host.machines == {} and harness.service.find(sandbox.id) is None
    harness.driver.heal()
    outcome, queued = await finish(task, waiting)
    assert isinstance(queued, NotFoundError)
    if verb == "fork" and not isinstance(outcome, BaseException):
        assert outcome[0].error is not None
    else:
        assert isinstance(outcome, SandyardError)
    await harness.settle()
    assert harness.host.machines == {} and harness.host.snapshots == {}
    await harness.stop()


async def test_a_stuck_kill_is_tried_until_it_works(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.driver.stuck("kill")
    with pytest.raises(BusyError, match="keeps trying"):
        await harness.service.kill(sandbox.id)
    with pytest.raises(NotFoundError):
        harness.service.get(sandbox.id)
    assert sandbox.id in harness.host.machines
    harness.driver.heal()
    await harness.clock.advance(2)
    await harness.settle()
    harness.check()


async def test_snapshots_under_a_dying_sandbox_are_kept(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    snapshot = await harness.service.snapshot(sandbox.id)
    child = await harness.create(template=snapshot.id)
    harness.driver.broken("kill", SandyardError("no"))
    with pytest.raises(BusyError):
        await harness.service.kill(child.id)
    await harness.service.delete_snapshot(snapshot.id)
    await harness.settle()
    assert snapshot.id in harness.host.snapshots
    harness.driver.heal()
    await harness.clock.advance(2)
    await harness.settle()
    assert harness.host.snapshots == {}
    harness.check()


@pytest.mark.parametrize(
    "verb", ["create", "freeze", "thaw", "stop", "boot", "fork", "snapshot", "kill", "set_network"]
)
async def test_an_unexpected_failure_becomes_an_error_and_nothing_is_left(harness: SandboxesHarness, verb: str) -> None:
    sandbox = await harness.create()
    asleep = await harness.create()
    await harness.service.pause(asleep.id, memory=verb != "boot")
    harness.driver.broken(verb, RuntimeError("boom"))
    attempts = {
        "create": harness.create,
        "thaw": lambda: harness.service.connect(asleep.id, 60),
        "boot": lambda: harness.service.connect(asleep.id, 60),
        "kill": lambda: harness.service.kill(sandbox.id),
    }
    attempt = attempts.get(verb) or (lambda: VERBS[verb](harness, sandbox.id))
    if verb == "fork":
        (outcome,) = await harness.service.fork(sandbox.id)
        assert "boom" in outcome.error.message
    else:
        with pytest.raises(SandyardError, match="boom"):
            await attempt()
    harness.driver.heal()
    await harness.settle()
    await harness.clock.advance(2)
    await harness.settle()
    harness.check()


async def test_an_agent_that_refuses_its_settings_fails_the_create(harness: SandboxesHarness) -> None:
    harness.driver.broken("connect", SandyardError("no agent"))
    with pytest.raises(SandyardError, match="no agent"):
        await harness.create(env={"A": "1"})
    await harness.settle()
    assert harness.host.machines == {}


async def test_a_full_database_disk_undoes_the_verb(harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await harness.create()

    def full(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(harness.service._components.repository, "insert", full)
        patch.setattr(harness.service._components.repository, "update", full)
        with pytest.raises(NoSpaceError):
            await harness.create()
        with pytest.raises(NoSpaceError):
            await harness.service.pause(sandbox.id)
    await harness.settle()
    await harness.clock.advance(2)
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    harness.check()


async def test_a_full_disk_does_not_hinder_a_kill(harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, died, lost = await harness.create(), await harness.create(), await harness.create()

    def full(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(harness.service._components.repository, "delete", full)
        await harness.service.kill(killed.id)
        harness.host.end(died.id, trace=False)
        await harness.service.kill(lost.id)
        await harness.settle()
        assert harness.service.list().items == () and harness.host.machines == {}
        assert len(harness.service._components.repository.all()) == 3
    await harness.clock.advance(3)
    assert harness.service._components.repository.all() == []
    assert "killed on request" in harness.service.logs(killed.id)[-1].message
    harness.check()


async def test_a_kill_on_a_full_disk_and_then_a_crash(
    harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await harness.create()

    def full(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(harness.service._components.repository, "delete", full)
        await harness.service.kill(sandbox.id)
        await harness.crash()
    await harness.start()
    assert harness.service.list().items == ()
    harness.check()


async def test_a_watch_that_is_wrong_is_not_believed(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    machine = harness.host.machines[sandbox.id]
    machine.reason = "so they say"
    machine.ended.set()
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    assert machine.condition is Condition.RUNNING


@pytest.mark.parametrize("verb", ["create", "freeze", "stop", "fork", "snapshot", "kill", "set_network"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_client_that_goes_away_leaves_no_half_state(harness: SandboxesHarness, verb: str, when: str) -> None:
    sandbox = await harness.create()
    attempts = {
        "create": harness.create,
        "fork": lambda: harness.service.fork(sandbox.id),
        "kill": lambda: harness.service.kill(sandbox.id),
    }
    attempt = attempts.get(verb) or (lambda: VERBS[verb](harness, sandbox.id))
    reached = harness.driver.held(verb, when)
    task = asyncio.create_task(attempt())
    await reached.wait()
    task.cancel()
    await finish(task)
    harness.driver.heal()
    await harness.settle()
    harness.check()
    records = harness.service.list().items
    assert len(records) == {"create": 2, "fork": 2, "kill": 0}.get(verb, 1)


async def test_cancel_storm(harness: SandboxesHarness) -> None:
    """Many clients ask for everything at once and all go away at different moments."""
    sandboxes = [await harness.create() for _ in range(4)]
    tasks = []
    for number in range(200):
        sandbox = sandboxes[number % 4]
        attempt = [
            lambda sandbox=sandbox: harness.service.pause(sandbox.id),
            lambda sandbox=sandbox: harness.service.connect(sandbox.id, 60),
            harness.create,
            lambda sandbox=sandbox: harness.service.fork(sandbox.id, 2),
            lambda sandbox=sandbox: harness.service.snapshot(sandbox.id),
            lambda sandbox=sandbox: harness.service.pause(sandbox.id, memory=False),
        ][number % 6]
        tasks.append(asyncio.create_task(attempt()))
        if number % 3 == 0:
            await asyncio.sleep(0)
        if number >= 20:
            tasks[number - 20].cancel()
    await finish(*tasks)
    await harness.service._components.tasks.wait(5)
    await harness.service._components.background.wait(5)
    await harness.settle()
    harness.check()


async def test_concurrent_verbs_never_overlap_on_one_sandbox(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    attempts = [harness.service.pause(sandbox.id) for _ in range(5)]
    attempts += [harness.service.connect(sandbox.id, 60) for _ in range(5)]
    attempts += [harness.service.snapshot(sandbox.id) for _ in range(5)]
    attempts += [harness.service.fork(sandbox.id) for _ in range(3)]
    await finish(*map(asyncio.ensure_future, attempts))
    harness.check()


async def test_concurrent_kills_succeed_once(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    outcomes = await finish(*(asyncio.ensure_future(harness.service.kill(sandbox.id)) for _ in range(5)))
    assert sum(one is None for one in outcomes) == 1
    assert all(isinstance(one, NotFoundError) for one in outcomes if one is not None)


async def test_a_thousand_expiries_leave_room_for_clients(harness: SandboxesHarness) -> None:
    for _ in range(300):
        await harness.create(timeout_s=10)
    advancing = asyncio.ensure_future(harness.clock.advance(11))
    sandbox = await harness.create(timeout_s=100)
    await advancing
    await harness.settle()
    for _ in range(50):
        await harness.settle()
    assert [one.id for one in harness.service.list().items] == [sandbox.id]
    harness.check()


async def test_close_lets_go_and_leaves_sandboxes(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.service.close()
    await harness.service.close()
    assert harness.host.machines[sandbox.id].condition is Condition.RUNNING


async def test_full_driver_with_a_pool_gives_the_pool_back(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=4)
    harness.host.room = 4
    await harness.start()
    await harness.settle()
    assert len(harness.host.machines) == 4
    sandbox = await harness.create(network=Network(NetworkPolicy(False)))  # not what the pool has ready
    assert sandbox.id in harness.host.machines
    harness.host.room = 1
    with pytest.raises(FullError):
        await harness.create(network=Network(NetworkPolicy(False)))
    await harness.stop()


async def test_a_driver_that_stays_silent_for_hours_costs_nothing(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    sandbox = await harness.create(timeout_s=80_000)
    harness.driver.stuck("freeze", "after")
    harness.driver.stuck("condition")
    with pytest.raises(StuckError):
        await harness.service.pause(sandbox.id)
    for _ in range(30):
        await harness.clock.advance(100)
        await asyncio.sleep(0.06)
    assert len(harness.service._components.background) <= 2
    assert [verb for verb, _ in harness.driver.calls].count("condition") <= 40
    harness.driver.heal()
    await harness.clock.advance(100)
    await harness.settle()
    harness.check()
    await harness.stop()


async def test_a_snapshot_that_is_deleted_while_a_create_begins_is_kept_for_it(harness: SandboxesHarness) -> None:
    snapshot = await harness.service.snapshot((await harness.create()).id)
    creating = asyncio.ensure_future(harness.create(template=snapshot.id))
    await asyncio.sleep(0)  # it has found the snapshot, and has not begun to use it
    await harness.service.delete_snapshot(snapshot.id)
    made = await creating
    assert snapshot.id in made.snapshots
    assert snapshot.id in harness.host.snapshots
    harness.check()
