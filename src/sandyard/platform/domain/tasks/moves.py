"""Moves of tasks, each inside a transaction that holds the board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Select, func, literal, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Attempt, Event, Project, Task, TaskNeed, User
from sandyard.platform.db.models.task_details import MessageToAgent
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.service import has_lost_access
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError
from sandyard.platform.domain.tasks.dependencies import list_blockers
from sandyard.platform.domain.tasks.errors import (
    ColumnFullError,
    FeedbackNeededError,
    MoveRefusedError,
    NothingInReviewError,
    TaskBlockedError,
)
from sandyard.platform.domain.tasks.model import OPEN_ATTEMPTS, AttemptStatus, Column
from sandyard.platform.domain.tasks.positions import choose_position, get_index, is_failed

ALLOWED_MOVES: Mapping[Column, tuple[Column, ...]] = {
    Column.BACKLOG: (Column.IN_PROGRESS, Column.DONE, Column.CANCELLED),
    Column.IN_PROGRESS: (Column.BACKLOG, Column.CANCELLED),
    Column.IN_REVIEW: (Column.IN_PROGRESS, Column.DONE, Column.CANCELLED),
    Column.DONE: (Column.BACKLOG,),
    Column.CANCELLED: (Column.BACKLOG,),
}
"""Moves that people may make, by column."""
FINISHED_COLUMNS = (Column.DONE, Column.CANCELLED)
STOPPED_COLUMNS = (Column.BACKLOG, Column.CANCELLED)
"""Columns in which no attempt works on a task."""
ACTIVE_ATTEMPTS = (AttemptStatus.QUEUED, AttemptStatus.RUNNING)
log = get_logger(__name__)
_STARTS_AUTOMATICALLY = Task.source["startsFor"].as_string().is_not(None)
_MAKES_ROOM = frozenset(
    ("task.moved", "task.updated", "task.deleted", "project.updated", "attempt.cancelled", "attempt.failed")
)


class BoardAttempts(Protocol):
    """Operations on attempts that the board needs."""

    async def draft(self, tx: Transaction, task: Task, owner_id: str) -> list[Attempt]: ...
    async def send_back(self, tx: Transaction, task: Task, attempt: Attempt, words: str, by: str) -> None: ...
    def nudge(self) -> None: ...
    async def cancel(self, task_id: str) -> None: ...
    async def retry(
        self, tx: Transaction, task: Task, *, only: str | None = None, message: MessageToAgent | None = None
    ) -> list[Attempt]: ...
    async def get_queue_positions(self) -> dict[str, int]: ...


class Agents(Protocol):
    async def profile(self, owner_id: str, name: str) -> Profile: ...


async def lock_board(tx: Transaction, project_id: str) -> Project:
    """Return the project and lock its board until the end of the transaction. Raises NotFoundError."""
    query = select(Project).where(Project.id == project_id).with_for_update(key_share=True)
    project = await tx.session.scalar(query)
    if project is None:
        raise NotFoundError(f"There is no project {project_id[:60]}.")
    return project


def make_event_ids(task: Task, project: Project) -> dict[str, Any]:
    """Return the ids of a task's events, which are visible to everyone who sees the project."""
    return {"owner_id": project.owner_id, "project_id": project.id, "task_id": task.id}


def set_automatic_start(task: Task, user_id: str | None, *, error: str | None = None) -> None:
    """Set the user for whom a task in the backlog starts automatically. None means that it does not; `error` is why not, if somebody
    had asked for it."""
    source = task.source.copy()
    source.pop("startsFor", None)
    source.pop("startError", None)
    if user_id is not None:
        source["startsFor"] = user_id
    if error is not None:
        source["startError"] = error
    task.source = source


