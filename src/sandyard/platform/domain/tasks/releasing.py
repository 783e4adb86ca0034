"""Start tasks that had to wait, as soon as possible."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, Event, Project, ProjectMember, Task, TaskNeed, User
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.tasks.errors import ColumnFullError
from sandyard.platform.domain.tasks.model import OPEN_ATTEMPTS, Column
from sandyard.platform.domain.tasks.moving import STOPS, Attempts, Moves, held

log = get_logger(__name__)
_WAITS = Task.source["startsFor"].as_string().is_not(None)
_MAKES_ROOM = frozenset(
    ("task.moved", "task.updated", "task.deleted", "project.updated", "attempt.cancelled", "attempt.failed")
)


class Releases:
    """Checks after every change on a board in this process, and at startup. Nothing has to call it."""

    def __init__(self, database: Database, moves: Moves, tasks: TaskSet, attempts: Attempts) -> None:
        self._database = database
        self._moves = moves
        self._tasks = tasks
        self._attempts = attempts
        self._due: set[str] = set()
        database.listen(self._told)

    async def recover(self) -> None:
        async with self._database.reading() as session:
            waiting = select(Task.project_id).where(Task.status == Column.BACKLOG, _WAITS).distinct()
            projects = list(await session.scalars(waiting))
            left = select(Attempt.task_id).join(Task).where(Task.status.in_(STOPS), Attempt.status.in_(OPEN_ATTEMPTS))
            stopped = list(await session.scalars(left.distinct()))
        for task_id in stopped:
            self._tasks.spawn(self._attempts.cancel(task_id))
        for project_id in projects:
            self._soon(project_id)

    def _told(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "task.moved" and event.data["to"] == Column.IN_PROGRESS:
                self._attempts.nudge()
            elif event.kind in _MAKES_ROOM and event.project_id is not None:
                self._soon(event.project_id)

    def _soon(self, project_id: str) -> None:
        if project_id not in self._due:
            self._due.add(project_id)
            # there is no second notification that something can start
            release = retry_while_database_unavailable(lambda: self.release(project_id), "release", project=project_id)
            self._tasks.spawn(release)

    async def release(self, project_id: str) -> None:
        """Start waiting tasks that can start: higher priorities first, then in board order."""
        self._due.discard(project_id)  # later changes schedule another check
        needed = select(TaskNeed.task_id).join(Task, Task.id == TaskNeed.needs_id).where(Task.status != Column.DONE)
        query = select(Task.id).where(Task.project_id == project_id, Task.status == Column.BACKLOG, _WAITS)
        query = query.where(Task.id.not_in(needed)).order_by(Task.priority.desc(), Task.position, Task.id)
        async with self._database.reading() as session:
            ready = list(await session.scalars(query))
        for task_id in ready:
            try:
                await self._start(project_id, task_id)
            except (ColumnFullError, NotFoundError):
                return
            except ConflictError as error:
                log.info("task_not_started", task=task_id, reason=error.message)

    async def _start(self, project_id: str, task_id: str) -> None:
        async with self._database.transaction() as tx:
            project = await held(tx, project_id)
            task = await tx.session.scalar(select(Task).where(Task.id == task_id).with_for_update())
            if task is not None and task.status == Column.BACKLOG and "startsFor" in task.source:
                owner = await _still_here(tx.session, project, task.source["startsFor"])
                await self._moves.start(tx, project, task, owner)


async def _still_here(session: AsyncSession, project: Project, user_id: str) -> str:
    """Return the user who asked for the start, or the project's owner if that user was disabled."""
    user = await session.get(User, user_id)
    if user is None or user.disabled_at is not None:
        return project.owner_id
    if user.role == "admin" or await session.get(ProjectMember, (project.id, user_id)) is not None:
        return user_id
    return project.owner_id
