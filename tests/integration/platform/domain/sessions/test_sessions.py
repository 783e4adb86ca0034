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
from tests.integration.platform.domain.sandboxes.yard import Yard, kill_sandboxes, open_yard


async def create_session(yard: Yard, owner: Principal | None = None, **wanted: object) -> tuple[Session, Sandbox]:
    session, row = await yard.services.sessions.create(owner or yard.owner, **wanted)  # type: ignore[arg-type]
    return session, await yard.services.lifecycle.wait_until_provisioned(row.id)


def list_snapshots(engine: Engine) -> set[str]:
    with engine.client() as client:
        return {found["snapshotID"] for found in client.get("/snapshots", params={"limit": 100}).json()}


async def list_session_ids(
    yard: Yard, caller: Principal, *, archived: bool = False, project_id: str | None = None
) -> list[str]:
    page = await yard.services.sessions.list_sessions(caller, PageRequest(), project_id=project_id, archived=archived)
    return [item.id for item in page.items]


async def test_a_session_gets_its_own_sandbox(yard: Yard) -> None:
    project = await yard.project(yard.owner, idle_seconds=77)
    session, row = await create_session(yard, title="First", project_id=project, agent="demo", envs={"A": "b c"})
    assert (session.title, session.sandbox_id, row.session_id) == ("First", row.id, session.id)
    assert (row.status, row.idle_seconds, row.agent_id, row.project_id) == ("running", 77, "demo", project)
    assert await yard.run(row, 'printf "$A"') == "b c"
    assert (await yard.services.sessions.get_sandbox(yard.owner, session.id)).id == row.id
    found, sandbox = await yard.services.sessions.get_with_sandbox(yard.owner, session.id)
    assert found.id == session.id and sandbox is not None and sandbox.id == row.id
    assert await yard.list_event_kinds(prefix="session.") == ["session.created"]
    with pytest.raises(InvalidInputError, match="envs"):
        await yard.services.sessions.create(yard.owner, envs={"A=": "b"})
    with pytest.raises(NotFoundError):
        await yard.services.sessions.create(yard.owner, project_id="prj_none")
    assert await list_session_ids(yard, yard.owner) == [session.id]


async def test_a_session_can_be_renamed_and_archived(yard: Yard) -> None:
    sessions = yard.services.sessions
    session, row = await create_session(yard)
    assert (await sessions.rename(yard.owner, session.id, "Better")).title == "Better"
    for _ in range(2):
        assert (await sessions.archive(yard.owner, session.id)).archived_at is not None
    assert await yard.get_engine_state(row) == "paused"
    assert (await list_session_ids(yard, yard.owner), await list_session_ids(yard, yard.owner, archived=True)) == (
        [],
        [session.id],
    )
    assert await yard.list_event_kinds(prefix="session.a") == ["session.archived"]


async def test_deleting_a_session_deletes_everything_it_owns(yard: Yard, engine_process: Engine) -> None:
    sessions = yard.services.sessions
    session, row = await create_session(yard, envs={"A": "b"})
    await sessions.add_message(yard.owner, session.id, [{"type": "text", "text": "hello"}])
    checkpoint = (await sessions.save_snapshot(yard.owner, session.id)).checkpoint
    assert checkpoint in list_snapshots(engine_process)
    await yard.engine_proxy.stop()
    with pytest.raises(EngineUnreachableError):
        await sessions.delete(yard.owner, session.id)
    assert await list_session_ids(yard, yard.owner) == [session.id], "the session is kept while its sandbox exists"
    await yard.reconnect_engine()
    await sessions.delete(yard.owner, session.id)
    with pytest.raises(NotFoundError):
        await sessions.get(yard.owner, session.id)
    found = await yard.reload(row)
    assert (found.status, found.session_id, found.envs) == ("destroyed", None, None)
    assert await yard.get_engine_state(row) == "gone"
    assert checkpoint not in list_snapshots(engine_process)
    assert (await yard.list_event_kinds(prefix="session."))[-1] == "session.deleted"