def select_users_it_runs_for(task: Task) -> Select[User]:
    """Return the query for the users on whose behalf the task starts automatically, or its attempts work or can be continued.

    A task in the backlog or in done starts over with new attempts, on behalf of whoever starts it. Users who lost access to the project
    are left out: nothing runs for them any more.
    """
    closed = (AttemptStatus.ARCHIVED, AttemptStatus.MERGED)
    continuing = (
        Attempt.status.in_(ACTIVE_ATTEMPTS)
        if task.status in {Column.BACKLOG, Column.DONE}
        else Attempt.status.not_in(closed)
    )
    owners = select(Attempt.owner_id).where(Attempt.task_id == task.id, continuing)
    has_access = not_(has_lost_access(User.id, literal(task.project_id)))
    return select(User).where(or_(User.id.in_(owners), User.id == task.source.get("startsFor")), has_access)


async def require_stopped(tx: Transaction, task: Task) -> None:
    """Raise ConflictError while an attempt is working on the task."""
    working = select(Attempt.id).where(Attempt.task_id == task.id, Attempt.status.in_(ACTIVE_ATTEMPTS))
    if await tx.session.scalar(working.limit(1)) is not None:
        raise ConflictError(f"Task {task.id} is still being stopped. Try again in a moment.")


def require_unarchived(project: Project) -> None:
    """Raise ConflictError for an archived project."""
    if project.archived_at is not None:
        raise ConflictError(f"Project {project.id} is archived, so its tasks cannot be started.")


async def put_in_column(  # noqa: PLR0917 - what a move consists of
    tx: Transaction,
    clock: Clock,
    project: Project,
    task: Task,
    status: Column,
    position: int | None = None,
    **data: Any,
) -> None:
    """Put a task into a column regardless of limits, and emit the event that moves its card."""
    previous, now = task.status, get_time(clock)
    number = await choose_position(tx.session, task, status, position)
    task.status, task.position, task.updated_at = status, number, now
    set_automatic_start(task, None)
    if status in FINISHED_COLUMNS:
        task.finished_at = now
    elif status == Column.BACKLOG:
        task.started_at = task.finished_at = task.error = None
    elif status == Column.IN_PROGRESS:
        task.started_at, task.finished_at, task.error = task.started_at or now, None, None
    await tx.session.flush()
    index = await get_index(tx.session, task)
    tx.emit(
        "task.moved",
        **make_event_ids(task, project),
        title=task.title,
        **{"from": previous},
        to=status,
        position=index,
        **data,
    )


async def advance(tx: Transaction, clock: Clock, task: Task, status: Column, **data: Any) -> None:
    """Move a task on behalf of the platform, in the transaction of the underlying change, regardless of limits.

    `data` is added to the event. Does nothing if the task is already in the column.
    """
    project = await tx.session.get(Project, task.project_id)
    if project is not None and task.status != status:
        await put_in_column(tx, clock, project, task, status, **data)


