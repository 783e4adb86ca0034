"""Sandboxes and sessions whose project was deleted: who has them, and what they may do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.platform.db.models import Sandbox, Session
from sandyard.platform.domain.agents.repository import load_agent_settings
from sandyard.platform.domain.projects.egress import Allowed
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import CommandRefusedError
from sandyard.platform.domain.sandboxes.service import Sandboxes
from sandyard.platform.domain.sessions.service import Sessions
from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.world import World

CLOSED = {
    "network": {"mode": "none"},
    "isolation": "gvisor",
    "hostLabels": {"gpu": "yes"},
    "commandPolicy": {"deny": ["sudo"]},
    "agent": {"permissions": {"deny": ["rm -rf"]}},
}


class Engine:
    """Sandboxes that start at once, and what each was created with."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.networks: dict[str, Allowed] = {}
        self.fork_isolation = "gvisor"

    async def create(self, *, allowed: Allowed, **arguments: Any) -> Any:
        self.created.append(arguments)
        return self._add(allowed, arguments["isolation"])

    async def fork(self, engine_id: str, timeout_s: int, count: int) -> list[Any]:
        return [self._add(self.networks[engine_id], self.fork_isolation) for _ in range(count)]

    async def set_network(self, engine_id: str, allowed: Allowed) -> None:
        self.networks[engine_id] = allowed

    async def pause(self, engine_id: str) -> None: ...
    async def resume(self, engine_id: str, timeout_s: int) -> None: ...
    async def kill(self, engine_id: str) -> None: ...

    def _add(self, allowed: Allowed, isolation: str | None) -> Any:
        engine_id = f"eng_{len(self.networks)}"
        self.networks[engine_id] = allowed
        return SimpleNamespace(id=engine_id, isolation=isolation, containers=False)


class Environment:
    def __init__(self, world: World, ann: Principal, bob: Principal, project_id: str) -> None:
        self.world, self.ann, self.bob, self.project_id = world, ann, bob, project_id
        self.engine = Engine()
        self.lifecycle = Lifecycle(
            world.database, cast(Any, self.engine), cast(Any, None), Activity(SystemClock()), instance="x", idle_margin_s=1
        )  # fmt: skip
        self.sandboxes = Sandboxes(world.database, self.lifecycle, world.projects, world.settings)
        self.sessions = Sessions(
            world.database,
            self.lifecycle,
            cast(Any, None),
            projects=world.projects,
            git=cast(Any, None),
            settings=world.settings,
        )

    async def create_session(self, owner: Principal) -> tuple[Session, Sandbox]:
        session, sandbox = await self.sessions.create(owner, project_id=self.project_id)
        return session, await self.lifecycle.wait_until_provisioned(sandbox.id)

    async def delete_project(self) -> None:
        await self.world.projects.delete(self.ann, self.project_id)

    async def get(self, sandbox: Sandbox) -> Sandbox:
        return await self.lifecycle.repository.get(sandbox.id)


@pytest.fixture
async def environment(world: World) -> Environment:
    ann, bob = [(await world.create_person(name)).principal for name in ("ann", "bob")]
    settings = ProjectSettings.model_validate(CLOSED)
    project = await world.projects.create(ann, "closed", settings=settings)
    await world.projects.add_member(ann, project.id, bob.user_id)
    return Environment(world, ann, bob, project.id)


async def test_removed_member_does_not_get_sandboxes_back(environment: Environment) -> None:
    env = environment
    session, sandbox = await env.create_session(env.bob)
    await env.world.projects.remove_member(env.ann, env.project_id, env.bob.user_id)
    await env.delete_project()
    for refused in (
        env.sandboxes.get_status(env.bob, sandbox.id),
        env.sandboxes.fork(env.bob, sandbox.id),
        env.sessions.get(env.bob, session.id),
        env.sessions.fork(env.bob, session.id),
    ):
        with pytest.raises(NotFoundError):
            await refused
    assert (await env.sessions.get(env.ann, session.id)).owner_id == env.ann.user_id
    assert (await env.sandboxes.get_status(env.ann, sandbox.id)).owner_id == env.ann.user_id


async def test_members_keep_their_sandboxes(environment: Environment) -> None:
    env = environment
    session, sandbox = await env.create_session(env.bob)
    await env.delete_project()
    assert (await env.sessions.get(env.bob, session.id)).owner_id == env.bob.user_id
    assert await env.lifecycle.ensure_running(await env.get(sandbox))
    with pytest.raises(NotFoundError):
        await env.sessions.get(env.ann, session.id)


