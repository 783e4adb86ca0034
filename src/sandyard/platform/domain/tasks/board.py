"""The board of a project: tasks that its members see, moved by people and by the platform.

A person's move is rejected if the column is full, if the task needs tasks that are not done, or if the move is not allowed. The platform's
own moves (`advance`) follow work that was already done, so they are never rejected: the review column can exceed its limit.

A task that is asked to start but cannot yet start stays in the backlog. It starts automatically as soon as all its needs are done and there
is space. `source.startsFor` is the user it starts for. If that user has lost access to the project by then, it stays in the backlog until
somebody starts it, and `source.startError` says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Attempt, Project, Task, User
from sandyard.platform.db.models.task_details import MessageToAgent, TaskSource
from sandyard.platform.domain.agents.runner.turns import write_allowance
from sandyard.platform.domain.paging import Listing, PageRequest, read_rows
from sandyard.platform.domain.projects.service import Projects, has_lost_access, is_visible_to
from sandyard.platform.domain.sandboxes.repository import is_session_visible_to
from sandyard.platform.domain.tasks import moves
from sandyard.platform.domain.tasks.cards import Cards
from sandyard.platform.domain.tasks.columns import BoardFilter, BoardPage, match_words, read_board
from sandyard.platform.domain.tasks.dependencies import replace_needs
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.moves import Agents, BoardAttempts, WaitingTaskStarter, lock_board
from sandyard.platform.domain.tasks.positions import choose_position, get_index, is_failed
from sandyard.platform.domain.tasks.source_sessions import check_source_session
from sandyard.platform.domain.users.model import Principal

_ACTIVE_COLUMNS = (Column.IN_PROGRESS, Column.IN_REVIEW)
_column_order: ColumnElement[int] = case(
    {column.value: number for number, column in enumerate(Column)}, value=Task.status, else_=len(Column)
)
_FREE_FIELDS = frozenset(("priority",))
"""Fields of a task that say nothing about the work itself, so every member may change them at any time."""
_CURSOR = re.compile(r"([0-9])_(-?[0-9]{1,10})_([A-Za-z0-9_]{1,40})")


class Tasks:
    """Operations on tasks. Raises NotFoundError for tasks the caller may not see."""

    def __init__(
        self, database: Database, projects: Projects, attempts: BoardAttempts, agents: Agents | None, clock: Clock
    ) -> None:
        self._database = database
        self._projects = projects
        self._attempts = attempts
        self._agents = agents
        self._clock = clock
        self.background = TaskSet("tasks")
        self._moves = moves.Moves(attempts, clock)
        self.cards = Cards(database, attempts, clock)
        self._waiting_tasks = WaitingTaskStarter(database, self._moves, self.background, attempts)

    async def recover(self) -> None:
        """Start tasks that became ready, and stop tasks that were to be stopped, while the platform was down."""
        await self._waiting_tasks.recover()

    async def close(self) -> None:
        await self.background.cancel()

    # creating ----------------------------------------------------------------------------------------------------------

    async def create(
        self,
        caller: Principal,
        project_id: str,
        fields: TaskFields,
        *,
        from_session_id: str | None = None,
        needs: Sequence[str] = (),
        start: bool = False,
    ) -> Task:
        """Create a task. With `start`, it starts immediately or as soon as all its needs are done and there is space.

        With `from_session_id`, its attempts start from copies of this session's sandbox. Raises ColumnFullError if the backlog is
        full, and like `check_source_session`.
        """
        await self._projects.get(caller, project_id)
        await self.check_agents(caller.user_id, fields)
        async with self._database.transaction() as tx:
            project = await lock_board(tx, project_id)
            await self._moves.require_room(tx, project, Column.BACKLOG)
            if from_session_id is not None:
                await check_source_session(tx.session, caller, project_id, from_session_id, fields.base_branch)
            return await self.add(
                tx,
                project,
                fields,
                created_by=caller.user_id,
                source={"kind": "person"},
                from_session_id=from_session_id,
                needs=needs,
                start_for=caller.user_id if start else None,
            )

    async def add(
        self,
        tx: Transaction,
        project: Project,
        fields: TaskFields,
        *,
        created_by: str,
        source: TaskSource,
        source_key: str | None = None,
        from_session_id: str | None = None,
        needs: Sequence[str] = (),
        start_for: str | None = None,
    ) -> Task:
        """Add a task, in a transaction that holds the board (`lock_board`). The same `source_key` returns the existing task.

        Tasks that are created automatically are added even if the backlog is full.
        """
        if source_key is not None:
            known = await tx.session.scalar(select(Task).where(Task.source_key == source_key))
            if known is not None:
                return known
        if project.archived_at is not None:
            raise ConflictError(f"Project {project.id} is archived, so no tasks can be added.")
        now = get_time(self._clock)
        task = Task(
            id=make_ordered_id("tsk_"),
            project_id=project.id,
            created_by=created_by,
            status=Column.BACKLOG,
            source=source,
            source_key=source_key,
            from_session_id=from_session_id,
            created_at=now,
            updated_at=now,
            **fields.to_columns(),
        )
        task.position = await choose_position(tx.session, task, Column.BACKLOG)
        tx.add(task)
        await tx.session.flush()
        if needs:
            await replace_needs(tx.session, task, needs)
        tx.emit(
            "task.created",
            **moves.make_event_ids(task, project),
            title=task.title,
            to=task.status,
            position=await get_index(tx.session, task),
            priority=task.priority,
            source=source.get("kind"),
        )
        if start_for is not None:
            await self._moves.start_when_ready(tx, project, task, start_for)
        return task

    async def check_agents(self, owner_id: str, fields: TaskFields) -> None:
        """Check that the named agents exist. Raises InvalidInputError, which lists the available agents."""
        if self._agents is not None:
            for name in sorted(fields.agents):
                await self._agents.profile(owner_id, name)

    # reading -----------------------------------------------------------------------------------------------------------

    async def get(self, caller: Principal, task_id: str) -> Task:
        async with self._database.reading() as session:
            found = await session.scalar(select(Task).where(Task.id == task_id, is_task_visible_to(caller)))
        if found is None:
            raise _make_not_found_error(task_id)
        return found

    async def list(
        self,
        caller: Principal,
        page: PageRequest,
        *,
        project_id: str | None = None,
        status: Column | None = None,
        q: str | None = None,
    ) -> Listing[Task]:
        """List tasks by column, in board order. `q`: see `match_words`."""
        query = select(Task).where(is_task_visible_to(caller))
        if project_id is not None:
            query = query.where(Task.project_id == project_id)
        if status is not None:
            query = query.where(Task.status == status)
        if q:
            query = query.where(*match_words(q))
        async with self._database.searching(caller.user_id) if q else self._database.reading() as session:
            found = await read_rows(session, _start_after_cursor(query, page.cursor), Task.id, page.limit)
        return Listing(found.items, _make_cursor(found.items[-1]) if found.more and found.items else None)

    async def get_board(
        self,
        caller: Principal,
        wanted: BoardFilter,
        *,
        project_id: str | None = None,
        only: Column | None = None,
        offset: int = 0,
        limit: int,
    ) -> BoardPage:
        """Return the number of tasks in each column, and `limit` tasks of each column, or of one column, from `offset` on."""
        seen = is_task_visible_to(caller)
        if project_id is not None:
            seen = and_(seen, Task.project_id == project_id)
        asks = is_session_visible_to(caller)
        return await read_board(
            self._database,
            self.cards,
            seen,
            asks,
            wanted,
            user_id=caller.user_id,
            only=only,
            offset=offset,
            limit=limit,
        )

    async def count_by_column(self, caller: Principal) -> dict[str, tuple[dict[Column, int], int]]:
        """Return, by project, the number of tasks in each column and the number of failed tasks in progress."""
        failed = func.sum(case((is_failed(), 1), else_=0))
        query = select(Task.project_id, Task.status, func.count(), failed).where(is_task_visible_to(caller))
        async with self._database.reading() as session:
            rows = (await session.execute(query.group_by(Task.project_id, Task.status))).all()
        found: dict[str, tuple[dict[Column, int], int]] = {}
        for project_id, status, count, failures in rows:
            columns, before = found.get(project_id, ({}, 0))
            found[project_id] = {**columns, Column(status): count}, before + failures
        return found

    # changing ----------------------------------------------------------------------------------------------------------

    async def update(
        self,
        caller: Principal,
        task_id: str,
        changes: dict[str, Any],
        *,
        needs: Sequence[str] | None = None,
        start: bool | None = None,
    ) -> Task:
        """Change a task. `changes` are fields of TaskFields by name, and `from_session_id`. Raises like `create`.

        Attempts that have started are not affected until they are retried or sent back. `start`: whether a task in the backlog starts as
        soon as possible, on behalf of the caller. Raises ForbiddenError for changes of what runs on behalf of somebody else, except by the
        project's owner and administrators.
        """
        before = await self.get(caller, task_id)
        field_changes = {name: value for name, value in changes.items() if name != "from_session_id"}
        fields = TaskFields.model_validate({**_get_fields(before), **field_changes})
        if changes.keys() & {"agent", "attempts"}:
            await self.check_agents(caller.user_id, fields)
        async with self._database.transaction() as tx:
            project, task = await self._lock_task(tx, caller, task_id)
            if start is not None and task.status == Column.BACKLOG:
                moves.set_automatic_start(task, None)
            if changes.keys() - _FREE_FIELDS and not (caller.is_admin or caller.user_id == project.owner_id):
                await _require_own_work(tx.session, caller, task)
            for name, value in TaskFields.model_validate({**_get_fields(task), **field_changes}).to_columns().items():
                setattr(task, name, value)
            task.from_session_id = changes.get("from_session_id", task.from_session_id)
            if task.from_session_id is not None and changes.keys() & {"from_session_id", "base_branch"}:
                await check_source_session(tx.session, caller, project.id, task.from_session_id, task.base_branch)
            if needs is not None:
                await replace_needs(tx.session, task, needs)
            task.updated_at = get_time(self._clock)
            changed = sorted([*changes, *(["needs"] if needs is not None else [])])
            tx.emit("task.updated", **moves.make_event_ids(task, project), title=task.title, changed=changed)
            if start and task.status == Column.BACKLOG:
                await self._moves.start_when_ready(tx, project, task, caller.user_id)
        return task

    async def delete(self, caller: Principal, task_id: str) -> None:
        """Delete a task. Its sessions are kept. Raises ConflictError while it is being stopped.

        Allowed for its creator, the project's owner and administrators.
        """
        task = await self.get(caller, task_id)
        project = await self._projects.get(caller, task.project_id)
        if not (caller.is_admin or caller.user_id in (task.created_by, project.owner_id)):
            raise ForbiddenError("Only the task's creator, the project's owner or an administrator may delete it.")
        if task.status in _ACTIVE_COLUMNS:
            await self.move(caller, task_id, Column.CANCELLED)
        async with self._database.transaction() as tx:
            project, task = await self._lock_task(tx, caller, task_id)
            await moves.require_stopped(tx, task)
            await tx.session.delete(task)
            tx.emit("task.deleted", **moves.make_event_ids(task, project), title=task.title, **{"from": task.status})

    # moving ------------------------------------------------------------------------------------------------------------

    async def move(
        self,
        caller: Principal,
        task_id: str,
        status: Column,
        *,
        position: int | None = None,
        feedback: str | None = None,
    ) -> Task:
        """Move a task to `position` in the column, or to where new tasks go. Within its own column, only the position changes.

        Moving to in progress starts the task and raises TaskBlockedError or ColumnFullError. Moving from review to in progress raises
        FeedbackNeededError without feedback. Moving out of in progress stops its attempts. Raises MoveRefusedError for moves that are not
        allowed.
        """
        async with self._database.transaction() as tx:
            project, task = await self._lock_task(tx, caller, task_id)
            before = Column(task.status)
            if before == status:
                await self._moves.reorder(tx, project, task, position)
            else:
                await self._moves.move(
                    tx, project, task, status, by=caller.user_id, position=position, feedback=feedback
                )
        if before in _ACTIVE_COLUMNS and status in moves.STOPPED_COLUMNS:
            await self.background.finish(self._attempts.cancel(task_id))
        return task

    async def advance(self, tx: Transaction, task: Task, status: Column, **data: Any) -> None:
        """Move a task on behalf of the platform, in the transaction of the underlying change, regardless of limits.

        `data` is added to the event. Does nothing if the task is already in the column.
        """
        await moves.advance(tx, self._clock, task, status, **data)

    async def stop(self, caller: Principal, task_id: str) -> Task:
        """Cancel the task and stop its attempts. Idempotent."""
        task = await self.get(caller, task_id)
        if task.status != Column.CANCELLED:
            return await self.move(caller, task_id, Column.CANCELLED)
        await self.background.finish(self._attempts.cancel(task_id))  # complete an earlier stop that was interrupted
        return task

    async def retry(
        self, caller: Principal, task_id: str, *, message: str | None = None, attempt_id: str | None = None
    ) -> Task:
        """Retry a task. Raises like `move`.

        Attempts that failed or were stopped continue from their existing work; a task that is done starts over; one that was never started
        starts. `message` is sent to the agents; `attempt_id` selects one attempt. Raises ConflictError if no attempt can continue with them.
        If all attempts belong to a user who was disabled or left the project, the task starts over for the caller.
        """
        message_to_agent: MessageToAgent | None = (
            {"words": message, "by": caller.name, "automatic": False} if message is not None else None
        )
        async with self._database.transaction() as tx:
            project, task = await self._lock_task(tx, caller, task_id)
            over = Attempt.status.in_((AttemptStatus.FAILED, AttemptStatus.CANCELLED))
            left = await tx.session.scalar(select(Attempt.id).where(Attempt.task_id == task.id, over).limit(1))
            abandoned = left is not None and await _is_abandoned(tx.session, task)
            if abandoned and (message is not None or attempt_id is not None):
                raise ConflictError(
                    "The attempts cannot be continued: their owner was disabled or no longer has access to the project. "
                    "Retry the task without a message to start over."
                )
            continues = task.status in _ACTIVE_COLUMNS or (task.status == Column.CANCELLED and left is not None)
            if continues and not abandoned:
                await self._continue_attempts(tx, project, task, attempt_id, message_to_agent)
            else:
                if message is not None or attempt_id is not None:
                    raise ConflictError(
                        "No attempt at this task has failed or was stopped, so there is nothing to continue."
                    )
                if task.status != Column.BACKLOG:
                    await moves.put_in_column(tx, self._clock, project, task, Column.BACKLOG)
                await self._moves.start(tx, project, task, caller.user_id)
        self._attempts.nudge()
        return task

    async def resume_allowed(self, caller: Principal, session_id: str, titles: Sequence[str]) -> bool:
        """Continue the session's failed attempt, because its agent is now allowed to do this. Raises like `retry`.

        Does nothing for a task that is not in progress or in review. Returns False if the session has no failed or stopped attempt.
        """
        query = select(Attempt).where(
            Attempt.session_id == session_id, Attempt.status.in_((AttemptStatus.FAILED, AttemptStatus.CANCELLED))
        )
        async with self._database.transaction() as tx:
            attempt = await tx.session.scalar(query)
            if attempt is None:
                return False
            project, task = await self._lock_task(tx, caller, attempt.task_id)
            await tx.session.refresh(attempt)  # it may have been retried before the board was locked
            if task.status in _ACTIVE_COLUMNS and attempt.status == AttemptStatus.FAILED:
                message: MessageToAgent = {
                    "words": write_allowance(titles),
                    "by": caller.name,
                    "automatic": False,
                    "resume": True,
                }
                await self._continue_attempts(tx, project, task, attempt.id, message)
        self._attempts.nudge()
        return True

    async def _continue_attempts(
        self, tx: Transaction, project: Project, task: Task, attempt_id: str | None, message: MessageToAgent | None
    ) -> None:
        """Continue attempts that failed or were stopped. Raises like `move`."""
        moves.require_unarchived(project)
        if task.status == Column.CANCELLED:
            await self._moves.require_startable(tx, project, task)
        elif task.status == Column.IN_PROGRESS and task.error is not None:
            await self._moves.require_room(tx, project, Column.IN_PROGRESS)
        await self._attempts.retry(tx, task, only=attempt_id, message=message)
        await self.advance(tx, task, Column.IN_PROGRESS)

    async def _lock_task(self, tx: Transaction, caller: Principal, task_id: str) -> tuple[Project, Task]:
        """Lock the task's board until the end of the transaction, and return the project and the task."""
        seen = select(Task.project_id).where(Task.id == task_id, is_task_visible_to(caller))
        project_id = await tx.session.scalar(seen)
        if project_id is None:
            raise _make_not_found_error(task_id)
        project = await lock_board(tx, project_id)
        task = await tx.session.scalar(select(Task).where(Task.id == task_id).with_for_update())
        if task is None:
            raise _make_not_found_error(task_id)
        return project, task