async def test_a_pause_keeps_only_the_last_checkpoint(yard: Yard, engine_process: Engine) -> None:
    before = list_snapshots(engine_process)
    session, row = await create_session(yard)
    kept = []
    for number in range(3):
        await yard.run(row, f"echo {number} > /home/user/file")
        await yard.services.sandboxes.pause(yard.owner, row.id)
        kept.append((await yard.services.sessions.get(yard.owner, session.id)).checkpoint)
        assert list_snapshots(engine_process) - before == {kept[-1]}
    assert len(set(kept)) == 3
    await yard.services.sandboxes.pause(yard.owner, row.id)
    assert (await yard.services.sessions.get(yard.owner, session.id)).checkpoint == kept[-1]
    loose = await yard.create_sandbox()
    await yard.services.sandboxes.pause(yard.owner, loose.id)
    assert list_snapshots(engine_process) - before == {kept[-1]}, "a sandbox without a session has no checkpoint"
    await yard.services.sessions.delete(yard.owner, session.id)


async def test_a_lost_sandbox_is_replaced_from_the_last_checkpoint(yard: Yard) -> None:
    sessions = yard.services.sessions
    session, row = await create_session(yard, envs={"WORD": "carried over"})
    with pytest.raises(ConflictError, match="running"):
        await sessions.provision(yard.owner, session.id)
    await yard.run(row, "echo kept > /home/user/file")
    await sessions.save_snapshot(yard.owner, session.id)
    await yard.run(row, "echo later > /home/user/file")
    assert row.engine_id
    await yard.services.engine.kill(row.engine_id)
    await yard.finish_round(yard.services.maintenance.reconcile())
    await sessions.archive(yard.owner, session.id)
    found, fresh = await sessions.provision(yard.owner, session.id)
    assert found.sandbox_id == fresh.id != row.id and found.archived_at is None
    fresh = await yard.services.lifecycle.wait_until_provisioned(fresh.id)
    assert await yard.run(fresh, 'cat /home/user/file; printf "$WORD"') == "kept\ncarried over"
    with pytest.raises(ConflictError):
        await sessions.provision(yard.owner, session.id)

    await yard.services.sandboxes.destroy_sandbox(yard.owner, fresh.id)  # once more, for a destroyed sandbox
    _, third = await sessions.provision(yard.owner, session.id)
    assert await yard.run(third, 'printf "$WORD"') == "carried over"
    await sessions.delete(yard.owner, session.id)