class Moves:
    def __init__(self, attempts: BoardAttempts, clock: Clock) -> None:
        self._attempts = attempts
        self._clock = clock

    async def reorder(self, tx: Transaction, project: Project, task: Task, position: int | None) -> None:
        if position is not None:
            task.position = await choose_position(tx.session, task, Column(task.status), position)
            await tx.session.flush()
            index = await get_index(tx.session, task)
            way = {"from": task.status, "to": task.status}
            tx.emit("task.moved", **make_event_ids(task, project), title=task.title, **way, position=index)

    async def move(
        self,
        tx: Transaction,
        project: Project,
        task: Task,
        status: Column,
        *,
        by: str,
        position: int | None,
        feedback: str | None,
    ) -> None:
        """Move a task on behalf of a person."""
        previous = Column(task.status)
        if status not in ALLOWED_MOVES[previous]:
            raise MoveRefusedError(_explain_refusal(previous, status))
        if status == Column.IN_PROGRESS and previous == Column.BACKLOG:
            await self.start(tx, project, task, by, position)
            return
        if status == Column.IN_PROGRESS and not (feedback or "").strip():
            raise FeedbackNeededError
        if status == Column.IN_PROGRESS:
            require_unarchived(project)
        await self.require_room(tx, project, status)
        if status == Column.IN_PROGRESS:
            assert feedback is not None
            attempt = await _get_reviewed(tx, task)
            await put_in_column(tx, self._clock, project, task, status, position)
            await self._attempts.send_back(tx, task, attempt, feedback.strip(), by)
        else:
            await put_in_column(tx, self._clock, project, task, status, position)

    async def start(self, tx: Transaction, project: Project, task: Task, by: str, position: int | None = None) -> None:
        """Start a task with new attempts. Raises like `require_startable`, before anything is changed."""
        await self.require_startable(tx, project, task)
        await put_in_column(tx, self._clock, project, task, Column.IN_PROGRESS, position)
        await _archive_earlier(tx, task, get_time(self._clock))
        await self._attempts.draft(tx, task, by)

    async def require_startable(self, tx: Transaction, project: Project, task: Task) -> None:
        """Raise TaskBlockedError or ColumnFullError, or ConflictError if the project is archived or the task is still being stopped."""
        require_unarchived(project)
        await require_stopped(tx, task)
        if waits_for := await list_blockers(tx.session, task.id):
            raise TaskBlockedError(waits_for)
        await self.require_room(tx, project, Column.IN_PROGRESS)

    async def start_when_ready(self, tx: Transaction, project: Project, task: Task, by: str) -> None:
        """Start a task now, or automatically later; then an event says why it did not start now.

        It stays in the backlog if the user has no access to the project.
        """
        try:
            await _require_access(tx.session, project, by)
            await self.start(tx, project, task, by)
        except OwnerWithoutAccessError as reason:
            _refuse_automatic_start(tx, project, task, reason)
        except (TaskBlockedError, ColumnFullError) as reason:
            set_automatic_start(task, by)
            tx.emit(
                "task.waiting",
                **make_event_ids(task, project),
                title=task.title,
                code=reason.code,
                reason=reason.message,
            )

    async def require_room(self, tx: Transaction, project: Project, column: Column) -> None:
        """Raise ColumnFullError if the column is full. Failed tasks do not count, because nobody works on them."""
        limits = ProjectSettings.from_project(project).tasks.wip_limits
        limit = next((most for name, most in limits.items() if name == column), None)
        if limit is not None:
            counted = select(func.count()).where(Task.project_id == project.id, Task.status == column, ~is_failed())
            count = await tx.session.scalar(counted) or 0
            if count >= limit:
                raise ColumnFullError(column, limit, count)


async def _get_reviewed(tx: Transaction, task: Task) -> Attempt:
    """Return the attempt that was picked, or the only one to review.

    Raises NothingInReviewError, or ConflictError if there are several.
    """
    query = select(Attempt).where(Attempt.task_id == task.id).order_by(Attempt.number)
    rows = list(await tx.session.scalars(query.with_for_update()))
    for status in (AttemptStatus.IN_REVIEW, AttemptStatus.READY):
        found = [row for row in rows if row.status == status]
        if len(found) > 1:
            raise ConflictError("Several attempts at this task are ready. Pick one to send the feedback to.")
        if found:
            return found[0]
    raise NothingInReviewError


async def _archive_earlier(tx: Transaction, task: Task, now: datetime) -> None:
    """Archive attempts of an earlier start, except merged ones: they get no more retries or feedback.

    They may not know yet that the task was done meanwhile.
    """
    earlier = Attempt.status.not_in((*ACTIVE_ATTEMPTS, AttemptStatus.MERGED, AttemptStatus.ARCHIVED))
    for row in list(await tx.session.scalars(select(Attempt).where(Attempt.task_id == task.id, earlier))):
        row.status, row.updated_at = AttemptStatus.ARCHIVED, now
        where = {"project_id": row.project_id, "task_id": row.task_id, "session_id": row.session_id}
        tx.emit("attempt.archived", owner_id=row.owner_id, **where, attemptId=row.id, number=row.number)


