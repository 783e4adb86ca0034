"""The database against the engine, idleness, and what is cleared away."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sandyard.kit.ids import random_id
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.sandboxes.e2b import EngineError, EngineUnreachableError, SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, ROW
from sandyard.platform.domain.sandboxes.model import NewSandbox, utc_now
from tests.integration.platform.domain.sandboxes.yard import MovableClock, Yard, cleared, opened, until
from tests.protocol.engine import Engine

LONG = 25 * 3600


async def stranger(yard: Yard, instance: str, row_id: str = "sbx_nobody") -> str:
    made = await yard.services.engine.create(
        template="base",
        timeout_s=600,
        metadata={INSTANCE: instance, ROW: row_id},
        envs={},
        idempotency_key=random_id("key-"),
    )
    return made.id


async def unused(yard: Yard, row: Sandbox, seconds: float = LONG) -> None:
    """Nobody has used it for so long."""
    moment = utc_now() - timedelta(seconds=seconds)
    await yard.services.lifecycle.repository.note(row.id, used_at=moment)
    yard.services.lifecycle.activity.forget(row.id)
    yard.services.lifecycle.activity.load(row.id, moment)


# idleness --------------------------------------------------------------------------------------------------------------


async def test_what_nobody_uses_is_paused_and_what_is_in_use_is_not(yard: Yard) -> None:
    maintenance = yard.services.maintenance
    used, silent, unused = [await yard.sandbox(idle_seconds=60) for _ in range(3)]
    foreground = await yard.start(used, "read line < /tmp/pipe || mkfifo /tmp/pipe; cat /tmp/pipe")
    background = await yard.start(silent, "sleep 1000", background=True)
    for command in (foreground, background):
        await until(lambda command=command: runs(yard, command.id), "running")  # type: ignore[misc]
    yard.clock.advance(50)
    await maintenance.pause_idle()
    for row in (used, silent, unused):
        assert (await yard.row(row)).status == "running", "it is not idle for long enough"
    yard.clock.advance(15)
    await maintenance.pause_idle()
    assert [(await yard.row(row)).status for row in (used, silent, unused)] == ["running", "paused", "paused"]
    assert [await yard.state(row) for row in (used, silent, unused)] == ["running", "paused", "paused"]
    await yard.services.commands.kill(yard.owner, foreground.id)
    await maintenance.pause_idle()
    assert (await yard.row(used)).status == "running", "it was in use until now"
    yard.clock.advance(65)
    await maintenance.pause_idle()
    assert (await yard.row(used)).status == "paused"


async def runs(yard: Yard, command_id: str) -> bool:
    return (await yard.services.commands.get(command_id)).status == "running"


async def test_what_a_background_command_says_keeps_its_sandbox_awake(yard: Yard) -> None:
    row = await yard.sandbox(idle_seconds=60)
    command = await yard.start(row, "echo one; while ! test -e /tmp/go; do sleep 0.05; done; echo two", background=True)
    await until(lambda: said(yard, command.id, 4), "one")
    yard.clock.advance(55)
    await yard.run(row, "touch /tmp/go", background=True)
    await yard.wait(command)
    yard.clock.advance(55)
    await yard.services.maintenance.pause_idle()
    assert (await yard.row(row)).status == "running"


async def said(yard: Yard, command_id: str, size: int) -> bool:
    return (await yard.services.commands.get(command_id)).stdout_bytes >= size


async def test_the_last_use_survives_a_restart(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock()
    async with opened(tmp_path, engine_process, monkeypatch, clock) as yard:
        early, late = [await yard.sandbox(idle_seconds=100) for _ in range(2)]
        await yard.services.maintenance.check_health()
        clock.advance(60)
        await yard.run(late, "true")
        await yard.services.maintenance.check_health()
        assert (await yard.row(late)).used_at > (await yard.row(early)).used_at  # type: ignore[operator]
    clock.advance(60)
    async with opened(tmp_path, engine_process, monkeypatch, clock) as yard:
        await yard.services.maintenance.pause_idle()
        assert (await yard.row(early)).status == "paused"
        assert (await yard.row(late)).status == "running"
        await cleared(yard)


# the database against the engine ---------------------------------------------------------------------------------------


async def test_what_the_engine_has_lost_has_failed_with_its_commands(yard: Yard) -> None:
    row, other = await yard.sandbox(), await yard.sandbox()
    command = await yard.start(row, "echo here; sleep 1000", background=True)
    await until(lambda: said(yard, command.id, 5), "output")
    assert row.engine_id
    await yard.services.engine.kill(row.engine_id)
    await yard.services.maintenance.reconcile()
    found = await yard.row(row)
    assert (found.status, found.error_code) == ("error", "sandbox_lost")
    done = await yard.wait(command)
    assert done.status == "lost" and done.error and done.exit_code is None
    assert (await yard.output(done))[0] == b"here\n"
    assert (await yard.row(other)).status == "running"


async def test_the_engine_has_paused_or_woken_by_itself(yard: Yard) -> None:
    paused, woken = await yard.sandbox(), await yard.sandbox()
    assert paused.engine_id and woken.engine_id
    await yard.services.engine.pause(paused.engine_id)
    await yard.services.sandboxes.pause(yard.owner, woken.id)
    await yard.services.engine.resume(woken.engine_id, 600)
    await yard.services.maintenance.reconcile()
    assert [(await yard.row(row)).status for row in (paused, woken)] == ["paused", "running"]
    assert [await yard.state(row) for row in (paused, woken)] == ["paused", "running"]


async def test_a_list_that_is_older_than_a_wake_pauses_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await yard.sandbox()
    assert row.engine_id
    await yard.services.engine.pause(row.engine_id)
    real = yard.services.engine.list

    async def slow(*given: Any) -> Any:
        found = await real(*given)
        await yard.services.sandboxes.list_files(yard.owner, row.id, "/", 1)  # wakes it
        return found

    monkeypatch.setattr(yard.services.engine, "list", slow)
    await yard.services.maintenance.reconcile()
    assert ((await yard.row(row)).status, await yard.state(row)) == ("running", "running")
    assert (await yard.kinds(row))[2:] == ["sandbox.paused", "sandbox.resumed"]


async def test_health_notices_both_too(yard: Yard) -> None:
    paused, gone, fine = [await yard.sandbox() for _ in range(3)]
    assert paused.engine_id and gone.engine_id
    await yard.services.engine.pause(paused.engine_id)
    await yard.services.engine.kill(gone.engine_id)
    await yard.services.maintenance.check_health()
    assert [(await yard.row(row)).status for row in (paused, gone, fine)] == ["paused", "error", "running"]
    assert (await yard.row(fine)).seen_at > fine.seen_at  # type: ignore[operator]
    assert await yard.state(paused) == "paused"


async def test_one_that_cannot_be_checked_keeps_nobody_from_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, fine = await yard.sandbox(), await yard.sandbox()
    requested = await yard.sandbox()
    fail(yard, monkeypatch, "get_usage", broken)
    fail(yard, monkeypatch, "kill", broken)
    await yard.services.maintenance.check_health()
    assert (await yard.row(fine)).seen_at > fine.seen_at  # type: ignore[operator]
    for row in (broken, requested):
        await yard.services.lifecycle.repository.note(row.id, destroy_requested_at=utc_now())
    yard.services.maintenance.reconciled.clear()
    await yard.services.maintenance.reconcile()
    assert yard.services.maintenance.reconciled.is_set()
    assert [(await yard.row(row)).status for row in (broken, requested)] == ["running", "destroyed"]
    monkeypatch.undo()


def fail(yard: Yard, monkeypatch: pytest.MonkeyPatch, verb: str, row: Sandbox) -> None:
    """The engine fails whenever it is asked this about that sandbox."""
    real = getattr(yard.services.engine, verb)

    async def failing(engine_id: str, *given: Any) -> Any:
        if engine_id == row.engine_id:
            raise EngineError
        return await real(engine_id, *given)

    monkeypatch.setattr(yard.services.engine, verb, failing)


async def test_strangers_are_ended_at_the_second_look_and_those_of_others_never(yard: Yard) -> None:
    ours = await yard.sandbox()
    unknown = await stranger(yard, yard.services.lifecycle.instance)
    others = await stranger(yard, "in-somebody-else")
    failed = await yard.sandbox()
    assert failed.engine_id
    await yard.services.lifecycle.mark_lost(failed.id)
    await yard.services.maintenance.reconcile()
    assert {unknown, failed.engine_id, ours.engine_id} == await yard.there(), "it may be on its way to its row"
    await yard.services.maintenance.reconcile()
    assert await yard.there() == {ours.engine_id}
    await yard.services.maintenance.reconcile()
    assert (await yard.services.engine.get_info(others)).state == "running"
    assert (await yard.row(ours)).status == "running"
    await yard.services.engine.kill(others)


async def test_one_whose_row_waits_for_it_is_no_stranger(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row = yard.services.lifecycle.draft(yard.owner.user_id, NewSandbox(template="base", idle_seconds=300))
    async with yard.services.database.transaction() as tx:
        tx.add(row)
    engine_id = await stranger(yard, yard.services.lifecycle.instance, row.id)
    monkeypatch.setattr(yard.services.lifecycle, "provision", lambda _: None)  # it is being provisioned elsewhere
    for _ in range(3):
        await yard.services.maintenance.reconcile()
    assert await yard.there() == {engine_id}
    await yard.second().destroy(row)
    await yard.services.maintenance.reconcile()
    assert await yard.there() == set()


async def test_of_an_engine_that_is_away_nothing_is_concluded(yard: Yard) -> None:
    running, paused = await yard.sandbox(), await yard.sandbox()
    await yard.services.sandboxes.pause(yard.owner, paused.id)
    before = await yard.kinds()
    await yard.door.shut()
    with pytest.raises(EngineUnreachableError):
        await yard.services.maintenance.reconcile()
    await yard.services.maintenance.check_health()
    yard.clock.advance(1000)
    await yard.services.maintenance.pause_idle()
    assert [(await yard.row(row)).status for row in (running, paused)] == ["running", "paused"]
    assert await yard.kinds() == before
    await yard.back()
    await yard.services.maintenance.reconcile()
    assert await yard.kinds() == before
    await yard.services.maintenance.pause_idle()
    assert (await yard.row(running)).status == "paused"


# what is cleared away --------------------------------------------------------------------------------------------------


async def test_stale_sandboxes_are_destroyed_and_those_of_living_sessions_kept(yard: Yard) -> None:
    services = yard.services
    session, kept = await services.sessions.create(yard.owner)
    put_away, archived = await services.sessions.create(yard.owner)
    loose, fresh, busy = [await yard.sandbox() for _ in range(3)]
    for row in (kept, archived):
        await services.lifecycle.wait_until_provisioned(row.id)
    await services.sessions.archive(yard.owner, put_away.id)
    for row in (kept, archived, loose, busy):
        await unused(yard, row)
    with services.lifecycle.activity.using(busy.id):
        assert await services.maintenance.cleanup_stale() == 2
    statuses = [(await yard.row(row)).status for row in (kept, archived, loose, fresh, busy)]
    assert statuses == ["running", "destroyed", "destroyed", "running", "running"]
    await services.lifecycle.mark_lost(kept.id)
    assert await services.maintenance.cleanup_stale() == 1, "one that has failed is of no use to its session"
    assert (await yard.row(kept)).status == "destroyed"
    _, again = await services.sessions.provision(yard.owner, session.id)
    assert (await services.lifecycle.wait_until_provisioned(again.id)).status == "running"


async def test_one_that_cannot_be_destroyed_keeps_nobody_from_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = await yard.sandbox(), await yard.sandbox()
    for row in (broken, other):
        await unused(yard, row)
    fail(yard, monkeypatch, "kill", broken)
    assert await yard.services.maintenance.cleanup_stale() == 1
    monkeypatch.undo()
    assert (await yard.row(other)).status == "destroyed"
    assert await yard.services.maintenance.cleanup_stale() == 1
    assert (await yard.row(broken)).status == "destroyed"


async def test_what_the_engine_paused_while_the_platform_was_down_is_kept(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, engine_process, monkeypatch) as yard:
        row = await yard.sandbox()
        await yard.run(row, "echo kept > /tmp/file")
        assert row.engine_id
        engine = SandboxEngine(replace(yard.services.engine.config, api_url=engine_process.url))
    await engine.pause(row.engine_id)
    await engine.close()
    async with opened(tmp_path, engine_process, monkeypatch) as yard:
        await yard.services.maintenance.check_health()
        for _ in range(3):
            await yard.services.maintenance.reconcile()
        assert ((await yard.row(row)).status, await yard.state(row)) == ("paused", "paused")
        assert await yard.run(row, "cat /tmp/file") == "kept\n"
        await cleared(yard)