async def test_forks_keep_the_network_and_isolation_of_the_project(environment: Environment) -> None:
    env = environment
    session, sandbox = await env.create_session(env.bob)
    await env.delete_project()
    fork = await env.sandboxes.fork(env.bob, sandbox.id)
    second = await env.sandboxes.fork(env.bob, fork.id)
    _, of_session = await env.sessions.fork(env.bob, session.id)
    for copy in (fork, second, of_session):
        row = await env.get(copy)
        assert row.network == [] and env.engine.networks[row.engine_id or ""] == []
    env.engine.fork_isolation = "namespace"
    with pytest.raises(ConflictError, match="isolation level"):
        await env.sandboxes.fork(env.bob, second.id)


async def test_new_sandbox_of_a_session_keeps_the_network_and_isolation_of_the_project(
    environment: Environment,
) -> None:
    env = environment
    session, sandbox = await env.create_session(env.bob)
    await env.delete_project()
    forked, of_fork = await env.sessions.fork(env.bob, session.id)
    for id_, old in ((session.id, sandbox), (forked.id, of_fork)):
        await env.lifecycle.destroy(await env.get(old), keep_work=False)
        _, new = await env.sessions.provision(env.bob, id_)
        new = await env.lifecycle.wait_until_provisioned(new.id)
        assert new.network == [] and env.engine.networks[new.engine_id or ""] == []
        assert env.engine.created[-1]["isolation"] == "gvisor"
        assert env.engine.created[-1]["host_labels"] == {"gpu": "yes"}


async def test_project_deleted_while_its_sandbox_is_provisioned(environment: Environment) -> None:
    env = environment
    _, sandbox = await env.sessions.create(env.bob, project_id=env.project_id)
    await env.delete_project()
    row = await env.lifecycle.wait_until_provisioned(sandbox.id)
    assert row.network == [] and env.engine.networks[row.engine_id or ""] == []


async def test_resumed_sandbox_has_the_newest_network_of_the_project(environment: Environment) -> None:
    env = environment
    await env.world.projects.update(
        env.ann, env.project_id, settings=ProjectSettings.model_validate({"network": {"mode": "all"}})
    )
    _, sandbox = await env.create_session(env.bob)
    await env.lifecycle.pause(sandbox)
    await env.world.projects.update(env.ann, env.project_id, settings=ProjectSettings.model_validate(CLOSED))
    await env.delete_project()
    row = await env.lifecycle.resume(await env.get(sandbox))
    assert row.network == [] and env.engine.networks[row.engine_id or ""] == []


async def test_policies_for_commands_and_agents_still_apply(environment: Environment) -> None:
    env = environment
    session, sandbox = await env.create_session(env.bob)
    await env.delete_project()
    commands = Commands.__new__(Commands)
    commands._database = env.world.database
    row = await env.get(sandbox)
    await commands._check_policy(row, "ls")
    with pytest.raises(CommandRefusedError):
        await commands._check_policy(row, "sudo ls")
    async with env.world.database.reading() as reading:
        settings = await load_agent_settings(reading, await env.sessions.get(env.bob, session.id))
    assert settings.permissions.deny == ["rm -rf"]


async def test_checkpoint_is_not_used_without_the_settings_of_the_project(environment: Environment) -> None:
    env = environment
    session, _ = await env.create_session(env.bob)
    async with env.world.database.transaction() as tx:
        stored = await tx.session.get(Session, session.id)
        assert stored is not None
        stored.checkpoint = "snapshot-1"
    await env.delete_project()
    with pytest.raises(InvalidInputError, match="settings still apply"):
        await env.sandboxes.create_sandbox(env.bob, template="snapshot-1")


async def test_nothing_is_kept_of_a_project_without_restrictions(environment: Environment) -> None:
    env = environment
    await env.world.projects.update(env.ann, env.project_id, settings=ProjectSettings())
    session, sandbox = await env.create_session(env.bob)
    await env.delete_project()
    assert (await env.get(sandbox)).deleted_project_id is None
    assert (await env.sessions.get(env.bob, session.id)).deleted_project_id is None
    fork = await env.sandboxes.fork(env.bob, sandbox.id)
    assert fork.network is None
