"""A driver that is broken, stuck or slow, and clients that go away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, NetworkPolicy
from sandyard.engine.sandboxes.errors import StuckError
from sandyard.engine.sandboxes.model import Network, OnTimeout, PauseKind
from sandyard.kit.errors import BusyError, FullError, NoSpaceError, NotFoundError, SandyardError
from tests.unit.engine.sandboxes.yard import Yard


async def finish(*tasks: asyncio.Task) -> list:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)


VERBS = {
    "freeze": lambda yard, sandbox_id: yard.service.pause(sandbox_id),
    "stop": lambda yard, sandbox_id: yard.service.pause(sandbox_id, memory=False),
    "snapshot": lambda yard, sandbox_id: yard.service.snapshot(sandbox_id),
    "set_network": lambda yard, sandbox_id: yard.service.set_network(sandbox_id, Network(NetworkPolicy(False))),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("deaf", [False, True])
async def test_a_stuck_verb_says_so_and_the_sandbox_recovers(yard: Yard, verb: str, when: str, deaf: bool) -> None:
    sandbox = await yard.create()
    yard.driver.stuck(verb, when, deaf=deaf)
    with pytest.raises(StuckError, match=f"did not complete '{verb}'"):
        await asyncio.wait_for(VERBS[verb](yard, sandbox.id), 30)
    yard.driver.heal()
    await yard.settle()
    await yard.clock.advance(2)
    await yard.settle()
    yard.driver.overlaps.clear()  # a deaf verb went on while the host was asked, which is nobody's fault but its own
    if verb == "snapshot":
        assert yard.host.snapshots == {}
    yard.check()
    current = yard.service.get(sandbox.id)
    if current.running:
        await yard.service.pause(sandbox.id)
    await yard.service.connect(sandbox.id, 60)
    yard.check()


async def test_a_stuck_thaw_leaves_it_paused(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.service.pause(sandbox.id)
    yard.driver.stuck("thaw", "after")
    with pytest.raises(StuckError):
        await yard.service.connect(sandbox.id, 60)
    yard.driver.heal()
    await yard.settle()
    assert yard.service.get(sandbox.id).pause_kind is PauseKind.MEMORY
    yard.check()


async def test_while_its_condition_cannot_be_learned_a_sandbox_is_not_used(yard: Yard) -> None:
    sandbox = await yard.create()
    yard.driver.stuck("freeze", "after")
    yard.driver.stuck("condition")
    with pytest.raises(StuckError):
        await yard.service.pause(sandbox.id)
    with pytest.raises(StuckError, match="condition"):
        await yard.service.snapshot(sandbox.id)
    yard.driver.heal()
    await yard.service.snapshot(sandbox.id)
    yard.check()


@pytest.mark.parametrize("verb", ["set_timeout", "refresh"])
async def test_nobody_is_told_that_a_sandbox_lives_on_which_is_about_to_pause(yard: Yard, verb: str) -> None:
    sandbox = await yard.create(timeout_s=30, on_timeout=OnTimeout.PAUSE)
    yard.service._components.calls._deadline = lambda verb: 60.0
    reached = yard.driver.stuck("freeze")
    await yard.clock.advance(31)
    await reached.wait()
    asking = asyncio.create_task(getattr(yard.service, verb)(sandbox.id, 300))
    await yard.settle()
    assert not asking.done()
    yard.driver.heal()
    (outcome,) = await finish(asking)
    assert isinstance(outcome, NotFoundError)
    assert "is paused" in outcome.message
    yard.check()


@pytest.mark.parametrize("verb", ["create", "fork"])
async def test_what_a_stuck_verb_makes_in_the_end_is_removed(yard: Yard, verb: str) -> None:
    sandbox = await yard.create()
    yard.driver.stuck(verb, "after", deaf=True)
    if verb == "create":
        with pytest.raises(StuckError):
            await yard.create()
    else:
        (outcome,) = await yard.service.fork(sandbox.id)
        assert isinstance(outcome.error, StuckError)
    assert len(yard.host.machines) == 2
    yard.driver.heal()
    await yard.settle()
    yard.check()


@pytest.mark.parametrize("verb", ["freeze", "stop", "snapshot", "fork", "set_network"])
@pytest.mark.parametrize("deaf", [False, True])
async def test_kill_does_not_wait_for_a_stuck_verb(tmp_path: Path, verb: str, deaf: bool) -> None:
    yard = Yard(tmp_path)
    await yard.start()
    yard.service._components.calls._deadline = lambda verb: 60.0
    sandbox = await yard.create()
    reached = yard.driver.stuck(verb, deaf=deaf)
    run = VERBS.get(verb, lambda yard, sandbox_id: yard.service.fork(sandbox_id))
    task = asyncio.create_task(run(yard, sandbox.id))
    await reached.wait()
    waiting = asyncio.create_task(yard.service.snapshot(sandbox.id))
    await asyncio.wait_for(yard.service.kill(sandbox.id), 30)
    assert yard.host.machines == {} and yard.service.find(sandbox.id) is None
    yard.driver.heal()
    outcome, queued = await finish(task, waiting)
    assert isinstance(queued, NotFoundError)
    if verb == "fork" and not isinstance(outcome, BaseException):
        assert outcome[0].error is not None
    else:
        assert isinstance(outcome, SandyardError)
    await yard.settle()
    assert yard.host.machines == {} and yard.host.snapshots == {}
    await yard.stop()


async def test_a_stuck_kill_is_tried_until_it_works(yard: Yard) -> None:
    sandbox = await yard.create()
    yard.driver.stuck("kill")
    with pytest.raises(BusyError, match="keeps trying"):
        await yard.service.kill(sandbox.id)
    with pytest.raises(NotFoundError):
        yard.service.get(sandbox.id)
    assert sandbox.id in yard.host.machines
    yard.driver.heal()
    await yard.clock.advance(2)
    await yard.settle()
    yard.check()


async def test_snapshots_under_a_dying_sandbox_are_kept(yard: Yard) -> None:
    sandbox = await yard.create()
    snapshot = await yard.service.snapshot(sandbox.id)
    child = await yard.create(template=snapshot.id)
    yard.driver.broken("kill", SandyardError("no"))
    with pytest.raises(BusyError):
        await yard.service.kill(child.id)
    await yard.service.delete_snapshot(snapshot.id)
    await yard.settle()
    assert snapshot.id in yard.host.snapshots
    yard.driver.heal()
    await yard.clock.advance(2)
    await yard.settle()
    assert yard.host.snapshots == {}
    yard.check()


@pytest.mark.parametrize(
    "verb", ["create", "freeze", "thaw", "stop", "boot", "fork", "snapshot", "kill", "set_network"]
)
async def test_an_unexpected_failure_becomes_an_error_and_nothing_is_left(yard: Yard, verb: str) -> None:
    sandbox = await yard.create()
    asleep = await yard.create()
    await yard.service.pause(asleep.id, memory=verb != "boot")
    yard.driver.broken(verb, RuntimeError("boom"))
    attempts = {
        "create": yard.create,
        "thaw": lambda: yard.service.connect(asleep.id, 60),
        "boot": lambda: yard.service.connect(asleep.id, 60),
        "kill": lambda: yard.service.kill(sandbox.id),
    }
    attempt = attempts.get(verb) or (lambda: VERBS[verb](yard, sandbox.id))
    if verb == "fork":
        (outcome,) = await yard.service.fork(sandbox.id)
        assert "boom" in outcome.error.message
    else:
        with pytest.raises(SandyardError, match="boom"):
            await attempt()
    yard.driver.heal()
    await yard.settle()
    await yard.clock.advance(2)
    await yard.settle()
    yard.check()


async def test_an_agent_that_refuses_its_settings_fails_the_create(yard: Yard) -> None:
    yard.driver.broken("connect", SandyardError("no agent"))
    with pytest.raises(SandyardError, match="no agent"):
        await yard.create(env={"A": "1"})
    await yard.settle()
    assert yard.host.machines == {}


async def test_a_full_database_disk_undoes_the_verb(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await yard.create()

    def full(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(yard.service._components.repository, "insert", full)
        patch.setattr(yard.service._components.repository, "update", full)
        with pytest.raises(NoSpaceError):
            await yard.create()
        with pytest.raises(NoSpaceError):
            await yard.service.pause(sandbox.id)
    await yard.settle()
    await yard.clock.advance(2)
    await yard.settle()
    assert yard.service.get(sandbox.id).running
    yard.check()


async def test_a_full_disk_does_not_hinder_a_kill(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, died, lost = await yard.create(), await yard.create(), await yard.create()

    def full(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(yard.service._components.repository, "delete", full)
        await yard.service.kill(killed.id)
        yard.host.end(died.id, trace=False)
        await yard.service.kill(lost.id)
        await yard.settle()
        assert yard.service.list().items == () and yard.host.machines == {}
        assert len(yard.service._components.repository.all()) == 3
    await yard.clock.advance(3)
    assert yard.service._components.repository.all() == []
    assert "killed on request" in yard.service.logs(killed.id)[-1].message
    yard.check()


async def test_a_kill_on_a_full_disk_and_then_a_crash(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await yard.create()

    def full(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(yard.service._components.repository, "delete", full)
        await yard.service.kill(sandbox.id)
        await yard.crash()
    await yard.start()
    assert yard.service.list().items == ()
    yard.check()


async def test_a_watch_that_is_wrong_is_not_believed(yard: Yard) -> None:
    sandbox = await yard.create()
    machine = yard.host.machines[sandbox.id]
    machine.reason = "so they say"
    machine.ended.set()
    await yard.settle()
    assert yard.service.get(sandbox.id).running
    assert machine.condition is Condition.RUNNING


@pytest.mark.parametrize("verb", ["create", "freeze", "stop", "fork", "snapshot", "kill", "set_network"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_client_that_goes_away_leaves_no_half_state(yard: Yard, verb: str, when: str) -> None:
    sandbox = await yard.create()
    attempts = {
        "create": yard.create,
        "fork": lambda: yard.service.fork(sandbox.id),
        "kill": lambda: yard.service.kill(sandbox.id),
    }
    attempt = attempts.get(verb) or (lambda: VERBS[verb](yard, sandbox.id))
    reached = yard.driver.held(verb, when)
    task = asyncio.create_task(attempt())
    await reached.wait()
    task.cancel()
    await finish(task)
    yard.driver.heal()
    await yard.settle()
    yard.check()
    records = yard.service.list().items
    assert len(records) == {"create": 2, "fork": 2, "kill": 0}.get(verb, 1)


async def test_cancel_storm(yard: Yard) -> None:
    """Many clients ask for everything at once and all go away at different moments."""
    sandboxes = [await yard.create() for _ in range(4)]
    tasks = []
    for number in range(200):
        sandbox = sandboxes[number % 4]
        attempt = [
            lambda sandbox=sandbox: yard.service.pause(sandbox.id),
            lambda sandbox=sandbox: yard.service.connect(sandbox.id, 60),
            yard.create,
            lambda sandbox=sandbox: yard.service.fork(sandbox.id, 2),
            lambda sandbox=sandbox: yard.service.snapshot(sandbox.id),
            lambda sandbox=sandbox: yard.service.pause(sandbox.id, memory=False),
        ][number % 6]
        tasks.append(asyncio.create_task(attempt()))
        if number % 3 == 0:
            await asyncio.sleep(0)
        if number >= 20:
            tasks[number - 20].cancel()
    await finish(*tasks)
    await yard.service._components.tasks.wait(5)
    await yard.service._components.background.wait(5)
    await yard.settle()
    yard.check()


async def test_concurrent_verbs_never_overlap_on_one_sandbox(yard: Yard) -> None:
    sandbox = await yard.create()
    attempts = [yard.service.pause(sandbox.id) for _ in range(5)]
    attempts += [yard.service.connect(sandbox.id, 60) for _ in range(5)]
    attempts += [yard.service.snapshot(sandbox.id) for _ in range(5)]
    attempts += [yard.service.fork(sandbox.id) for _ in range(3)]
    await finish(*map(asyncio.ensure_future, attempts))
    yard.check()


async def test_concurrent_kills_succeed_once(yard: Yard) -> None:
    sandbox = await yard.create()
    outcomes = await finish(*(asyncio.ensure_future(yard.service.kill(sandbox.id)) for _ in range(5)))
    assert sum(one is None for one in outcomes) == 1
    assert all(isinstance(one, NotFoundError) for one in outcomes if one is not None)


async def test_a_thousand_expiries_leave_room_for_clients(yard: Yard) -> None:
    for _ in range(300):
        await yard.create(timeout_s=10)
    advancing = asyncio.ensure_future(yard.clock.advance(11))
    sandbox = await yard.create(timeout_s=100)
    await advancing
    await yard.settle()
    for _ in range(50):
        await yard.settle()
    assert [one.id for one in yard.service.list().items] == [sandbox.id]
    yard.check()


async def test_close_lets_go_and_leaves_sandboxes(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.service.close()
    await yard.service.close()
    assert yard.host.machines[sandbox.id].condition is Condition.RUNNING


async def test_full_driver_with_a_pool_gives_the_pool_back(tmp_path: Path) -> None:
    yard = Yard(tmp_path, pool_size=4)
    yard.host.room = 4
    await yard.start()
    await yard.settle()
    assert len(yard.host.machines) == 4
    sandbox = await yard.create(network=Network(NetworkPolicy(False)))  # not what the pool has ready
    assert sandbox.id in yard.host.machines
    yard.host.room = 1
    with pytest.raises(FullError):
        await yard.create(network=Network(NetworkPolicy(False)))
    await yard.stop()


async def test_a_driver_that_stays_silent_for_hours_costs_nothing(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    await yard.start()
    sandbox = await yard.create(timeout_s=80_000)
    yard.driver.stuck("freeze", "after")
    yard.driver.stuck("condition")
    with pytest.raises(StuckError):
        await yard.service.pause(sandbox.id)
    for _ in range(30):
        await yard.clock.advance(100)
        await asyncio.sleep(0.06)
    assert len(yard.service._components.background) <= 2
    assert [verb for verb, _ in yard.driver.calls].count("condition") <= 40
    yard.driver.heal()
    await yard.clock.advance(100)
    await yard.settle()
    yard.check()
    await yard.stop()


async def test_a_snapshot_that_is_deleted_while_a_create_begins_is_kept_for_it(yard: Yard) -> None:
    snapshot = await yard.service.snapshot((await yard.create()).id)
    creating = asyncio.ensure_future(yard.create(template=snapshot.id))
    await asyncio.sleep(0)  # it has found the snapshot, and has not begun to use it
    await yard.service.delete_snapshot(snapshot.id)
    made = await creating
    assert snapshot.id in made.snapshots
    assert snapshot.id in yard.host.snapshots
    yard.check()
