"""Select the events that a user may see: administrators all; others their own and those of their projects.

Current permissions count, not those at the time of the event.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Select, or_, select, union

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Event, Project, ProjectMember
from sandyard.platform.domain.events.model import EventView
from sandyard.platform.domain.users.model import Principal

CACHE_SECONDS = 5.0
"""How long a list of projects is cached without an event about a change."""


def is_visible_to(principal: Principal) -> ColumnElement[bool] | None:
    """Return the condition for the database; None if nothing is hidden."""
    if principal.is_admin:
        return None
    mine = _select_projects(principal.user_id).subquery()
    return or_(Event.owner_id == principal.user_id, Event.project_id.in_(select(mine.c.id)))


def _select_projects(user_id: str) -> Select[str]:
    both = union(
        select(Project.id.label("id")).where(Project.owner_id == user_id),
        select(ProjectMember.project_id.label("id")).where(ProjectMember.user_id == user_id),
    ).subquery()
    return select(both.c.id)


@dataclass(frozen=True, slots=True)
class EventVisibility:
    """Selects the events in memory that one user may see.

    `now`: the user's projects. `before`: those before the last change, so that the user sees the event about that change.
    """

    user_id: str
    everything: bool
    now: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()

    def includes(self, event: EventView) -> bool:
        if self.everything or event.owner_id == self.user_id:
            return True
        if event.project_id is None:
            return False
        return event.project_id in self.now or (changes_projects(event) and event.project_id in self.before)


def changes_projects(event: EventView) -> bool:
    return event.kind.startswith("project.")


@dataclass
class _CachedProjects:
    projects: frozenset[str] = frozenset()
    generation: int = -1
    until: float = 0.0
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class UserProjects:
    """The projects of each user, looked up once for all their streams and again after each change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: dict[str, _CachedProjects] = {}
        self.generation = 0

    def invalidate(self) -> None:
        self.generation += 1

    async def list_for(self, user_id: str) -> frozenset[str]:
        """Return the user's projects, at least as recent as the newest known change."""
        cached = self._cached.setdefault(user_id, _CachedProjects())
        if not self._is_current(cached):
            async with cached.loading:
                if not self._is_current(cached):
                    generation = self.generation
                    async with self._database.reading() as session:
                        projects = frozenset((await session.scalars(_select_projects(user_id))).all())
                    cached.projects, cached.generation = projects, generation
                    cached.until = time.monotonic() + CACHE_SECONDS
        return cached.projects

    def _is_current(self, cached: _CachedProjects) -> bool:
        return cached.generation == self.generation and time.monotonic() < cached.until
