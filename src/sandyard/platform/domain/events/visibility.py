"""Which events a user may see: administrators all; others their own and those of their projects.

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

STALE_SECONDS = 5.0
"""How long a list of projects is trusted without an event about a change."""


def visible_to(principal: Principal) -> ColumnElement[bool] | None:
    """Return the condition for the database; None if nothing is hidden."""
    if principal.is_admin:
        return None
    mine = _projects_of(principal.user_id).subquery()
    return or_(Event.owner_id == principal.user_id, Event.project_id.in_(select(mine.c.id)))


def _projects_of(user_id: str) -> Select[str]:
    both = union(
        select(Project.id.label("id")).where(Project.owner_id == user_id),
        select(ProjectMember.project_id.label("id")).where(ProjectMember.user_id == user_id),
    ).subquery()
    return select(both.c.id)


@dataclass(frozen=True, slots=True)
class Sight:
    """What one user may see, for events in memory. `before` are their projects before the last change, so that they see that change."""

    user_id: str
    everything: bool
    now: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()

    def sees(self, event: EventView) -> bool:
        if self.everything or event.owner_id == self.user_id:
            return True
        if event.project_id is None:
            return False
        return event.project_id in self.now or (changes_projects(event) and event.project_id in self.before)


def changes_projects(event: EventView) -> bool:
    return event.kind.startswith("project.")


@dataclass
class _Known:
    projects: frozenset[str] = frozenset()
    generation: int = -1
    until: float = 0.0
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Projects:
    """The projects of each user, looked up once for all their streams and again after each change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, _Known] = {}
        self.generation = 0

    def changed(self) -> None:
        self.generation += 1

    async def of(self, user_id: str) -> frozenset[str]:
        """Return the user's projects, at least as recent as the newest known change."""
        known = self._known.setdefault(user_id, _Known())
        if not self._trusted(known):
            async with known.loading:
                if not self._trusted(known):
                    generation = self.generation
                    async with self._database.reading() as session:
                        projects = frozenset((await session.scalars(_projects_of(user_id))).all())
                    known.projects, known.generation = projects, generation
                    known.until = time.monotonic() + STALE_SECONDS
        return known.projects

    def _trusted(self, known: _Known) -> bool:
        return known.generation == self.generation and time.monotonic() < known.until
