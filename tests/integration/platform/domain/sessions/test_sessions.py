"""Sessions: their sandboxes, checkpoints, messages and visibility."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.platform.db.models import Sandbox, Session
from sandyard.platform.domain.agents.profiles.custom import Definition
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.sandboxes.e2b import EngineInvalidError, EngineUnreachableError
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError, Status
from sandyard.platform.domain.users.model import Principal
from tests.harness.engine import Engine
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness, kill_sandboxes, open_platform


async def create_session(
    platform: PlatformHarness, owner: Principal | None = None, **wanted: object
) -> tuple[Session, Sandbox]:
    session, row = await platform.services.sessions.create(owner or platform.owner, **wanted)  # type: ignore[arg-type]
    return session, await platform.services.lifecycle.wait_until_provisioned(row.id)


def list_snapshots(engine: Engine) -> set[str]:
    with engine.client() as client:
        return {found["snapshotID"] for found in client.get("/snapshots", params={"limit": 100}).json()}


async def list_session_ids(
    platform: PlatformHarness, caller: Principal, *, archived: bool = False, project_id: str | None = None
) -> list[str]:
    page = await platform.services.sessions.list_sessions(
        caller, PageRequest(), project_id=project_id, archived=archived
    )
    return [item.id for item in page.items]


async def test_a_session_gets_its_own_sandbox(platform: PlatformHarness) -> None:
    project = await platform.project(platform.owner, idle_seconds=77)
    session, row = await create_session(platform, title="First", project_id=project, agent="demo", envs={"A": "b c"})
    assert (session.title, session.sandbox_id, row.session_id) == ("First", row.id, session.id)
    assert (row.status, row.idle_seconds, row.agent_id, row.project_id) == ("running", 77, "demo", project)
    assert await platform.run(row, 'printf "$A"') == "b c"
    assert (await platform.services.sessions.get_sandbox(platform.owner, session.id)).id == row.id
    found, sandbox = await platform.services.sessions.get_with_sandbox(platform.owner, session.id)
    assert found.id == session.id and sandbox is not None and sandbox.id == row.id
    assert await platform.list_event_kinds(prefix="session.") == ["session.created"]
    with pytest.raises(InvalidInputError, match="envs"):
        await platform.services.sessions.create(platform.owner, envs={"A=": "b"})
    with pytest.raises(NotFoundError):
        await platform.services.sessions.create(platform.owner, project_id="prj_none")
    assert await list_session_ids(platform, platform.owner) == [session.id]


async def test_a_session_can_be_renamed_and_archived(platform: PlatformHarness) -> None:
    sessions = platform.services.sessions
    session, row = await create_session(platform)
    assert (await sessions.rename(platform.owner, session.id, "Better")).title == "Better"
    for _ in range(2):
        assert (await sessions.archive(platform.owner, session.id)).archived_at is not None
    assert await platform.get_engine_state(row) == "paused"
    assert (
        await list_session_ids(platform, platform.owner),
        await list_session_ids(platform, platform.owner, archived=True),
    ) == (
        [],
        [session.id],
    )
    assert await platform.list_event_kinds(prefix="session.a") == ["session.archived"]


async def test_deleting_a_session_deletes_everything_it_owns(platform: PlatformHarness, engine_process: Engine) -> None:
    sessions = platform.services.sessions
    session, row = await create_session(platform, envs={"A": "b"})
    await sessions.add_message(platform.owner, session.id, [{"type": "text", "text": "hello"}])
    checkpoint = (await sessions.save_snapshot(platform.owner, session.id)).checkpoint
    assert checkpoint in list_snapshots(engine_process)
    await platform.engine_proxy.stop()
    with pytest.raises(EngineUnreachableError):
        await sessions.delete(platform.owner, session.id)
    assert await list_session_ids(platform, platform.owner) == [session.id], (
        "the session is kept while its sandbox exists"
    )
    await platform.reconnect_engine()
    await sessions.delete(platform.owner, session.id)
    with pytest.raises(NotFoundError):
        await sessions.get(platform.owner, session.id)
    found = await platform.reload(row)
    assert (found.status, found.session_id, found.envs) == ("destroyed", None, None)
    assert await platform.get_engine_state(row) == "gone"
    assert checkpoint not in list_snapshots(engine_process)
    assert (await platform.list_event_kinds(prefix="session."))[-1] == "session.deleted"


async def test_a_pause_keeps_only_the_last_checkpoint(platform: PlatformHarness, engine_process: Engine) -> None:
    before = list_snapshots(engine_process)
    session, row = await create_session(platform)
    kept = []
    for number in range(3):
        await platform.run(row, f"echo {number} > /home/user/file")
        await platform.services.sandboxes.pause(platform.owner, row.id)
        kept.append((await platform.services.sessions.get(platform.owner, session.id)).checkpoint)
        assert list_snapshots(engine_process) - before == {kept[-1]}
    assert len(set(kept)) == 3
    await platform.services.sandboxes.pause(platform.owner, row.id)
    assert (await platform.services.sessions.get(platform.owner, session.id)).checkpoint == kept[-1]
    loose = await platform.create_sandbox()
    await platform.services.sandboxes.pause(platform.owner, loose.id)
    assert list_snapshots(engine_process) - before == {kept[-1]}, "a sandbox without a session has no checkpoint"
    await platform.services.sessions.delete(platform.owner, session.id)


async def test_a_lost_sandbox_is_replaced_from_the_last_checkpoint(platform: PlatformHarness) -> None:
    sessions = platform.services.sessions
    session, row = await create_session(platform, envs={"WORD": "carried over"})
    with pytest.raises(ConflictError, match="running"):
        await sessions.provision(platform.owner, session.id)
    await platform.run(row, "echo kept > /home/user/file")
    await sessions.save_snapshot(platform.owner, session.id)
    await platform.run(row, "echo later > /home/user/file")
    assert row.engine_id
    await platform.services.engine.kill(row.engine_id)
    await platform.finish_round(platform.services.maintenance.reconcile())
    await sessions.archive(platform.owner, session.id)
    found, fresh = await sessions.provision(platform.owner, session.id)
    assert found.sandbox_id == fresh.id != row.id and found.archived_at is None
    fresh = await platform.services.lifecycle.wait_until_provisioned(fresh.id)
    assert await platform.run(fresh, 'cat /home/user/file; printf "$WORD"') == "kept\ncarried over"
    with pytest.raises(ConflictError):
        await sessions.provision(platform.owner, session.id)

    await platform.services.sandboxes.destroy_sandbox(platform.owner, fresh.id)  # once more, for a destroyed sandbox
    _, third = await sessions.provision(platform.owner, session.id)
    assert await platform.run(third, 'printf "$WORD"') == "carried over"
    await sessions.delete(platform.owner, session.id)


async def test_a_checkpoint_is_forgotten_only_if_the_engine_does_not_have_it(
    platform: PlatformHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator can change other reasons, such as the required isolation level."""

    async def refuse(**_: object) -> None:
        raise EngineInvalidError("The isolation level namespace is not allowed.")

    async def replace_sandbox(row: Sandbox) -> Sandbox:
        await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
        _, fresh = await sessions.provision(platform.owner, session.id)
        with contextlib.suppress(EngineInvalidError):
            await platform.services.lifecycle.wait_until_provisioned(fresh.id)
        return await platform.reload(fresh)

    sessions = platform.services.sessions
    session, row = await create_session(platform)
    await platform.run(row, "echo kept > /home/user/file")
    await sessions.save_snapshot(platform.owner, session.id)
    with monkeypatch.context() as patch:
        patch.setattr(platform.services.engine, "create", refuse)
        refused = await replace_sandbox(row)
    assert (refused.status, refused.error_code) == ("error", "engine_invalid")
    row = await replace_sandbox(refused)
    assert await platform.run(row, "cat /home/user/file") == "kept\n"

    await platform.services.engine.delete_snapshot((await sessions.get(platform.owner, session.id)).checkpoint or "")
    missing = await replace_sandbox(row)
    assert (missing.status, missing.error_code) == ("error", "template_not_found")
    row = await replace_sandbox(missing)
    assert (row.status, (await sessions.get(platform.owner, session.id)).checkpoint) == ("running", None)


