"""A driver that fails, hangs or is slow, and clients that disconnect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, NetworkPolicy
from sandyard.engine.sandboxes.errors import StuckError
from sandyard.engine.sandboxes.model import Network, OnTimeout, PauseKind
from sandyard.engine.store.database import DatabaseUnavailableError
from sandyard.kit.errors import BusyError, FullError, NoSpaceError, NotFoundError, SandyardError
from tests.unit.engine.sandboxes.harness import SandboxesHarness


async def gather_results(*tasks: asyncio.Task) -> list:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)


VERBS = {
    "freeze": lambda harness, sandbox_id: harness.service.pause(sandbox_id),
    "stop": lambda harness, sandbox_id: harness.service.pause(sandbox_id, memory=False),
    "snapshot": lambda harness, sandbox_id: harness.service.snapshot(sandbox_id),
    "set_network": lambda harness, sandbox_id: harness.service.set_network(sandbox_id, Network(NetworkPolicy(False))),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("ignore_cancel", [False, True])
async def test_a_stuck_verb_is_reported_and_the_sandbox_recovers(
    harness: SandboxesHarness, verb: str, when: str, ignore_cancel: bool
) -> None:
    sandbox = await harness.create()
    harness.driver.block(verb, when, ignore_cancel=ignore_cancel)
    with pytest.raises(StuckError, match=f"did not complete '{verb}'"):
        await asyncio.wait_for(VERBS[verb](harness, sandbox.id), 30)
    harness.driver.clear_faults()
    await harness.settle()
    await harness.clock.advance(2)
    await harness.settle()
    harness.driver.overlaps.clear()  # a verb that ignores cancellation overlaps with the check
    if verb == "snapshot":
        assert harness.host.snapshots == {}
    harness.check()
    current = harness.service.get(sandbox.id)
    if current.running:
        await harness.service.pause(sandbox.id)
    await harness.service.connect(sandbox.id, 60)
    harness.check()


async def test_a_stuck_thaw_leaves_the_sandbox_paused(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.service.pause(sandbox.id)
    harness.driver.block("thaw", "after")
    with pytest.raises(StuckError):
        await harness.service.connect(sandbox.id, 60)
    harness.driver.clear_faults()
    await harness.settle()
    assert harness.service.get(sandbox.id).pause_kind is PauseKind.MEMORY
    harness.check()


async def test_a_sandbox_with_unknown_condition_is_not_used(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.driver.block("freeze", "after")
    harness.driver.block("condition")
    with pytest.raises(StuckError):
        await harness.service.pause(sandbox.id)
    with pytest.raises(StuckError, match="condition"):
        await harness.service.snapshot(sandbox.id)
    harness.driver.clear_faults()
    await harness.service.snapshot(sandbox.id)
    harness.check()


@pytest.mark.parametrize("verb", ["set_timeout", "refresh"])
async def test_extending_a_sandbox_that_is_being_paused_fails(harness: SandboxesHarness, verb: str) -> None:
    sandbox = await harness.create(timeout_s=30, on_timeout=OnTimeout.PAUSE)
    reached = harness.driver.hold("freeze")
    await harness.clock.advance(31)
    await reached.wait()
    extending = asyncio.create_task(getattr(harness.service, verb)(sandbox.id, 300))
    await harness.settle()
    assert not extending.done()
    harness.driver.clear_faults()
    (outcome,) = await gather_results(extending)
    assert isinstance(outcome, NotFoundError)
    assert "is paused" in outcome.message
    harness.check()


@pytest.mark.parametrize("verb", ["create", "fork"])
async def test_a_sandbox_created_late_by_a_stuck_verb_is_removed(harness: SandboxesHarness, verb: str) -> None:
    sandbox = await harness.create()
    harness.driver.block(verb, "after", ignore_cancel=True)
    if verb == "create":
        with pytest.raises(StuckError):
            await harness.create()
    else:
        (outcome,) = await harness.service.fork(sandbox.id)
        assert isinstance(outcome.error, StuckError)
    assert len(harness.host.machines) == 2
    harness.driver.clear_faults()
    await harness.settle()
    harness.check()


@pytest.mark.parametrize("verb", ["freeze", "stop", "snapshot", "fork", "set_network"])
@pytest.mark.parametrize("ignore_cancel", [False, True])
async def test_kill_does_not_wait_for_a_stuck_verb(tmp_path: Path, verb: str, ignore_cancel: bool) -> None:
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    harness.driver.blocked_s = 60.0  # the verb is still running when the sandbox is killed
    sandbox = await harness.create()
    reached = harness.driver.block(verb, ignore_cancel=ignore_cancel)
    run = VERBS.get(verb, lambda harness, sandbox_id: harness.service.fork(sandbox_id))
    task = asyncio.create_task(run(harness, sandbox.id))
    await reached.wait()
    waiting = asyncio.create_task(harness.service.snapshot(sandbox.id))
    await asyncio.wait_for(harness.service.kill(sandbox.id), 30)
    assert harness.host.machines == {} and harness.service.find(sandbox.id) is None
    harness.driver.clear_faults()
    outcome, queued = await gather_results(task, waiting)
    assert isinstance(queued, NotFoundError)
    if verb == "fork" and not isinstance(outcome, BaseException):
        assert outcome[0].error is not None
    else:
        assert isinstance(outcome, SandyardError)
    await harness.settle()
    assert harness.host.machines == {} and harness.host.snapshots == {}
    await harness.stop()


async def test_a_stuck_kill_is_retried_until_it_succeeds(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.driver.block("kill")
    with pytest.raises(BusyError, match="keeps trying"):
        await harness.service.kill(sandbox.id)
    with pytest.raises(NotFoundError):
        harness.service.get(sandbox.id)
    assert sandbox.id in harness.host.machines
    harness.driver.clear_faults()
    await harness.clock.advance(2)
    await harness.settle()
    harness.check()


async def test_a_killed_sandbox_uses_capacity_until_it_is_removed(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, max_sandboxes=1)
    await harness.start()
    sandbox = await harness.create()
    harness.driver.block("kill")
    with pytest.raises(BusyError):
        await harness.service.kill(sandbox.id)
    with pytest.raises(FullError):
        await harness.create()
    harness.driver.clear_faults()
    await harness.clock.advance(2)
    await harness.settle()
    await harness.create()
    await harness.stop()


async def test_a_snapshot_is_kept_until_the_sandbox_that_uses_it_is_killed(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    snapshot = await harness.service.snapshot(sandbox.id)
    child = await harness.create(template=snapshot.id)
    harness.driver.fail("kill", SandyardError("no"))
    with pytest.raises(BusyError):
        await harness.service.kill(child.id)
    await harness.service.delete_snapshot(snapshot.id)
    await harness.settle()
    assert snapshot.id in harness.host.snapshots
    harness.driver.clear_faults()
    await harness.clock.advance(2)
    await harness.settle()
    assert harness.host.snapshots == {}
    harness.check()


@pytest.mark.parametrize(
    "verb", ["create", "freeze", "thaw", "stop", "boot", "fork", "snapshot", "kill", "set_network"]
)
async def test_an_unexpected_failure_becomes_an_error_and_leaves_nothing_behind(
    harness: SandboxesHarness, verb: str
) -> None:
    sandbox = await harness.create()
    paused_sandbox = await harness.create()
    await harness.service.pause(paused_sandbox.id, memory=verb != "boot")
    harness.driver.fail(verb, RuntimeError("boom"))
    attempts = {
        "create": harness.create,
        "thaw": lambda: harness.service.connect(paused_sandbox.id, 60),
        "boot": lambda: harness.service.connect(paused_sandbox.id, 60),
        "kill": lambda: harness.service.kill(sandbox.id),
    }
    attempt = attempts.get(verb) or (lambda: VERBS[verb](harness, sandbox.id))
    if verb == "fork":
        (outcome,) = await harness.service.fork(sandbox.id)
        assert "boom" in outcome.error.message
    else:
        with pytest.raises(SandyardError, match="boom"):
            await attempt()
    harness.driver.clear_faults()
    await harness.settle()
    await harness.clock.advance(2)
    await harness.settle()
    harness.check()


async def test_an_agent_that_cannot_be_reached_fails_the_create(harness: SandboxesHarness) -> None:
    harness.driver.fail("connect", SandyardError("no agent"))
    with pytest.raises(SandyardError, match="no agent"):
        await harness.create(env={"A": "1"})
    await harness.settle()
    assert harness.host.machines == {}


async def test_a_full_database_disk_undoes_the_verb(harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await harness.create()

    def raise_no_space(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(harness.service.components.repository, "insert", raise_no_space)
        patch.setattr(harness.service.components.repository, "update", raise_no_space)
        with pytest.raises(NoSpaceError):
            await harness.create()
        with pytest.raises(NoSpaceError):
            await harness.service.pause(sandbox.id)
    await harness.settle()
    await harness.clock.advance(2)
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    harness.check()


@pytest.mark.parametrize("error", [NoSpaceError, DatabaseUnavailableError])
async def test_a_database_that_cannot_be_written_does_not_prevent_a_kill(
    harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch, error: type[SandyardError]
) -> None:
    killed, died, lost = await harness.create(), await harness.create(), await harness.create()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(harness.service.components.repository, "delete", fail)
        await harness.service.kill(killed.id)
        harness.host.end(died.id, keep_files=False)
        await harness.service.kill(lost.id)
        await harness.settle()
        assert harness.service.list().items == () and harness.host.machines == {}
        assert len(harness.service.components.repository.list_all()) == 3
    await harness.clock.advance(3)
    assert harness.service.components.repository.list_all() == []
    assert "killed on request" in harness.service.list_logs(killed.id)[-1].message
    harness.check()


async def test_a_kill_on_a_full_disk_survives_a_crash(
    harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await harness.create()

    def raise_no_space(*_: object) -> None:
        raise NoSpaceError

    with monkeypatch.context() as patch:
        patch.setattr(harness.service.components.repository, "delete", raise_no_space)
        await harness.service.kill(sandbox.id)
        await harness.crash()
    await harness.start()
    assert harness.service.list().items == ()
    harness.check()


async def test_a_false_exit_report_is_ignored(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    machine = harness.host.machines[sandbox.id]
    machine.reason = "so they say"
    machine.ended.set()
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    assert machine.condition is Condition.RUNNING


@pytest.mark.parametrize("verb", ["create", "freeze", "stop", "fork", "snapshot", "kill", "set_network"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_client_that_disconnects_leaves_no_partial_state(
    harness: SandboxesHarness, verb: str, when: str
) -> None:
    sandbox = await harness.create()
    attempts = {
        "create": harness.create,
        "fork": lambda: harness.service.fork(sandbox.id),
        "kill": lambda: harness.service.kill(sandbox.id),
    }
    attempt = attempts.get(verb) or (lambda: VERBS[verb](harness, sandbox.id))
    reached = harness.driver.hold(verb, when)
    task = asyncio.create_task(attempt())
    await reached.wait()
    task.cancel()
    await gather_results(task)
    harness.driver.clear_faults()
    await harness.settle()
    harness.check()
    records = harness.service.list().items
    assert len(records) == {"create": 2, "fork": 2, "kill": 0}.get(verb, 1)


async def test_many_cancelled_requests_leave_a_consistent_state(harness: SandboxesHarness) -> None:
    """Many clients send all kinds of requests at once and disconnect at different moments."""
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
    await gather_results(*tasks)
    await harness.service.components.tasks.wait(5)
    await harness.service.components.background.wait(5)
    await harness.settle()
    harness.check()


async def test_concurrent_verbs_never_overlap_on_one_sandbox(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    attempts = [harness.service.pause(sandbox.id) for _ in range(5)]
    attempts += [harness.service.connect(sandbox.id, 60) for _ in range(5)]
    attempts += [harness.service.snapshot(sandbox.id) for _ in range(5)]
    attempts += [harness.service.fork(sandbox.id) for _ in range(3)]
    await gather_results(*map(asyncio.ensure_future, attempts))
    harness.check()


async def test_concurrent_kills_succeed_once(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    outcomes = await gather_results(*(asyncio.ensure_future(harness.service.kill(sandbox.id)) for _ in range(5)))
    assert sum(outcome is None for outcome in outcomes) == 1
    assert all(isinstance(outcome, NotFoundError) for outcome in outcomes if outcome is not None)


async def test_many_expiries_do_not_block_clients(harness: SandboxesHarness) -> None:
    for _ in range(300):
        await harness.create(timeout_s=10)
    advancing = asyncio.ensure_future(harness.clock.advance(11))
    sandbox = await harness.create(timeout_s=100)
    await advancing
    await harness.settle()
    for _ in range(50):
        await harness.settle()
    assert [item.id for item in harness.service.list().items] == [sandbox.id]
    harness.check()


async def test_close_is_idempotent_and_leaves_sandboxes_running(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.service.close()
    await harness.service.close()
    assert harness.host.machines[sandbox.id].condition is Condition.RUNNING


async def test_a_full_driver_releases_pooled_sandboxes(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=4)
    harness.host.capacity = 4
    await harness.start()
    await harness.settle()
    assert len(harness.host.machines) == 4
    sandbox = await harness.create(network=Network(NetworkPolicy(False)))  # the pool has none with this network
    assert sandbox.id in harness.host.machines
    harness.host.capacity = 1
    with pytest.raises(FullError):
        await harness.create(network=Network(NetworkPolicy(False)))
    await harness.stop()


async def test_a_driver_that_hangs_for_hours_uses_bounded_resources(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    sandbox = await harness.create(timeout_s=80_000)
    harness.driver.blocked_s = harness.driver.rest_s = 0.005
    harness.driver.block("freeze", "after")
    harness.driver.block("condition")
    with pytest.raises(StuckError):
        await harness.service.pause(sandbox.id)
    for _ in range(30):
        await harness.clock.advance(100)
        await asyncio.sleep(1.2 * harness.driver.blocked_s)
    assert len(harness.service.components.background) <= 2
    assert [verb for verb, _ in harness.driver.calls].count("condition") <= 40
    harness.driver.clear_faults()
    await harness.clock.advance(100)
    await harness.settle()
    harness.check()
    await harness.stop()


async def test_a_snapshot_deleted_while_a_create_starts_is_kept_for_it(harness: SandboxesHarness) -> None:
    snapshot = await harness.service.snapshot((await harness.create()).id)
    creating = asyncio.ensure_future(harness.create(template=snapshot.id))
    await asyncio.sleep(0)  # the create has resolved the snapshot but does not use it yet
    await harness.service.delete_snapshot(snapshot.id)
    created = await creating
    assert snapshot.id in created.snapshots
    assert snapshot.id in harness.host.snapshots
    harness.check()
