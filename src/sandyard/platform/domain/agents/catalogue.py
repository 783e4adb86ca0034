"""The catalogue of agents: the built-in ones, those that users have added, and the one to use when none is named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Agent, ModelProvider, Project, User
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.agents.profiles.custom import CustomProfile, Definition
from sandyard.platform.domain.agents.profiles.demo import DEMO
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.models.apis import SUPPORTED_APIS
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.users.model import NameTakenError, Principal
from sandyard.platform.settings import PlatformSettings

MAX_NAME = 50
MAX_OWN = 50
"""Maximum number of agents per user. Agents added by administrators are shared and not counted."""
MAX_DEFINITION = 128 << 10
"""Maximum size of a definition in bytes of JSON. All agents are listed at once."""
_NAME = re.compile(rf"[a-z][a-z0-9-]{{0,{MAX_NAME - 1}}}")


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """An agent as shown to users.

    `definition` is None for a built-in agent. `owner_id` is None for an agent available to all users.
    """

    profile: Profile
    definition: Definition | None = None
    owner_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class AgentCatalogue:
    """Manage the agents that users can choose.

    Members see the built-in agents, the shared ones and their own; administrators see all. Agents added by an
    administrator are shared.
    """

    def __init__(self, database: Database, settings: PlatformSettings) -> None:
        self._database = database
        self._settings = settings

    async def profile(self, owner_id: str, name: str) -> Profile:
        """Return the profile for a session of this user. Raises InvalidInputError that lists the available agents."""
        if name in BUILT_IN:
            return BUILT_IN[name]
        usable = or_(Agent.owner_id.is_(None), Agent.owner_id == owner_id)
        async with self._database.reading() as session:
            row = await session.scalar(select(Agent).where(Agent.name == name, usable))
            if row is not None:
                return _to_profile(row)
            others = list(await session.scalars(select(Agent.name).where(usable).order_by(Agent.name).limit(50)))
        raise InvalidInputError(f"There is no agent {name[:60]!r}. Available: {', '.join([*BUILT_IN, *others])}.")

    async def find_default_agent(self, project: Project | None) -> str:
        """Return the agent to use in the project, or without one, if none is named."""
        async with self._database.reading() as session:
            return await find_default_agent(session, project, self._settings)

    async def find_default_agents(self, projects: Iterable[Project]) -> dict[str, str]:
        """Return the default agents by project id."""
        async with self._database.reading() as session:
            return await find_default_agents(session, projects, self._settings)

    async def list(self, caller: Principal) -> list[ListedAgent]:
        """List the built-in agents first, then the others by name."""
        async with self._database.reading() as session:
            rows = list(await session.scalars(select(Agent).where(_is_visible_to(caller)).order_by(Agent.name)))
        return [*map(ListedAgent, BUILT_IN.values()), *map(_to_listed_agent, rows)]

    async def get(self, caller: Principal, name: str) -> ListedAgent:
        if name in BUILT_IN:
            return ListedAgent(BUILT_IN[name])
        async with self._database.reading() as session:
            return _to_listed_agent(await _load(session, caller, name))

    async def create(self, caller: Principal, name: str, title: str | None, definition: Definition) -> ListedAgent:
        """Add an agent.

        Raises NameTakenError if the name exists, because names are global, and ConflictError if the caller already has
        MAX_OWN agents.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name[:60]!r} is not a valid agent name. Use at most {MAX_NAME} lowercase letters, digits and hyphens, and "
                "start with a letter."
            )
        if name in BUILT_IN:
            raise NameTakenError(f"{name!r} is a built-in agent. Choose another name.")
        stored = _serialize_definition(definition)
        now = utc_now()
        row = Agent(
            id=make_ordered_id("agt_"),
            owner_id=None if caller.is_admin else caller.user_id,
            name=name,
            title=title or name,
            definition=stored,
            created_at=now,
            updated_at=now,
        )
        try:
            async with self._database.transaction() as tx:
                if row.owner_id is not None:
                    await _check_agent_limit(tx.session, row.owner_id)
                tx.add(row)
                await tx.session.flush()
                _emit(tx, "agent.created", row)
        except IntegrityError:
            raise NameTakenError(f"The agent {name!r} already exists. Choose another name.") from None
        return _to_listed_agent(row)

    async def update(self, caller: Principal, name: str, title: str | None, definition: Definition) -> ListedAgent:
        """Replace the title and the definition. Running processes are not affected."""
        stored = _serialize_definition(definition)
        async with self._database.transaction() as tx:
            row = await _load_editable(tx.session, caller, name)
            row.title, row.definition, row.updated_at = title or name, stored, utc_now()
            _emit(tx, "agent.updated", row)
        return _to_listed_agent(row)

    async def delete(self, caller: Principal, name: str) -> None:
        """Delete an agent. Sessions that use it keep its name, and cannot be prompted until an agent of that name
        exists again."""
        async with self._database.transaction() as tx:
            row = await _load_editable(tx.session, caller, name)
            await tx.session.delete(row)
            _emit(tx, "agent.deleted", row)