def _explain_refusal(previous: Column, status: Column) -> str:
    if status == Column.IN_REVIEW:
        return "A task moves to review automatically when the work on it is done."
    ways = " or ".join(ALLOWED_MOVES[previous])
    return f"A task can move from {previous} to {ways}, not to {status}."


class WaitingTaskStarter:
    """Starts waiting tasks when they can start: after every change on a board in this process, and at startup."""

    def __init__(self, database: Database, moves: Moves, tasks: TaskSet, attempts: BoardAttempts) -> None:
        self._database = database
        self._moves = moves
        self._tasks = tasks
        self._attempts = attempts
        self._scheduled: set[str] = set()
        database.listen(self._on_events)

    async def recover(self) -> None:
        async with self._database.reading() as session:
            waiting = select(Task.project_id).where(Task.status == Column.BACKLOG, _STARTS_AUTOMATICALLY).distinct()
            projects = list(await session.scalars(waiting))
            left = (
                select(Attempt.task_id)
                .join(Task)
                .where(Task.status.in_(STOPPED_COLUMNS), Attempt.status.in_(OPEN_ATTEMPTS))
            )
            stopped = list(await session.scalars(left.distinct()))
        for task_id in stopped:
            self._tasks.spawn(self._attempts.cancel(task_id))
        for project_id in projects:
            self._schedule_start(project_id)

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.kind == "task.moved" and event.data["to"] == Column.IN_PROGRESS:
                self._attempts.nudge()
            elif event.kind in _MAKES_ROOM and event.project_id is not None:
                self._schedule_start(event.project_id)

    def _schedule_start(self, project_id: str) -> None:
        if project_id not in self._scheduled:
            self._scheduled.add(project_id)
            # there is no second notification that something can start
            start = retry_while_database_unavailable(
                lambda: self.start_ready_tasks(project_id), "release", project=project_id
            )
            self._tasks.spawn(start)

    async def start_ready_tasks(self, project_id: str) -> None:
        """Start waiting tasks that can start: higher priorities first, then in board order.

        Those whose user has lost access to the project are left in the backlog.
        """
        self._scheduled.discard(project_id)  # later changes schedule another check
        needed = select(TaskNeed.task_id).join(Task, Task.id == TaskNeed.needs_id).where(Task.status != Column.DONE)
        query = select(Task.id).where(
            Task.project_id == project_id, Task.status == Column.BACKLOG, _STARTS_AUTOMATICALLY
        )
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
            project = await lock_board(tx, project_id)
            task = await tx.session.scalar(select(Task).where(Task.id == task_id).with_for_update())
            if task is not None and task.status == Column.BACKLOG and "startsFor" in task.source:
                user_id = task.source["startsFor"]
                try:
                    await _require_access(tx.session, project, user_id)
                except OwnerWithoutAccessError as reason:
                    _refuse_automatic_start(tx, project, task, reason)
                else:
                    await self._moves.start(tx, project, task, user_id)


async def _require_access(session: AsyncSession, project: Project, user_id: str) -> None:
    """Raise OwnerWithoutAccessError if tasks of the project may not start on behalf of the user."""
    user = await session.get(User, user_id)
    if user is None or await session.scalar(select(has_lost_access(literal(user_id), literal(project.id)))):
        name = "The user" if user is None else user.name
        raise OwnerWithoutAccessError(
            f"{name}, for whom the task was to start automatically, was disabled or no longer has access to the project. Start the task to "
            "run it on your behalf."
        )


def _refuse_automatic_start(tx: Transaction, project: Project, task: Task, reason: OwnerWithoutAccessError) -> None:
    """Leave the task in the backlog until somebody starts it, and emit an event that says why."""
    set_automatic_start(task, None, error=reason.message)
    tx.emit(
        "task.not_started",
        **make_event_ids(task, project),
        title=task.title,
        code=reason.code,
        reason=reason.message,
    )
