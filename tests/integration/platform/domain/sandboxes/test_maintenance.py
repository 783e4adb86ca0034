"""Reconciling the database with the engine, pausing idle sandboxes, and cleanup."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.ids import random_id
from sandyard.platform.db.models import Sandbox, Session, Turn
from sandyard.platform.domain.sandboxes.e2b import EngineError, EngineUnreachableError, SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, ROW
from sandyard.platform.domain.sandboxes.model import NewCommand, NewSandbox, OwnerWithoutAccessError, utc_now
from tests.harness.engine import Engine
from tests.integration.platform.domain.sandboxes.yard import MovableClock, Yard, kill_sandboxes, open_yard, until
from tests.unit.platform.world import ROOT

LONG = 25 * 3600


async def create_untracked_sandbox(yard: Yard, instance: str, row_id: str = "sbx_nobody") -> str:
    created = await yard.services.engine.create(
        template="base",
        timeout_s=600,
        metadata={INSTANCE: instance, ROW: row_id},
        envs={},
        idempotency_key=random_id("key-"),
    )
    return created.id


async def set_unused(yard: Yard, row: Sandbox, seconds: float = LONG) -> None:
    """Make it look unused for that long."""
    moment = utc_now() - timedelta(seconds=seconds)
    await yard.services.lifecycle.repository.note(row.id, used_at=moment)
    yard.services.lifecycle.activity.forget(row.id)
    yard.services.lifecycle.activity.load(row.id, moment)


# idleness --------------------------------------------------------------------------------------------------------------


async def test_only_sandboxes_that_are_not_in_use_are_paused(yard: Yard) -> None:
    maintenance = yard.services.maintenance
    used, silent, unused = [await yard.create_sandbox(idle_seconds=60) for _ in range(3)]
    foreground = await yard.start(used, "read line < /tmp/pipe || mkfifo /tmp/pipe; cat /tmp/pipe")
    background = await yard.start(silent, "sleep 1000", background=True)
    for command in (foreground, background):
        await until(lambda command=command: is_running(yard, command.id), "the command runs")  # type: ignore[misc]
    yard.clock.advance(50)
    await yard.finish_round(maintenance.pause_idle())
    for row in (used, silent, unused):
        assert (await yard.reload(row)).status == "running", "it has not been idle long enough"
    yard.clock.advance(15)
    await yard.finish_round(maintenance.pause_idle())
    assert [(await yard.reload(row)).status for row in (used, silent, unused)] == ["running", "paused", "paused"]
    assert [await yard.get_engine_state(row) for row in (used, silent, unused)] == ["running", "paused", "paused"]
    await yard.services.commands.kill(yard.owner, foreground.id)
    await yard.finish_round(maintenance.pause_idle())
    assert (await yard.reload(used)).status == "running", "it was in use until now"
    yard.clock.advance(65)
    await yard.finish_round(maintenance.pause_idle())
    assert (await yard.reload(used)).status == "paused"


async def is_running(yard: Yard, command_id: str) -> bool:
    return (await yard.services.commands.get(command_id)).status == "running"


async def test_output_of_a_background_command_keeps_its_sandbox_awake(yard: Yard) -> None:
    row = await yard.create_sandbox(idle_seconds=60)
    command = await yard.start(row, "echo one; while ! test -e /tmp/go; do sleep 0.05; done; echo two", background=True)
    await until(lambda: has_output(yard, command.id, 4), "there is output")
    yard.clock.advance(55)
    await yard.run(row, "touch /tmp/go", background=True)
    await yard.wait(command)
    yard.clock.advance(55)
    await yard.finish_round(yard.services.maintenance.pause_idle())
    assert (await yard.reload(row)).status == "running"


async def has_output(yard: Yard, command_id: str, size: int) -> bool:
    return (await yard.services.commands.get(command_id)).stdout_bytes >= size


async def test_the_last_use_survives_a_restart(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock()
    async with open_yard(tmp_path, engine_process, monkeypatch, clock) as yard:
        early, late = [await yard.create_sandbox(idle_seconds=100) for _ in range(2)]
        await yard.finish_round(yard.services.maintenance.check_health())
        clock.advance(60)
        await yard.run(late, "true")
        await yard.finish_round(yard.services.maintenance.check_health())
        assert (await yard.reload(late)).used_at > (await yard.reload(early)).used_at  # type: ignore[operator]
    clock.advance(60)
    async with open_yard(tmp_path, engine_process, monkeypatch, clock) as yard:
        await yard.finish_round(yard.services.maintenance.pause_idle())
        assert (await yard.reload(early)).status == "paused"
        assert (await yard.reload(late)).status == "running"
        await kill_sandboxes(yard)


# the database against the engine ---------------------------------------------------------------------------------------


async def test_a_sandbox_lost_by_the_engine_fails_with_its_commands(yard: Yard) -> None:
    row, other = await yard.create_sandbox(), await yard.create_sandbox()
    command = await yard.start(row, "echo here; sleep 1000", background=True)
    await until(lambda: has_output(yard, command.id, 5), "there is output")
    assert row.engine_id
    await yard.services.engine.kill(row.engine_id)
    await yard.finish_round(yard.services.maintenance.reconcile())
    found = await yard.reload(row)
    assert (found.status, found.error_code) == ("error", "sandbox_lost")
    done = await yard.wait(command)
    assert done.status == "lost" and done.error and done.exit_code is None
    assert (await yard.output(done))[0] == b"here\n"
    assert (await yard.reload(other)).status == "running"


async def test_pauses_and_resumes_by_the_engine_are_recorded(yard: Yard) -> None:
    paused, woken = await yard.create_sandbox(), await yard.create_sandbox()
    assert paused.engine_id and woken.engine_id
    await yard.services.engine.pause(paused.engine_id)
    await yard.services.sandboxes.pause(yard.owner, woken.id)
    await yard.services.engine.resume(woken.engine_id, 600)
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert [(await yard.reload(row)).status for row in (paused, woken)] == ["paused", "running"]
    assert [await yard.get_engine_state(row) for row in (paused, woken)] == ["paused", "running"]


async def test_a_list_from_before_a_resume_does_not_undo_it(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await yard.create_sandbox()
    assert row.engine_id
    await yard.services.engine.pause(row.engine_id)
    real = yard.services.engine.list

    async def list_and_resume(*given: Any) -> Any:
        found = await real(*given)
        await yard.services.sandboxes.list_files(yard.owner, row.id, "/", 1)  # resumes it
        return found

    monkeypatch.setattr(yard.services.engine, "list", list_and_resume)
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert ((await yard.reload(row)).status, await yard.get_engine_state(row)) == ("running", "running")
    assert (await yard.list_event_kinds(row))[2:] == ["sandbox.paused", "sandbox.resumed"]


async def test_the_health_check_notices_paused_and_lost_sandboxes(yard: Yard) -> None:
    paused, gone, fine = [await yard.create_sandbox() for _ in range(3)]
    assert paused.engine_id and gone.engine_id
    await yard.services.engine.pause(paused.engine_id)
    await yard.services.engine.kill(gone.engine_id)
    await yard.finish_round(yard.services.maintenance.check_health())
    assert [(await yard.reload(row)).status for row in (paused, gone, fine)] == ["paused", "error", "running"]
    assert (await yard.reload(fine)).seen_at > fine.seen_at  # type: ignore[operator]
    assert await yard.get_engine_state(paused) == "paused"


async def test_a_sandbox_that_cannot_be_checked_does_not_block_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, fine = await yard.create_sandbox(), await yard.create_sandbox()
    requested = await yard.create_sandbox()
    fail_for(yard, monkeypatch, "get_usage", broken)
    fail_for(yard, monkeypatch, "kill", broken)
    await yard.finish_round(yard.services.maintenance.check_health())
    assert (await yard.reload(fine)).seen_at > fine.seen_at  # type: ignore[operator]
    for row in (broken, requested):
        await yard.services.lifecycle.repository.note(row.id, destroy_requested_at=utc_now())
    yard.services.maintenance.reconciled.clear()
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert yard.services.maintenance.reconciled.is_set()
    assert [(await yard.reload(row)).status for row in (broken, requested)] == ["running", "destroyed"]
    monkeypatch.undo()


def fail_for(yard: Yard, monkeypatch: pytest.MonkeyPatch, verb: str, row: Sandbox) -> None:
    """Make this operation of the engine fail for that sandbox."""
    real = getattr(yard.services.engine, verb)

    async def call_or_fail(engine_id: str, *given: Any) -> Any:
        if engine_id == row.engine_id:
            raise EngineError
        return await real(engine_id, *given)

    monkeypatch.setattr(yard.services.engine, verb, call_or_fail)


async def test_untracked_sandboxes_are_killed_at_the_second_check_and_those_of_other_platforms_never(
    yard: Yard,
) -> None:
    ours = await yard.create_sandbox()
    unknown = await create_untracked_sandbox(yard, yard.services.lifecycle.instance)
    others = await create_untracked_sandbox(yard, "in-somebody-else")
    failed = await yard.create_sandbox()
    assert failed.engine_id
    await yard.services.lifecycle.mark_lost(failed.id)
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert {unknown, failed.engine_id, ours.engine_id} == await yard.list_engine_ids(), "its row may not be updated yet"
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert await yard.list_engine_ids() == {ours.engine_id}
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert (await yard.services.engine.get_info(others)).state == "running"
    assert (await yard.reload(ours)).status == "running"
    await yard.services.engine.kill(others)


async def test_a_sandbox_whose_row_is_still_provisioning_is_not_killed(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = yard.services.lifecycle.draft(yard.owner.user_id, NewSandbox(template="base", idle_seconds=300))
    async with yard.services.database.transaction() as tx:
        tx.add(row)
    engine_id = await create_untracked_sandbox(yard, yard.services.lifecycle.instance, row.id)
    monkeypatch.setattr(yard.services.lifecycle, "provision", lambda _: None)  # it is being provisioned elsewhere
    for _ in range(3):
        await yard.finish_round(yard.services.maintenance.reconcile())
    assert await yard.list_engine_ids() == {engine_id}
    await yard.create_second_lifecycle().destroy(row)
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert await yard.list_engine_ids() == set()


async def test_an_engine_outage_changes_no_state(yard: Yard) -> None:
    running, paused = await yard.create_sandbox(), await yard.create_sandbox()
    await yard.services.sandboxes.pause(yard.owner, paused.id)
    before = await yard.list_event_kinds()
    await yard.engine_proxy.stop()
    with pytest.raises(EngineUnreachableError):
        await yard.finish_round(yard.services.maintenance.reconcile())
    await yard.finish_round(yard.services.maintenance.check_health())
    yard.clock.advance(1000)
    await yard.finish_round(yard.services.maintenance.pause_idle())
    assert [(await yard.reload(row)).status for row in (running, paused)] == ["running", "paused"]
    assert await yard.list_event_kinds() == before
    await yard.reconnect_engine()
    await yard.finish_round(yard.services.maintenance.reconcile())
    assert await yard.list_event_kinds() == before
    await yard.finish_round(yard.services.maintenance.pause_idle())
    assert (await yard.reload(running)).status == "paused"


# cleanup ---------------------------------------------------------------------------------------------------------------


async def test_stale_sandboxes_are_destroyed_except_those_of_active_sessions(yard: Yard) -> None:
    services = yard.services
    session, kept = await services.sessions.create(yard.owner)
    archived_session, archived = await services.sessions.create(yard.owner)
    loose, fresh, busy = [await yard.create_sandbox() for _ in range(3)]
    for row in (kept, archived):
        await services.lifecycle.wait_until_provisioned(row.id)
    await services.sessions.archive(yard.owner, archived_session.id)
    for row in (kept, archived, loose, busy):
        await set_unused(yard, row)
    with services.lifecycle.activity.using(busy.id):
        assert await services.maintenance.cleanup_stale() == 2
    statuses = [(await yard.reload(row)).status for row in (kept, archived, loose, fresh, busy)]
    assert statuses == ["running", "destroyed", "destroyed", "running", "running"]
    await services.lifecycle.mark_lost(kept.id)
    assert await services.maintenance.cleanup_stale() == 1, "a failed sandbox is of no use to its session"
    assert (await yard.reload(kept)).status == "destroyed"
    _, again = await services.sessions.provision(yard.owner, session.id)
    assert (await services.lifecycle.wait_until_provisioned(again.id)).status == "running"


async def test_a_sandbox_that_cannot_be_destroyed_does_not_block_the_others(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = await yard.create_sandbox(), await yard.create_sandbox()
    for row in (broken, other):
        await set_unused(yard, row)
    fail_for(yard, monkeypatch, "kill", broken)
    assert await yard.services.maintenance.cleanup_stale() == 1
    monkeypatch.undo()
    assert (await yard.reload(other)).status == "destroyed"
    assert await yard.services.maintenance.cleanup_stale() == 1
    assert (await yard.reload(broken)).status == "destroyed"


async def test_a_sandbox_paused_while_the_platform_was_down_is_kept(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_yard(tmp_path, engine_process, monkeypatch) as yard:
        row = await yard.create_sandbox()
        await yard.run(row, "echo kept > /tmp/file")
        assert row.engine_id
        engine = SandboxEngine(replace(yard.services.engine.config, api_url=engine_process.url))
    await engine.pause(row.engine_id)
    await engine.close()
    async with open_yard(tmp_path, engine_process, monkeypatch) as yard:
        await yard.finish_round(yard.services.maintenance.check_health())
        for _ in range(3):
            await yard.finish_round(yard.services.maintenance.reconcile())
        assert ((await yard.reload(row)).status, await yard.get_engine_state(row)) == ("paused", "paused")
        assert await yard.run(row, "cat /tmp/file") == "kept\n"
        await kill_sandboxes(yard)


# lost access -----------------------------------------------------------------------------------------------------------


async def test_agent_is_stopped_and_sandbox_paused_when_the_owner_loses_access(yard: Yard) -> None:
    disabled, removed, member = [await yard.person(name) for name in ("disabled", "removed", "member")]
    project_id = await yard.project(yard.owner, removed, member)
    sandboxes = {}
    for name, owner, project in (
        ("disabled", disabled, None),
        ("removed", removed, project_id),
        ("member", member, project_id),
    ):
        row, sandbox = await yard.services.sessions.create(owner, title=name, agent="demo", project_id=project)
        sandboxes[name] = await yard.services.lifecycle.wait_until_provisioned(sandbox.id)
        words = [{"type": "text", "text": "run: sleep 1000"}]
        await yard.services.turns.prompt(owner, row.id, words)
    await yard.finish_round(yard.services.maintenance.stop_without_access())
    assert {(await yard.services.lifecycle.repository.get(row.id)).status for row in sandboxes.values()} == {"running"}
    await yard.services.users.update(ROOT, disabled.user_id, disabled=True)
    await yard.services.projects.remove_member(yard.owner, project_id, removed.user_id)
    await yard.finish_round(yard.services.maintenance.stop_without_access())
    states = {name: (await yard.services.lifecycle.repository.get(row.id)).status for name, row in sandboxes.items()}
    assert states == {"disabled": "paused", "removed": "paused", "member": "running"}
    async with yard.services.database.reading() as session:
        turns = dict((await session.execute(select(Session.title, Turn.status).join(Turn))).all())
    assert turns["disabled"] in ("cancelled", "failed") and turns["removed"] in ("cancelled", "failed")
    assert turns["member"] in ("queued", "running")


async def test_a_sandbox_of_a_removed_owner_that_the_engine_resumed_is_paused_again(yard: Yard) -> None:
    removed = await yard.person("removed")
    project_id = await yard.project(yard.owner, removed)
    row = await yard.services.sandboxes.create_sandbox(removed, project_id=project_id)
    assert row.engine_id
    await yard.services.projects.remove_member(yard.owner, project_id, removed.user_id)
    await yard.finish_round(yard.services.maintenance.stop_without_access())
    await yard.services.engine.resume(row.engine_id, 600)
    await yard.finish_round(yard.services.maintenance.reconcile())
    await yard.finish_round(yard.services.maintenance.stop_without_access())
    assert ((await yard.reload(row)).status, await yard.get_engine_state(row)) == ("paused", "paused")
    with pytest.raises(OwnerWithoutAccessError):
        await yard.services.commands.execute(removed, row.id, NewCommand(command="true", timeout_s=10))
    assert (await yard.services.sandboxes.get_status(removed, row.id)).status == "paused"
