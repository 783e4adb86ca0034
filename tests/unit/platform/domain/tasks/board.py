"""A board with attempts that are not worked on: started rounds are recorded in a list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, Project, Task, User
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.tasks.attempts import Attempts
from sandyard.platform.domain.tasks.board import Tasks
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings


class RecordedTurns:
    """Records the sessions whose turns are cancelled and whose agents are ended."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.ended: list[str] = []

    async def cancel_all(self, session_id: str) -> None:
        self.cancelled.append(session_id)

    async def end_agent(self, session_id: str) -> None:
        self.ended.append(session_id)


class RecordedExecutor:
    """Records the rounds that are begun. `states` are what `get_state` returns; `begin` raises the next of `failures`."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.states: dict[str, str] = {}
        self.failures: list[SandyardError] = []

    async def begin(self, attempt_id: str, number: int) -> None:
        if self.failures:
            raise self.failures.pop()
        self.begun.append((attempt_id, number))

    async def get_state(self, attempt_id: str, number: int) -> str | None:
        return self.states.get(attempt_id)


@dataclass
class Board:
    """The tasks of one owner and their project on a real database."""

    database: Database
    settings: PlatformSettings
    turns: RecordedTurns = field(default_factory=RecordedTurns)
    executor: RecordedExecutor = field(default_factory=RecordedExecutor)

    async def open(self, **settings: Any) -> Board:
        self.owner = await self.create_person("owner")
        clock = SystemClock()
        self.projects = Projects(self.database, clock)
        self.attempts = Attempts(self.database, self.projects, None, self.turns, self.settings, clock)  # type: ignore[arg-type]
        self.tasks = Tasks(self.database, self.projects, self.attempts, None, clock)
        self.project = await self.create_project(**settings)
        return self

    async def close(self) -> None:
        await self.tasks.close()
        await self.attempts.close()

    async def create_person(self, name: str) -> Principal:
        row = User(id=make_ordered_id("usr_"), name=name, role="member", created_at=utc_now())
        async with self.database.transaction() as tx:
            tx.add(row)
        return Principal(row.id, name, "member", "test")

    async def create_project(self, owner: Principal | None = None, **settings: Any) -> Project:
        return await self.projects.create(owner or self.owner, "site", settings=ProjectSettings(**settings))

    async def create_task(self, title: str = "Do it", *, project: Project | None = None, **fields: Any) -> Task:
        owner = self.owner if project is None else Principal(project.owner_id, "x", "member", "test")
        task_fields = TaskFields(title=title, **fields)
        return await self.tasks.create(owner, (project or self.project).id, task_fields, start=True)

    async def get_attempt(self, task: Task, number: int = 1) -> Attempt:
        return (await self.attempts.list_for_tasks([task.id]))[task.id][number - 1]

    async def finish_round(self, attempt: Attempt, status: AttemptStatus) -> None:
        """End the round of the attempt with this status."""
        async with self.database.transaction() as tx:
            row = await tx.session.get(Attempt, attempt.id)
            task = await tx.session.get(Task, attempt.task_id)
            assert row is not None
            assert task is not None
            await self.attempts.finish_round(tx, task, row, status)
            if row.status == AttemptStatus.IN_REVIEW:
                await self.tasks.advance(tx, task, Column.IN_REVIEW)
        self.attempts.nudge()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)