def is_task_visible_to(caller: Principal) -> ColumnElement[bool]:
    """Return the condition for tasks the user may see: those of their projects."""
    return Task.project_id.in_(select(Project.id).where(is_visible_to(caller)))


def _get_fields(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in TaskFields.model_fields}


def _start_after_cursor(query: Select[Task], cursor: str | None) -> Select[Task]:
    query = query.order_by(_column_order, Task.position, Task.id)
    if cursor is None:
        return query
    match = _CURSOR.fullmatch(cursor)
    if match is None or abs(int(match[2])) >= 1 << 31:
        raise InvalidInputError("cursor is invalid: use nextCursor of the previous page.")
    column, position, task_id = int(match[1]), int(match[2]), match[3]
    later = or_(Task.position > position, and_(Task.position == position, Task.id > task_id))
    return query.where(or_(_column_order > column, and_(_column_order == column, later)))


def _make_cursor(task: Task) -> str:
    return f"{list(Column).index(Column(task.status))}_{task.position}_{task.id}"


async def _require_own_work(session: AsyncSession, caller: Principal, task: Task) -> None:
    """Raise ForbiddenError if the task starts or can continue on behalf of another user than the caller."""
    users = await session.scalars(moves.select_users_it_runs_for(task).where(User.id != caller.user_id))
    if names := sorted(user.name for user in users):
        raise ForbiddenError(
            f"This task runs on behalf of {' and '.join(names)}, so only they, the project's owner or an administrator may change what it "
            "does. You may move it to the backlog without automatic start, change it there, and start it on your own behalf."
        )


async def _is_abandoned(session: AsyncSession, task: Task) -> bool:
    """Return whether every attempt that is not closed has ended and belongs to a user who lost access."""
    over = Attempt.status.in_((AttemptStatus.FAILED, AttemptStatus.CANCELLED))
    closed = Attempt.status.in_((AttemptStatus.ARCHIVED, AttemptStatus.MERGED))
    lost = has_lost_access(Attempt.owner_id, Attempt.project_id)
    usable = select(Attempt.id).where(Attempt.task_id == task.id, not_(closed), not_(and_(over, lost)))
    return await session.scalar(usable.limit(1)) is None


def _make_not_found_error(task_id: str) -> NotFoundError:
    return NotFoundError(f"There is no task {task_id[:60]!r}.")
