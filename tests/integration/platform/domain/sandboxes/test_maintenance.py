"""Reconciling the database with the engine, pausing idle sandboxes, and cleanup."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.ids import make_random_id
from sandyard.platform.db.models import Sandbox, Session, Turn
from sandyard.platform.domain.sandboxes.e2b import EngineError, EngineUnreachableError, SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, ROW
from sandyard.platform.domain.sandboxes.model import NewCommand, NewSandbox, OwnerWithoutAccessError, utc_now
from tests.harness.engine import Engine
from tests.integration.platform.domain.sandboxes.platform_harness import (
    MovableClock,
    PlatformHarness,
    kill_sandboxes,
    open_platform,
    until,
)
from tests.unit.platform.world import ROOT

LONG = 25 * 3600


async def create_untracked_sandbox(platform: PlatformHarness, instance: str, row_id: str = "sbx_nobody") -> str:
    created = await platform.services.engine.create(
        template="base",
        timeout_s=600,
        metadata={INSTANCE: instance, ROW: row_id},
        envs={},
        idempotency_key=make_random_id("key-"),
    )
    return created.id


async def set_unused(platform: PlatformHarness, row: Sandbox, seconds: float = LONG) -> None:
    """Make it look unused for that long."""
    moment = utc_now() - timedelta(seconds=seconds)
    await platform.services.lifecycle.repository.set_fields(row.id, used_at=moment)
    platform.services.lifecycle.activity.forget(row.id)
    platform.services.lifecycle.activity.load(row.id, moment)


# idleness --------------------------------------------------------------------------------------------------------------


async def test_only_sandboxes_that_are_not_in_use_are_paused(platform: PlatformHarness) -> None:
    maintenance = platform.services.maintenance
    used, silent, unused = [await platform.create_sandbox(idle_seconds=60) for _ in range(3)]
    foreground = await platform.start(used, "read line < /tmp/pipe || mkfifo /tmp/pipe; cat /tmp/pipe")
    background = await platform.start(silent, "sleep 1000", background=True)
    for command in (foreground, background):
        await until(lambda command=command: is_running(platform, command.id), "the command runs")  # type: ignore[misc]
    platform.clock.advance(50)
    await platform.finish_round(maintenance.pause_idle())
    for row in (used, silent, unused):
        assert (await platform.reload(row)).status == "running", "it has not been idle long enough"
    platform.clock.advance(15)
    await platform.finish_round(maintenance.pause_idle())
    assert [(await platform.reload(row)).status for row in (used, silent, unused)] == ["running", "paused", "paused"]
    assert [await platform.get_engine_state(row) for row in (used, silent, unused)] == ["running", "paused", "paused"]
    await platform.services.commands.kill(platform.owner, foreground.id)
    await platform.finish_round(maintenance.pause_idle())
    assert (await platform.reload(used)).status == "running", "it was in use until now"
    platform.clock.advance(65)
    await platform.finish_round(maintenance.pause_idle())
    assert (await platform.reload(used)).status == "paused"


async def is_running(platform: PlatformHarness, command_id: str) -> bool:
    return (await platform.services.commands.get(command_id)).status == "running"


async def test_output_of_a_background_command_keeps_its_sandbox_awake(platform: PlatformHarness) -> None:
    row = await platform.create_sandbox(idle_seconds=60)
    command = await platform.start(
        row, "echo one; while ! test -e /tmp/go; do sleep 0.05; done; echo two", background=True
    )
    await until(lambda: has_output(platform, command.id, 4), "there is output")
    platform.clock.advance(55)
    await platform.run(row, "touch /tmp/go", background=True)
    await platform.wait(command)
    platform.clock.advance(55)
    await platform.finish_round(platform.services.maintenance.pause_idle())
    assert (await platform.reload(row)).status == "running"


async def has_output(platform: PlatformHarness, command_id: str, size: int) -> bool:
    return (await platform.services.commands.get(command_id)).stdout_bytes >= size


async def test_the_last_use_survives_a_restart(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock()
    async with open_platform(tmp_path, engine_process, monkeypatch, clock) as platform:
        early, late = [await platform.create_sandbox(idle_seconds=100) for _ in range(2)]
        await platform.finish_round(platform.services.maintenance.check_health())
        clock.advance(60)
        await platform.run(late, "true")
        await platform.finish_round(platform.services.maintenance.check_health())
        assert (await platform.reload(late)).used_at > (await platform.reload(early)).used_at  # type: ignore[operator]
    clock.advance(60)
    async with open_platform(tmp_path, engine_process, monkeypatch, clock) as platform:
        await platform.finish_round(platform.services.maintenance.pause_idle())
        assert (await platform.reload(early)).status == "paused"
        assert (await platform.reload(late)).status == "running"
        await kill_sandboxes(platform)


# the database against the engine ---------------------------------------------------------------------------------------


async def test_a_sandbox_lost_by_the_engine_fails_with_its_commands(platform: PlatformHarness) -> None:
    row, other = await platform.create_sandbox(), await platform.create_sandbox()
    command = await platform.start(row, "echo here; sleep 1000", background=True)
    await until(lambda: has_output(platform, command.id, 5), "there is output")
    assert row.engine_id
    await platform.services.engine.kill(row.engine_id)
    await platform.finish_round(platform.services.maintenance.reconcile())
    found = await platform.reload(row)
    assert (found.status, found.error_code) == ("error", "sandbox_lost")
    done = await platform.wait(command)
    assert done.status == "lost" and done.error and done.exit_code is None
    assert (await platform.output(done))[0] == b"here\n"
    assert (await platform.reload(other)).status == "running"


async def test_pauses_and_resumes_by_the_engine_are_recorded(platform: PlatformHarness) -> None:
    paused, woken = await platform.create_sandbox(), await platform.create_sandbox()
    assert paused.engine_id and woken.engine_id
    await platform.services.engine.pause(paused.engine_id)
    await platform.services.sandboxes.pause(platform.owner, woken.id)
    await platform.services.engine.resume(woken.engine_id, 600)
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert [(await platform.reload(row)).status for row in (paused, woken)] == ["paused", "running"]
    assert [await platform.get_engine_state(row) for row in (paused, woken)] == ["paused", "running"]


async def test_a_list_from_before_a_resume_does_not_undo_it(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await platform.create_sandbox()
    assert row.engine_id
    await platform.services.engine.pause(row.engine_id)
    real = platform.services.engine.list

    async def list_and_resume(*given: Any) -> Any:
        found = await real(*given)
        await platform.services.sandboxes.list_files(platform.owner, row.id, "/", 1)  # resumes it
        return found

    monkeypatch.setattr(platform.services.engine, "list", list_and_resume)
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert ((await platform.reload(row)).status, await platform.get_engine_state(row)) == ("running", "running")
    assert (await platform.list_event_kinds(row))[2:] == ["sandbox.paused", "sandbox.resumed"]


async def test_the_health_check_notices_paused_and_lost_sandboxes(platform: PlatformHarness) -> None:
    paused, gone, fine = [await platform.create_sandbox() for _ in range(3)]
    assert paused.engine_id and gone.engine_id
    await platform.services.engine.pause(paused.engine_id)
    await platform.services.engine.kill(gone.engine_id)
    await platform.finish_round(platform.services.maintenance.check_health())
    assert [(await platform.reload(row)).status for row in (paused, gone, fine)] == ["paused", "error", "running"]
    assert (await platform.reload(fine)).seen_at > fine.seen_at  # type: ignore[operator]
    assert await platform.get_engine_state(paused) == "paused"


async def test_a_sandbox_that_cannot_be_checked_does_not_block_the_others(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, fine = await platform.create_sandbox(), await platform.create_sandbox()
    requested = await platform.create_sandbox()
    fail_for(platform, monkeypatch, "get_usage", broken)
    fail_for(platform, monkeypatch, "kill", broken)
    await platform.finish_round(platform.services.maintenance.check_health())
    assert (await platform.reload(fine)).seen_at > fine.seen_at  # type: ignore[operator]
    for row in (broken, requested):
        await platform.services.lifecycle.repository.set_fields(row.id, destroy_requested_at=utc_now())
    platform.services.maintenance.reconciled.clear()
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert platform.services.maintenance.reconciled.is_set()
    assert [(await platform.reload(row)).status for row in (broken, requested)] == ["running", "destroyed"]
    monkeypatch.undo()


def fail_for(platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch, verb: str, row: Sandbox) -> None:
    """Make this operation of the engine fail for that sandbox."""
    real = getattr(platform.services.engine, verb)

    async def call_or_fail(engine_id: str, *given: Any) -> Any:
        if engine_id == row.engine_id:
            raise EngineError
        return await real(engine_id, *given)

    monkeypatch.setattr(platform.services.engine, verb, call_or_fail)


async def test_untracked_sandboxes_are_killed_at_the_second_check_and_those_of_other_platforms_never(
    platform: PlatformHarness,
) -> None:
    ours = await platform.create_sandbox()
    unknown = await create_untracked_sandbox(platform, platform.services.lifecycle.instance)
    others = await create_untracked_sandbox(platform, "in-somebody-else")
    failed = await platform.create_sandbox()
    assert failed.engine_id
    await platform.services.lifecycle.mark_lost(failed.id)
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert {unknown, failed.engine_id, ours.engine_id} == await platform.list_engine_ids(), (
        "its row may not be updated yet"
    )
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert await platform.list_engine_ids() == {ours.engine_id}
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert (await platform.services.engine.get_info(others)).state == "running"
    assert (await platform.reload(ours)).status == "running"
    await platform.services.engine.kill(others)


async def test_a_sandbox_whose_row_is_still_provisioning_is_not_killed(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = platform.services.lifecycle.draft(platform.owner.user_id, NewSandbox(template="base", idle_seconds=300))
    async with platform.services.database.transaction() as tx:
        tx.add(row)
    engine_id = await create_untracked_sandbox(platform, platform.services.lifecycle.instance, row.id)
    monkeypatch.setattr(platform.services.lifecycle, "provision", lambda _: None)  # it is being provisioned elsewhere
    for _ in range(3):
        await platform.finish_round(platform.services.maintenance.reconcile())
    assert await platform.list_engine_ids() == {engine_id}
    await platform.create_second_lifecycle().destroy(row)
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert await platform.list_engine_ids() == set()


async def test_an_engine_outage_changes_no_state(platform: PlatformHarness) -> None:
    running, paused = await platform.create_sandbox(), await platform.create_sandbox()
    await platform.services.sandboxes.pause(platform.owner, paused.id)
    before = await platform.list_event_kinds()
    await platform.engine_proxy.stop()
    with pytest.raises(EngineUnreachableError):
        await platform.finish_round(platform.services.maintenance.reconcile())
    await platform.finish_round(platform.services.maintenance.check_health())
    platform.clock.advance(1000)
    await platform.finish_round(platform.services.maintenance.pause_idle())
    assert [(await platform.reload(row)).status for row in (running, paused)] == ["running", "paused"]
    assert await platform.list_event_kinds() == before
    await platform.reconnect_engine()
    await platform.finish_round(platform.services.maintenance.reconcile())
    assert await platform.list_event_kinds() == before
    await platform.finish_round(platform.services.maintenance.pause_idle())
    assert (await platform.reload(running)).status == "paused"


# cleanup ---------------------------------------------------------------------------------------------------------------


async def test_stale_sandboxes_are_destroyed_except_those_of_active_sessions(platform: PlatformHarness) -> None:
    services = platform.services
    session, kept = await services.sessions.create(platform.owner)
    archived_session, archived = await services.sessions.create(platform.owner)
    loose, fresh, busy = [await platform.create_sandbox() for _ in range(3)]
    for row in (kept, archived):
        await services.lifecycle.wait_until_provisioned(row.id)
    await services.sessions.archive(platform.owner, archived_session.id)
    for row in (kept, archived, loose, busy):
        await set_unused(platform, row)
    with services.lifecycle.activity.using(busy.id):
        assert await services.maintenance.cleanup_stale() == 2
    statuses = [(await platform.reload(row)).status for row in (kept, archived, loose, fresh, busy)]
    assert statuses == ["running", "destroyed", "destroyed", "running", "running"]
    await services.lifecycle.mark_lost(kept.id)
    assert await services.maintenance.cleanup_stale() == 1, "a failed sandbox is of no use to its session"
    assert (await platform.reload(kept)).status == "destroyed"
    _, again = await services.sessions.provision(platform.owner, session.id)
    assert (await services.lifecycle.wait_until_provisioned(again.id)).status == "running"


async def test_a_sandbox_that_cannot_be_destroyed_does_not_block_the_others(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = await platform.create_sandbox(), await platform.create_sandbox()
    for row in (broken, other):
        await set_unused(platform, row)
    fail_for(platform, monkeypatch, "kill", broken)
    assert await platform.services.maintenance.cleanup_stale() == 1
    monkeypatch.undo()
    assert (await platform.reload(other)).status == "destroyed"
    assert await platform.services.maintenance.cleanup_stale() == 1
    assert (await platform.reload(broken)).status == "destroyed"


async def test_a_sandbox_paused_while_the_platform_was_down_is_kept(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_platform(tmp_path, engine_process, monkeypatch) as platform:
        row = await platform.create_sandbox()
        await platform.run(row, "echo kept > /tmp/file")
        assert row.engine_id
        engine = SandboxEngine(replace(platform.services.engine.config, api_url=engine_process.url))
    await engine.pause(row.engine_id)
    await engine.close()
    async with open_platform(tmp_path, engine_process, monkeypatch) as platform:
        await platform.finish_round(platform.services.maintenance.check_health())
        for _ in range(3):
            await platform.finish_round(platform.services.maintenance.reconcile())
        assert ((await platform.reload(row)).status, await platform.get_engine_state(row)) == ("paused", "paused")
        assert await platform.run(row, "cat /tmp/file") == "kept\n"
        await kill_sandboxes(platform)


# lost access -----------------------------------------------------------------------------------------------------------


async def test_agent_is_stopped_and_sandbox_paused_when_the_owner_loses_access(platform: PlatformHarness) -> None:
    disabled, removed, member = [await platform.create_person(name) for name in ("disabled", "removed", "member")]
    project_id = await platform.project(platform.owner, removed, member)
    sandboxes = {}
    for name, owner, project in (
        ("disabled", disabled, None),
        ("removed", removed, project_id),
        ("member", member, project_id),
    ):
        row, sandbox = await platform.services.sessions.create(owner, title=name, agent="demo", project_id=project)
        sandboxes[name] = await platform.services.lifecycle.wait_until_provisioned(sandbox.id)
        words = [{"type": "text", "text": "run: sleep 1000"}]
        await platform.services.turns.prompt(owner, row.id, words)
    await platform.finish_round(platform.services.maintenance.stop_without_access())
    assert {(await platform.services.lifecycle.repository.get(row.id)).status for row in sandboxes.values()} == {
        "running"
    }
    await platform.services.users.update(ROOT, disabled.user_id, disabled=True)
    await platform.services.projects.remove_member(platform.owner, project_id, removed.user_id)
    await platform.finish_round(platform.services.maintenance.stop_without_access())
    states = {
        name: (await platform.services.lifecycle.repository.get(row.id)).status for name, row in sandboxes.items()
    }
    assert states == {"disabled": "paused", "removed": "paused", "member": "running"}
    async with platform.services.database.reading() as session:
        turns = dict((await session.execute(select(Session.title, Turn.status).join(Turn))).all())
    assert turns["disabled"] in ("cancelled", "failed") and turns["removed"] in ("cancelled", "failed")
    assert turns["member"] in ("queued", "running")


async def test_a_sandbox_of_a_removed_owner_that_the_engine_resumed_is_paused_again(platform: PlatformHarness) -> None:
    removed = await platform.create_person("removed")
    project_id = await platform.project(platform.owner, removed)
    row = await platform.services.sandboxes.create_sandbox(removed, project_id=project_id)
    assert row.engine_id
    await platform.services.projects.remove_member(platform.owner, project_id, removed.user_id)
    await platform.finish_round(platform.services.maintenance.stop_without_access())
    await platform.services.engine.resume(row.engine_id, 600)
    await platform.finish_round(platform.services.maintenance.reconcile())
    await platform.finish_round(platform.services.maintenance.stop_without_access())
    assert ((await platform.reload(row)).status, await platform.get_engine_state(row)) == ("paused", "paused")
    with pytest.raises(OwnerWithoutAccessError):
        await platform.services.commands.execute(removed, row.id, NewCommand(command="true", timeout_s=10))
    assert (await platform.services.sandboxes.get_status(removed, row.id)).status == "paused"