def _serialize_definition(definition: Definition) -> dict[str, Any]:
    stored = definition.to_column()
    size = len(json.dumps(stored, ensure_ascii=False).encode(errors="replace"))
    if size > MAX_DEFINITION:
        raise InvalidInputError(
            f"The agent's definition has {size >> 10} KiB; the limit is {MAX_DEFINITION >> 10} KiB. Put long scripts into the "
            "template, or download them in `install`."
        )
    return stored


async def _check_agent_limit(session: AsyncSession, owner_id: str) -> None:
    """Raise ConflictError if the user has MAX_OWN agents. Locks the user's row, so that concurrent calls cannot exceed
    the limit."""
    await session.execute(select(User.id).where(User.id == owner_id).with_for_update(key_share=True))
    count = await session.scalar(select(func.count()).where(Agent.owner_id == owner_id))
    if (count or 0) >= MAX_OWN:
        raise ConflictError(f"You have {count} agents; the limit is {MAX_OWN}. Delete one that you no longer need.")


async def _load_editable(session: AsyncSession, caller: Principal, name: str) -> Agent:
    if name in BUILT_IN:
        raise ConflictError(f"The agent {name!r} is built in and cannot be changed. Add your own agent instead.")
    row = await _load(session, caller, name)
    if row.owner_id != caller.user_id and not caller.is_admin:
        raise ForbiddenError(f"The agent {name!r} is available to all users: only an administrator may change it.")
    return row


async def _load(session: AsyncSession, caller: Principal, name: str) -> Agent:
    row = await session.scalar(select(Agent).where(Agent.name == name, _is_visible_to(caller)))
    if row is None:
        raise NotFoundError(f"There is no agent {name[:60]!r}.")
    return row


def _is_visible_to(caller: Principal) -> ColumnElement[bool]:
    return true() if caller.is_admin else or_(Agent.owner_id.is_(None), Agent.owner_id == caller.user_id)


def _emit(tx: Transaction, kind: str, row: Agent) -> None:
    tx.emit(kind, owner_id=row.owner_id, agent=row.name, title=row.title)


def _to_profile(row: Agent) -> CustomProfile:
    return CustomProfile(row.name, row.title, Definition.model_validate(row.definition))


def _to_listed_agent(row: Agent) -> ListedAgent:
    made = _to_profile(row)
    return ListedAgent(made, made.definition, row.owner_id, row.created_at, row.updated_at)


async def find_default_agent(session: AsyncSession, project: Project | None, settings: PlatformSettings) -> str:
    """Return the project's default agent, or else the platform's, or else the built-in agent for the first provider that was added.

    So adding another provider does not change it. The demo agent is the last resort, because it cannot do real work.
    """
    if chosen := _get_configured_agent(project, settings):
        return chosen
    return _choose_for_first_provider(await _load_provider_kinds(session), project)


async def find_default_agents(
    session: AsyncSession, projects: Iterable[Project], settings: PlatformSettings
) -> dict[str, str]:
    """Return the result of `find_default_agent` for each of these projects, by id."""
    kinds = await _load_provider_kinds(session)
    return {
        project.id: _get_configured_agent(project, settings) or _choose_for_first_provider(kinds, project)
        for project in projects
    }


def _get_configured_agent(project: Project | None, settings: PlatformSettings) -> str | None:
    usual = ProjectSettings.from_project(project).agent.default if project is not None else None
    return usual or settings.default_agent


async def _load_provider_kinds(session: AsyncSession) -> Sequence[tuple[str | None, ModelApi]]:
    """Return project (None means all users) and kind of all providers, oldest first."""
    rows = await session.execute(
        select(ModelProvider.project_id, ModelProvider.kind)
        .group_by(ModelProvider.project_id, ModelProvider.kind)
        .order_by(func.min(ModelProvider.id))
    )
    return [(project_id, ModelApi(kind)) for project_id, kind in rows]


def _choose_for_first_provider(kinds: Sequence[tuple[str | None, ModelApi]], project: Project | None) -> str:
    here = (None, project.id if project is not None else None)
    for owner, kind in kinds:
        usable = [profile for profile in BUILT_IN.values() if not set(SUPPORTED_APIS[kind]).isdisjoint(profile.apis)]
        if owner in here and usable:
            return min(usable, key=lambda profile: len(profile.apis)).name
    return DEMO.name
