"""A board with users on a real database. Attempts are rows that are not worked on: running them is tested elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, update

from sandyard.kit.clock import get_time
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import Attempt, Event, Project, Sandbox, Session, Task
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.tasks.board import Tasks
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import OPEN_ATTEMPTS, AttemptStatus, Column
from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.world import Person, World, open_world


class IdleAttempts:
    """Creates and ends rows like the real attempts, and runs nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.nudges = 0
        self.messages: list[tuple[str, str, str]] = []

    async def draft(self, tx: Transaction, task: Task, owner_id: str) -> list[Attempt]:
        now = get_time(self._world.clock)
        after = await tx.session.scalar(select(func.max(Attempt.number)).where(Attempt.task_id == task.id)) or 0
        wanted: list[dict[str, Any]] = task.attempts or [{"agent": task.agent, "model": task.model}]
        made = [
            Attempt(
                id=make_ordered_id("att_"),
                task_id=task.id,
                project_id=task.project_id,
                owner_id=owner_id,
                number=number,
                session_id=make_ordered_id("ses_"),
                agent=fields.get("agent") or "demo",
                model=fields.get("model"),
                status=AttemptStatus.QUEUED,
                round=1,
                queued_at=now,
                updated_at=now,
            )
            for number, fields in enumerate(wanted, after + 1)
        ]
        tx.add(*made)
        return made

    async def send_back(self, tx: Transaction, task: Task, attempt: Attempt, words: str, by: str) -> None:
        attempt.status, attempt.round = AttemptStatus.QUEUED, attempt.round + 1
        self.messages.append((attempt.id, words, by))

    def nudge(self) -> None:
        self.nudges += 1

    async def cancel(self, task_id: str) -> None:
        async with self._world.database.transaction() as tx:
            ending = update(Attempt).where(Attempt.task_id == task_id, Attempt.status.in_(OPEN_ATTEMPTS))
            await tx.session.execute(ending.values(status=AttemptStatus.CANCELLED))

    async def retry(
        self, tx: Transaction, task: Task, *, only: str | None = None, message: dict[str, Any] | None = None
    ) -> list[Attempt]:
        over = (AttemptStatus.FAILED, AttemptStatus.CANCELLED)
        rows = list(await tx.session.scalars(select(Attempt).where(Attempt.task_id == task.id)))
        again = [row for row in rows if row.status in over]
        for row in again:
            row.status = AttemptStatus.QUEUED
        task.error = None
        return again

    async def pick(self, caller: Principal, task_id: str, attempt_id: str) -> Attempt:
        raise NotImplementedError

    async def get_queue_positions(self) -> dict[str, int]:
        async with self._world.database.reading() as session:
            query = select(Attempt.id).where(Attempt.status == AttemptStatus.QUEUED).order_by(Attempt.id)
            return {row: place for place, row in enumerate(await session.scalars(query), 1)}

    async def list_queue(self, caller: Principal) -> list[tuple[Attempt, int, str]]:
        async with self._world.database.reading() as session:
            query = select(Attempt).where(Attempt.status == AttemptStatus.QUEUED).order_by(Attempt.id)
            return [(row, place, "It is about to start.") for place, row in enumerate(await session.scalars(query), 1)]


class StubAgents:
    async def profile(self, owner_id: str, name: str) -> Profile:
        if name not in ("demo", "opencode"):
            raise InvalidInputError(f"There is no agent {name!r}; there are demo and opencode.")
        return None  # type: ignore[return-value] - the board only asks whether it is there


@dataclass
class BoardHarness:
    world: World
    owner: Person
    member: Person
    project: Project
    attempts: IdleAttempts
    tasks: Tasks
    made: list[Task] = field(default_factory=list)

    @property
    def me(self) -> Principal:
        return self.owner.principal

    async def create_task(
        self, title: str = "Fix the login", *, needs: list[Task] | None = None, start: bool = False
    ) -> Task:
        needed = [task.id for task in needs or []]
        return await self.tasks.create(self.me, self.project.id, TaskFields(title=title), needs=needed, start=start)

    async def create_session(self, status: str, *, project_id: str | None = None) -> str:
        """Create a session of the owner's whose sandbox has this status, and return its id."""
        common = {
            "owner_id": self.me.user_id,
            "project_id": project_id or self.project.id,
            "template": "base",
            "created_at": get_time(self.world.clock),
        }
        session_id, sandbox_id = make_ordered_id("ses_"), make_ordered_id("sbx_")
        async with self.world.database.transaction() as tx:
            tx.add(Session(id=session_id, title="x", sandbox_id=sandbox_id, updated_at=common["created_at"], **common))
            await tx.session.flush()
            box = {"session_id": session_id, "idempotency_key": sandbox_id, "status": status, "idle_seconds": 1}
            tx.add(Sandbox(id=sandbox_id, **common, **box))
        return session_id

    async def configure(self, **tasks: Any) -> None:
        settings = ProjectSettings.model_validate({"tasks": tasks})
        self.project = await self.world.projects.update(self.me, self.project.id, settings=settings)

    async def list_titles(self, column: Column) -> list[str]:
        page = await self.tasks.list(self.me, PageRequest(200), project_id=self.project.id, status=column)
        return [task.title for task in page.items]

    async def get_status(self, task: Task) -> Column:
        return Column((await self.tasks.get(self.me, task.id)).status)

    async def list_attempts(self, task: Task) -> list[Attempt]:
        async with self.world.database.reading() as session:
            query = select(Attempt).where(Attempt.task_id == task.id).order_by(Attempt.number)
            return list(await session.scalars(query))

    async def set_status(self, task: Task, attempt: AttemptStatus, status: Column) -> None:
        """Set the status as if the work had reached this point."""
        async with self.world.database.transaction() as tx:
            await tx.session.execute(update(Attempt).where(Attempt.task_id == task.id).values(status=attempt))
            row = await tx.session.get(Task, task.id)
            assert row is not None
            await self.tasks.advance(tx, row, status)

    async def fail_attempts(self, task: Task, reason: str) -> None:
        """Set the status as if all attempts had failed."""
        async with self.world.database.transaction() as tx:
            failed = {"status": AttemptStatus.FAILED, "error": reason}
            await tx.session.execute(update(Attempt).where(Attempt.task_id == task.id).values(**failed))
            row = await tx.session.get(Task, task.id)
            assert row is not None
            row.error = reason
            tx.emit("task.updated", owner_id=row.created_by, project_id=row.project_id, task_id=row.id, error=reason)

    async def wait_until_idle(self) -> None:
        """Wait until nothing is left to start automatically."""
        while len(self.tasks.background):
            assert await self.tasks.background.wait(20)

    async def list_events(self, *kinds: str) -> list[Event]:
        return [event for event in await self.world.list_events() if event.kind in kinds]


@asynccontextmanager
async def open_board_harness(world: World) -> AsyncIterator[BoardHarness]:
    owner, member = await world.create_person("olga"), await world.create_person("mo")
    project = await world.projects.create(owner.principal, "website")
    await world.projects.add_member(owner.principal, project.id, member.principal.user_id)
    attempts = IdleAttempts(world)
    tasks = Tasks(world.database, world.projects, attempts, StubAgents(), world.clock)
    yield BoardHarness(world, owner, member, project, attempts, tasks)
    await tasks.close()


@asynccontextmanager
async def open_board_harness_in(folder: Path) -> AsyncIterator[BoardHarness]:
    async with open_world(folder) as world, open_board_harness(world) as made:
        yield made
