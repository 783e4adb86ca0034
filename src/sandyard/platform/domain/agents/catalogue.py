"""Which agents there are: those that come with the platform, and those that people have added."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.ids import ordered_id
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Agent, User
from sandyard.platform.domain.agents.model import Profile
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.agents.profiles.custom import Custom, Definition
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.users.model import NameTakenError, Principal

MAX_NAME = 50
MAX_OWN = 50
"""Agents that one person may have. Those of administrators are everybody's, and are not counted."""
MAX_DEFINITION = 128 << 10
"""Bytes of a definition as JSON: all agents are listed at once."""
_NAME = re.compile(rf"[a-z][a-z0-9-]{{0,{MAX_NAME - 1}}}")


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """One agent as people see it. `definition` None: it comes with the platform. `owner_id` None: it is everybody's."""

    profile: Profile
    definition: Definition | None = None
    owner_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class Agents:
    """People see the platform's, everybody's and their own; administrators see all. What an administrator adds is everybody's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def profile(self, owner_id: str, name: str) -> Profile:
        """For a session of that person. InvalidInputError names those there are."""
        if name in BUILT_IN:
            return BUILT_IN[name]
        usable = or_(Agent.owner_id.is_(None), Agent.owner_id == owner_id)
        async with self._database.reading() as session:
            row = await session.scalar(select(Agent).where(Agent.name == name, usable))
            if row is not None:
                return _custom(row)
            others = list(await session.scalars(select(Agent.name).where(usable).order_by(Agent.name).limit(50)))
        raise InvalidInputError(f"There is no agent {name[:60]!r}. Available: {', '.join([*BUILT_IN, *others])}.")

    async def list(self, caller: Principal) -> list[ListedAgent]:
        """The platform's own first, then by name."""
        async with self._database.reading() as session:
            rows = list(await session.scalars(select(Agent).where(_visible_to(caller)).order_by(Agent.name)))
        return [*map(ListedAgent, BUILT_IN.values()), *map(_listed, rows)]

    async def get(self, caller: Principal, name: str) -> ListedAgent:
        if name in BUILT_IN:
            return ListedAgent(BUILT_IN[name])
        async with self._database.reading() as session:
            return _listed(await _load(session, caller, name))

    async def create(self, caller: Principal, name: str, title: str | None, definition: Definition) -> ListedAgent:
        """NameTakenError; names are the same for everybody. ConflictError when the caller has MAX_OWN agents."""
        if not _NAME.fullmatch(name):
            raise InvalidInputError(
                f"{name[:60]!r} is not a valid agent name. Use at most {MAX_NAME} lowercase letters, digits and hyphens, and "
                "start with a letter."
            )
        if name in BUILT_IN:
            raise NameTakenError(f"{name!r} is a built-in agent. Choose another name.")
        stored = _stored(definition)
        now = utc_now()
        row = Agent(
            id=ordered_id("agt_"),
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
                    await _require_room(tx.session, row.owner_id)
                tx.add(row)
                await tx.session.flush()
                _emit(tx, "agent.created", row)
        except IntegrityError:
            raise NameTakenError(f"The agent {name!r} already exists. Choose another name.") from None
        return _listed(row)

    async def update(self, caller: Principal, name: str, title: str | None, definition: Definition) -> ListedAgent:
        """All of it is replaced. Processes that run go on as they were started."""
        stored = _stored(definition)
        async with self._database.transaction() as tx:
            row = await _load_own(tx.session, caller, name)
            row.title, row.definition, row.updated_at = title or name, stored, utc_now()
            _emit(tx, "agent.updated", row)
        return _listed(row)

    async def delete(self, caller: Principal, name: str) -> None:
        """Sessions that use it keep its name, and can do nothing until there is one of that name again."""
        async with self._database.transaction() as tx:
            row = await _load_own(tx.session, caller, name)
            await tx.session.delete(row)
            _emit(tx, "agent.deleted", row)


def _stored(definition: Definition) -> dict[str, Any]:
    stored = definition.stored()
    size = len(json.dumps(stored, ensure_ascii=False).encode(errors="replace"))
    if size > MAX_DEFINITION:
        raise InvalidInputError(
            f"The agent's definition has {size >> 10} KiB; the limit is {MAX_DEFINITION >> 10} KiB. Put long scripts into the "
            "template, or download them in `install`."
        )
    return stored


async def _require_room(session: AsyncSession, owner_id: str) -> None:
    """ConflictError. The owner's row is locked, so that of several at once none is more than MAX_OWN."""
    await session.execute(select(User.id).where(User.id == owner_id).with_for_update(key_share=True))
    count = await session.scalar(select(func.count()).where(Agent.owner_id == owner_id))
    if (count or 0) >= MAX_OWN:
        raise ConflictError(f"You have {count} agents; the limit is {MAX_OWN}. Delete one that you no longer need.")


async def _load_own(session: AsyncSession, caller: Principal, name: str) -> Agent:
    if name in BUILT_IN:
        raise ConflictError(f"The agent {name!r} is built in and cannot be changed. Add your own agent instead.")
    row = await _load(session, caller, name)
    if row.owner_id != caller.user_id and not caller.is_admin:
        raise ForbiddenError(f"The agent {name!r} is available to all users: only an administrator may change it.")
    return row


async def _load(session: AsyncSession, caller: Principal, name: str) -> Agent:
    row = await session.scalar(select(Agent).where(Agent.name == name, _visible_to(caller)))
    if row is None:
        raise NotFoundError(f"There is no agent {name[:60]!r}.")
    return row


def _visible_to(caller: Principal) -> ColumnElement[bool]:
    return true() if caller.is_admin else or_(Agent.owner_id.is_(None), Agent.owner_id == caller.user_id)


def _emit(tx: Transaction, kind: str, row: Agent) -> None:
    tx.emit(kind, owner_id=row.owner_id, agent=row.name, title=row.title)


def _custom(row: Agent) -> Custom:
    return Custom(row.name, row.title, Definition.model_validate(row.definition))


def _listed(row: Agent) -> ListedAgent:
    made = _custom(row)
    return ListedAgent(made, made.definition, row.owner_id, row.created_at, row.updated_at)