async def test_a_checkpoint_is_forgotten_only_if_the_engine_does_not_have_it(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator can change other reasons, such as the required isolation level."""

    async def refuse(**_: object) -> None:
        raise EngineInvalidError("The isolation level namespace is not allowed.")

    async def replace_sandbox(row: Sandbox) -> Sandbox:
        await yard.services.sandboxes.destroy_sandbox(yard.owner, row.id)
        _, fresh = await sessions.provision(yard.owner, session.id)
        with contextlib.suppress(EngineInvalidError):
            await yard.services.lifecycle.wait_until_provisioned(fresh.id)
        return await yard.reload(fresh)

    sessions = yard.services.sessions
    session, row = await create_session(yard)
    await yard.run(row, "echo kept > /home/user/file")
    await sessions.save_snapshot(yard.owner, session.id)
    with monkeypatch.context() as patch:
        patch.setattr(yard.services.engine, "create", refuse)
        refused = await replace_sandbox(row)
    assert (refused.status, refused.error_code) == ("error", "engine_invalid")
    row = await replace_sandbox(refused)
    assert await yard.run(row, "cat /home/user/file") == "kept\n"

    await yard.services.engine.delete_snapshot((await sessions.get(yard.owner, session.id)).checkpoint or "")
    missing = await replace_sandbox(row)
    assert (missing.status, missing.error_code) == ("error", "template_not_found")
    row = await replace_sandbox(missing)
    assert (row.status, (await sessions.get(yard.owner, session.id)).checkpoint) == ("running", None)


@pytest.mark.parametrize("in_project", [False, True])
async def test_a_checkpoint_is_a_template_only_for_people_who_see_its_session(yard: Yard, in_project: bool) -> None:
    sessions, other = yard.services.sessions, await yard.person("other")
    project_id = await yard.project(yard.owner) if in_project else None
    session, _ = await create_session(yard, project_id=project_id)
    checkpoint = (await sessions.save_snapshot(yard.owner, session.id)).checkpoint
    with pytest.raises(InvalidInputError, match="there is no template"):
        await create_session(yard, other, template=checkpoint)
    own, _ = await create_session(yard, project_id=project_id, template=checkpoint)
    assert own.id != session.id


async def test_concurrent_calls_create_one_sandbox_and_one_checkpoint(
    database_url: str, tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_yard(tmp_path, engine_process, monkeypatch, database_url=database_url) as yard:
        session, row = await create_session(yard)
        await yard.services.sandboxes.destroy_sandbox(yard.owner, row.id)
        attempts = [yard.services.sessions.provision(yard.owner, session.id) for _ in range(6)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, ConflictError) for result in results) == 5
        assert len(await yard.services.lifecycle.repository.list_with_status(Status.PROVISIONING, Status.RUNNING)) == 1
        current = await yard.services.sessions.get_sandbox(yard.owner, session.id)
        await yard.services.lifecycle.wait_until_provisioned(current.id)
        before = list_snapshots(engine_process)
        checkpoints = [yard.services.sessions.save_snapshot(yard.owner, session.id) for _ in range(3)]
        await asyncio.gather(*checkpoints)
        kept = (await yard.services.sessions.get(yard.owner, session.id)).checkpoint
        assert list_snapshots(engine_process) - before == {kept}
        await yard.services.sessions.delete(yard.owner, session.id)
        await kill_sandboxes(yard)


async def test_an_owner_who_has_left_the_project_keeps_the_session(yard: Yard) -> None:
    boss = await yard.person("boss")
    project = await yard.project(boss, yard.owner, idle_seconds=88)
    session, row = await create_session(yard, project_id=project)
    await yard.services.projects.remove_member(boss, project, yard.owner.user_id)
    await yard.services.sandboxes.destroy_sandbox(yard.owner, row.id)
    for caller in (yard.owner, boss):
        with pytest.raises(OwnerWithoutAccessError):
            await yard.services.sessions.provision(caller, session.id)
    assert (await yard.services.sessions.get(yard.owner, session.id)).sandbox_id == row.id
    await yard.services.projects.add_member(boss, project, yard.owner.user_id)
    _, fresh = await yard.services.sessions.provision(yard.owner, session.id)
    assert (await yard.services.lifecycle.wait_until_provisioned(fresh.id)).status == "running"
    assert fresh.idle_seconds == 88


async def test_a_session_is_deleted_only_by_its_owner_the_projects_owner_or_an_administrator(yard: Yard) -> None:
    boss, member, admin = await yard.person("boss"), await yard.person("member"), await yard.person("admin", "admin")
    project = await yard.project(boss, member, yard.owner)
    for caller in (yard.owner, boss, admin):
        session, row = await create_session(yard, project_id=project)
        with pytest.raises(ForbiddenError):
            await yard.services.sessions.delete(member, session.id)
        assert (await yard.reload(row)).status == "running"
        await yard.services.sessions.delete(caller, session.id)
        with pytest.raises(NotFoundError):
            await yard.services.sessions.get(caller, session.id)


async def test_a_sandbox_of_a_session_or_task_is_deleted_only_by_those_who_may_delete_the_session(yard: Yard) -> None:
    boss, member, admin = await yard.person("boss"), await yard.person("member"), await yard.person("admin", "admin")
    project = await yard.project(boss, member, yard.owner)
    destroy = yard.services.sandboxes.destroy_sandbox
    for caller in (yard.owner, boss, admin):
        _, row = await create_session(yard, project_id=project)
        with pytest.raises(ForbiddenError):
            await destroy(member, row.id)
        assert (await yard.reload(row)).status == "running"
        await destroy(caller, row.id)
        assert (await yard.reload(row)).status == "destroyed"
    shared = await yard.services.sandboxes.create_sandbox(yard.owner, project_id=project)
    await destroy(member, shared.id)
    assert (await yard.reload(shared)).status == "destroyed", "it belongs to no session or task"


async def test_an_owner_who_has_left_the_project_only_reads_pauses_and_deletes_the_session(yard: Yard) -> None:
    services, boss = yard.services, await yard.person("boss")
    project = await yard.project(boss, yard.owner)
    session, row = await create_session(yard, title="Before", project_id=project)
    await services.sessions.add_message(yard.owner, session.id, [{"type": "text", "text": "before"}])
    await services.projects.remove_member(boss, project, yard.owner.user_id)
    for change in (
        services.sessions.rename(yard.owner, session.id, "After"),
        services.sessions.archive(yard.owner, session.id),
        services.sessions.add_message(yard.owner, session.id, [{"type": "text", "text": "after"}]),
    ):
        with pytest.raises(OwnerWithoutAccessError, match="no longer have access to the project"):
            await change
    kept = await services.sessions.get(yard.owner, session.id)
    assert (kept.title, kept.archived_at) == ("Before", None)
    assert len((await services.sessions.list_messages(yard.owner, session.id, PageRequest())).items) == 1
    assert (await services.sessions.rename(boss, session.id, "Theirs")).title == "Theirs"
    assert (await services.sandboxes.pause(yard.owner, row.id)).status == "paused"
    await services.sessions.delete(yard.owner, session.id)


async def test_a_session_is_created_only_with_an_agent_of_its_owner(yard: Yard) -> None:
    other = await yard.person("other")
    await yard.services.agents.create(other, "private", None, Definition(argv=["agent"]))
    for name in ("private", "nobody"):
        with pytest.raises(InvalidInputError, match=f"There is no agent '{name}'"):
            await yard.services.sessions.create(yard.owner, agent=name)
    assert await list_session_ids(yard, yard.owner) == []
    session, _ = await create_session(yard, other, agent="private")
    assert session.agent == "private"


async def test_messages_are_paginated(yard: Yard) -> None:
    sessions = yard.services.sessions
    session, _ = await create_session(yard)
    other, _ = await create_session(yard)
    await sessions.add_message(yard.owner, other.id, [{"type": "text", "text": "elsewhere"}])
    ids = []
    for number in range(5):
        message = await sessions.add_message(yard.owner, session.id, [{"type": "text", "text": str(number)}])
        assert (message.role, message.author_id) == ("user", yard.owner.user_id)
        ids.append(message.id)
    seen: list[str] = []
    cursor = None
    while True:
        page = await sessions.list_messages(yard.owner, session.id, PageRequest(2, cursor))
        assert len(page.items) <= 2
        seen += [item.id for item in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert (await yard.list_event_kinds(prefix="message.")) == ["message.created"] * 6


async def test_a_session_is_visible_only_to_permitted_users(yard: Yard) -> None:
    services = yard.services
    member, stranger = await yard.person("member"), await yard.person("stranger")
    admin = await yard.person("boss", "admin")
    project = await yard.project(yard.owner, member)
    shared, row = await create_session(yard, project_id=project)
    private, own = await create_session(yard)
    everything = [private.id, shared.id]
    assert await list_session_ids(yard, yard.owner) == await list_session_ids(yard, admin) == everything
    assert (
        await list_session_ids(yard, member) == await list_session_ids(yard, member, project_id=project) == [shared.id]
    )
    assert await list_session_ids(yard, stranger) == await list_session_ids(yard, stranger, project_id=project) == []
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
    for caller in (member, admin, yard.owner):
        assert (await services.sessions.get(caller, shared.id)).id == shared.id
        assert (await services.sandboxes.get_status(caller, row.id)).id == row.id
    ids = {
        caller.name: {
            item.id for item in (await services.lifecycle.repository.page(caller, PageRequest(), everybody=True)).items
        }
        for caller in (yard.owner, member, stranger, admin)
    }
    assert ids == {"owner": {row.id, own.id}, "member": {row.id}, "stranger": set(), "boss": {row.id, own.id}}
    assert (await services.lifecycle.repository.page(member, PageRequest())).items == [], "only their own sandboxes"