@pytest.mark.parametrize("in_project", [False, True])
async def test_a_checkpoint_is_a_template_only_for_people_who_see_its_session(
    platform: PlatformHarness, in_project: bool
) -> None:
    sessions, other = platform.services.sessions, await platform.create_person("other")
    project_id = await platform.project(platform.owner) if in_project else None
    session, _ = await create_session(platform, project_id=project_id)
    checkpoint = (await sessions.save_snapshot(platform.owner, session.id)).checkpoint
    with pytest.raises(InvalidInputError, match="there is no template"):
        await create_session(platform, other, template=checkpoint)
    own, _ = await create_session(platform, project_id=project_id, template=checkpoint)
    assert own.id != session.id


async def test_concurrent_calls_create_one_sandbox_and_one_checkpoint(
    database_url: str, tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_platform(tmp_path, engine_process, monkeypatch, database_url=database_url) as platform:
        session, row = await create_session(platform)
        await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
        attempts = [platform.services.sessions.provision(platform.owner, session.id) for _ in range(6)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in results) == 5
        assert (
            len(await platform.services.lifecycle.repository.list_with_status(Status.PROVISIONING, Status.RUNNING)) == 1
        )
        current = await platform.services.sessions.get_sandbox(platform.owner, session.id)
        await platform.services.lifecycle.wait_until_provisioned(current.id)
        before = list_snapshots(engine_process)
        checkpoints = [platform.services.sessions.save_snapshot(platform.owner, session.id) for _ in range(3)]
        await asyncio.gather(*checkpoints)
        kept = (await platform.services.sessions.get(platform.owner, session.id)).checkpoint
        assert list_snapshots(engine_process) - before == {kept}
        await platform.services.sessions.delete(platform.owner, session.id)
        await kill_sandboxes(platform)


async def test_an_owner_who_has_left_the_project_keeps_the_session(platform: PlatformHarness) -> None:
    boss = await platform.create_person("boss")
    project = await platform.project(boss, platform.owner, idle_seconds=88)
    session, row = await create_session(platform, project_id=project)
    await platform.services.projects.remove_member(boss, project, platform.owner.user_id)
    await platform.services.sandboxes.destroy_sandbox(platform.owner, row.id)
    for caller in (platform.owner, boss):
        with pytest.raises(OwnerWithoutAccessError):
            await platform.services.sessions.provision(caller, session.id)
    assert (await platform.services.sessions.get(platform.owner, session.id)).sandbox_id == row.id
    await platform.services.projects.add_member(boss, project, platform.owner.user_id)
    _, fresh = await platform.services.sessions.provision(platform.owner, session.id)
    assert (await platform.services.lifecycle.wait_until_provisioned(fresh.id)).status == "running"
    assert fresh.idle_seconds == 88


async def test_a_session_is_deleted_only_by_its_owner_the_projects_owner_or_an_administrator(
    platform: PlatformHarness,
) -> None:
    boss, member, admin = (
        await platform.create_person("boss"),
        await platform.create_person("member"),
        await platform.create_person("admin", "admin"),
    )
    project = await platform.project(boss, member, platform.owner)
    for caller in (platform.owner, boss, admin):
        session, row = await create_session(platform, project_id=project)
        with pytest.raises(ForbiddenError):
            await platform.services.sessions.delete(member, session.id)
        assert (await platform.reload(row)).status == "running"
        await platform.services.sessions.delete(caller, session.id)
        with pytest.raises(NotFoundError):
            await platform.services.sessions.get(caller, session.id)


async def test_a_sandbox_of_a_session_or_task_is_deleted_only_by_those_who_may_delete_the_session(
    platform: PlatformHarness,
) -> None:
    boss, member, admin = (
        await platform.create_person("boss"),
        await platform.create_person("member"),
        await platform.create_person("admin", "admin"),
    )
    project = await platform.project(boss, member, platform.owner)
    destroy = platform.services.sandboxes.destroy_sandbox
    for caller in (platform.owner, boss, admin):
        _, row = await create_session(platform, project_id=project)
        with pytest.raises(ForbiddenError):
            await destroy(member, row.id)
        assert (await platform.reload(row)).status == "running"
        await destroy(caller, row.id)
        assert (await platform.reload(row)).status == "destroyed"
    shared = await platform.services.sandboxes.create_sandbox(platform.owner, project_id=project)
    await destroy(member, shared.id)
    assert (await platform.reload(shared)).status == "destroyed", "it belongs to no session or task"


async def test_an_owner_who_has_left_the_project_only_reads_pauses_and_deletes_the_session(
    platform: PlatformHarness,
) -> None:
    services, boss = platform.services, await platform.create_person("boss")
    project = await platform.project(boss, platform.owner)
    session, row = await create_session(platform, title="Before", project_id=project)
    await services.sessions.add_message(platform.owner, session.id, [{"type": "text", "text": "before"}])
    await services.projects.remove_member(boss, project, platform.owner.user_id)
    for change in (
        services.sessions.rename(platform.owner, session.id, "After"),
        services.sessions.archive(platform.owner, session.id),
        services.sessions.add_message(platform.owner, session.id, [{"type": "text", "text": "after"}]),
    ):
        with pytest.raises(OwnerWithoutAccessError, match="no longer have access to the project"):
            await change
    with pytest.raises(OwnerWithoutAccessError):  # its owner would read it
        await services.sessions.add_message(boss, session.id, [{"type": "text", "text": "after"}])
    kept = await services.sessions.get(platform.owner, session.id)
    assert (kept.title, kept.archived_at) == ("Before", None)
    assert len((await services.sessions.list_messages(platform.owner, session.id, PageRequest())).items) == 1
    assert (await services.sessions.rename(boss, session.id, "Theirs")).title == "Theirs"
    assert (await services.sandboxes.pause(platform.owner, row.id)).status == "paused"
    await services.sessions.delete(platform.owner, session.id)


async def test_a_session_is_created_only_with_an_agent_of_its_owner(platform: PlatformHarness) -> None:
    other = await platform.create_person("other")
    await platform.services.agents.create(other, "private", None, Definition(argv=["agent"]))
    for name in ("private", "nobody"):
        with pytest.raises(InvalidInputError, match=f"There is no agent '{name}'"):
            await platform.services.sessions.create(platform.owner, agent=name)
    assert await list_session_ids(platform, platform.owner) == []
    session, _ = await create_session(platform, other, agent="private")
    assert session.agent == "private"


async def test_messages_are_paginated(platform: PlatformHarness) -> None:
    sessions = platform.services.sessions
    session, _ = await create_session(platform)
    other, _ = await create_session(platform)
    await sessions.add_message(platform.owner, other.id, [{"type": "text", "text": "elsewhere"}])
    ids = []
    for number in range(5):
        message = await sessions.add_message(platform.owner, session.id, [{"type": "text", "text": str(number)}])
        assert (message.role, message.author_id) == ("user", platform.owner.user_id)
        ids.append(message.id)
    seen: list[str] = []
    cursor = None
    while True:
        page = await sessions.list_messages(platform.owner, session.id, PageRequest(2, cursor))
        assert len(page.items) <= 2
        seen += [item.id for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert (await platform.list_event_kinds(prefix="message.")) == ["message.created"] * 6


async def test_a_session_is_visible_only_to_permitted_users(platform: PlatformHarness) -> None:
    services = platform.services
    member, stranger = await platform.create_person("member"), await platform.create_person("stranger")
    admin = await platform.create_person("boss", "admin")
    project = await platform.project(platform.owner, member)
    shared, row = await create_session(platform, project_id=project)
    private, own = await create_session(platform)
    everything = [private.id, shared.id]
    assert await list_session_ids(platform, platform.owner) == await list_session_ids(platform, admin) == everything
    assert (
        await list_session_ids(platform, member)
        == await list_session_ids(platform, member, project_id=project)
        == [shared.id]
    )
    assert (
        await list_session_ids(platform, stranger)
        == await list_session_ids(platform, stranger, project_id=project)
        == []
    )
    for caller, session in ((member, private), (stranger, private), (stranger, shared)):
        for attempt in (
            services.sessions.get(caller, session.id),
            services.sessions.get_with_sandbox(caller, session.id),
            services.sessions.get_sandbox(caller, session.id),
            services.sessions.rename(caller, session.id, "Mine"),
            services.sessions.archive(caller, session.id),
            services.sessions.provision(caller, session.id),
            services.sessions.save_snapshot(caller, session.id),
            services.sessions.list_messages(caller, session.id, PageRequest()),
            services.sessions.add_message(caller, session.id, []),
            services.sessions.delete(caller, session.id),
            services.sandboxes.get_status(caller, session.sandbox_id or ""),
            services.sandboxes.destroy_sandbox(caller, session.sandbox_id or ""),
        ):
            with pytest.raises(NotFoundError):
                await attempt
    for caller in (member, admin, platform.owner):
        assert (await services.sessions.get(caller, shared.id)).id == shared.id
        assert (await services.sandboxes.get_status(caller, row.id)).id == row.id
    ids = {
        caller.name: {
            item.id for item in (await services.lifecycle.repository.page(caller, PageRequest(), everybody=True)).items
        }
        for caller in (platform.owner, member, stranger, admin)
    }
    assert ids == {"owner": {row.id, own.id}, "member": {row.id}, "stranger": set(), "boss": {row.id, own.id}}
    assert (await services.lifecycle.repository.page(member, PageRequest())).items == [], "only their own sandboxes"
