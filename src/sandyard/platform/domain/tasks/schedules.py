"""Schedules: tasks created repeatedly at cron times.

Each time creates one task, even with several platforms and crashes, because advancing `next_at` and creating the task are one transaction.
Times missed while no platform was running, or because there was too much to do, are made up for by a single task. The event of its run
says how many there were (`missed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import Field, ValidationError
from sqlalchemy import case, func, select, update

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.times import rfc3339
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Event, Project, Schedule, Task, User
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects.service import Projects, is_visible_to
from sandyard.platform.domain.tasks.board import Tasks
from sandyard.platform.domain.tasks.cron import get_next_time
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.moves import lock_board
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
CHECK_INTERVAL_S = 5.0
MAX_RUNS, MAX_RUNS_PER_OWNER = 100, 10
"""How many schedules one tick runs. The next one follows at once if some are left, and begins again with each owner's first."""
MAX_MISSED_COUNTED = 100
RETRY_AFTER = timedelta(hours=1)
"""When a schedule whose next time cannot be computed is checked again, because its time zone is missing on this machine."""
_OUTCOMES = ("schedule.fired", "schedule.failed")


class ScheduledTask(TaskFields):
    """The task that each run creates."""

    start: bool = Field(
        default=True,
        description="True: start immediately or when a slot is free. False: leave the task in the backlog.",
    )

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)

    def get_task_fields(self) -> TaskFields:
        return TaskFields(**{name: getattr(self, name) for name in TaskFields.model_fields})


class Schedules:
    """Operations on schedules. Raises NotFoundError for schedules the caller may not see.

    Members of a project see its schedules and create new ones. Its tasks run on behalf of its creator, so nobody else may change it. The
    project's owner and administrators may disable and delete it.
    """

    def __init__(
        self, database: Database, projects: Projects, tasks: Tasks, settings: PlatformSettings, clock: Clock
    ) -> None:
        self._database = database
        self._projects = projects
        self._board = tasks
        self._max_own = settings.schedules_per_user
        self._clock = clock
        self._failed: set[str] = set()  # in the last tick, through no fault of their own
        self._tasks = TaskSet("schedules")

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def create(
        self,
        caller: Principal,
        project_id: str,
        *,
        name: str,
        cron: str,
        timezone: str,
        task: ScheduledTask,
        enabled: bool = True,
    ) -> Schedule:
        """Create a schedule. Raises InvalidInputError for times that never match and for unknown agents, and ConflictError
        if the caller has as many schedules as a user may have."""
        project = await self._projects.get(caller, project_id)
        await self._board.check_agents(caller.user_id, task)
        now = get_time(self._clock)
        row = Schedule(
            id=make_ordered_id("sch_"),
            project_id=project.id,
            owner_id=caller.user_id,
            name=name,
            cron=cron,
            timezone=timezone,
            task=task.to_json(),
            enabled=enabled,
            next_at=get_next_time(cron, timezone, now),
            created_at=now,
            updated_at=now,
        )
        if not enabled:
            row.next_at = None
        async with self._database.transaction() as tx:
            await self._check_limit(tx, caller.user_id)
            tx.add(row)
            _emit_event(tx, "schedule.created", row, project)
        return row

    async def get(self, caller: Principal, schedule_id: str) -> Schedule:
        query = select(Schedule).join(Project).where(Schedule.id == schedule_id, is_visible_to(caller))
        async with self._database.reading() as session:
            found = await session.scalar(query)
        if found is None:
            raise NotFoundError(f"There is no schedule {schedule_id[:60]!r}.")
        return found

    async def list(self, caller: Principal, page: PageRequest, *, project_id: str | None = None) -> Listing[Schedule]:
        query = select(Schedule).join(Project).where(is_visible_to(caller))
        if project_id is not None:
            query = query.where(Schedule.project_id == project_id)
        async with self._database.reading() as session:
            return await list_newest_first(session, query, Schedule.id, page)

    async def list_failures(self, rows: Sequence[Schedule]) -> dict[str, str]:
        """Return why the last run of each failed, by id, as far as events are stored. Successful ones are left out."""
        about = Event.data["scheduleId"].as_string()
        projects = {row.project_id for row in rows}
        newest = select(func.max(Event.seq)).where(Event.project_id.in_(projects), Event.kind.in_(_OUTCOMES))
        newest = newest.where(about.in_([row.id for row in rows])).group_by(about)
        async with self._database.reading() as session:
            last = list(await session.scalars(select(Event).where(Event.seq.in_(newest))))
        return {event.data["scheduleId"]: event.data["error"] for event in last if event.kind == "schedule.failed"}

    async def update(self, caller: Principal, schedule_id: str, changes: dict[str, Any]) -> Schedule:
        """Change a schedule. `changes`: name, cron, timezone, task, enabled. Enabled again, it continues with the next time from now.

        Raises ForbiddenError if the caller is not its creator, unless the change only disables it.
        """
        row = await self._require_control(caller, schedule_id)
        if caller.user_id != row.owner_id and changes != {"enabled": False}:
            raise ForbiddenError(
                "Only the schedule's creator may change it, because its tasks run on their behalf. You may disable or delete it, and create "
                "a schedule of your own."
            )
        if "task" in changes:
            await self._board.check_agents(row.owner_id, changes["task"])
        async with self._database.transaction() as tx:
            project = await lock_board(tx, row.project_id)
            known = await tx.session.get(Schedule, schedule_id, with_for_update=True)
            if known is None:
                raise NotFoundError(f"There is no schedule {schedule_id[:60]!r}.")
            for name, value in changes.items():
                setattr(known, name, value.to_json() if isinstance(value, ScheduledTask) else value)
            now = get_time(self._clock)
            if changes.keys() & {"cron", "timezone", "enabled"}:
                next_at = get_next_time(known.cron, known.timezone, now)
                known.next_at = next_at if known.enabled else None
            known.updated_at = now
            _emit_event(tx, "schedule.updated", known, project, enabled=known.enabled)
        return known

    async def delete(self, caller: Principal, schedule_id: str) -> None:
        """Delete a schedule. Tasks it has created are kept."""
        row = await self._require_control(caller, schedule_id)
        async with self._database.transaction() as tx:
            known = await tx.session.get(Schedule, row.id)
            project = await tx.session.get(Project, row.project_id)
            if known is not None and project is not None:
                await tx.session.delete(known)
                _emit_event(tx, "schedule.deleted", known, project)

    async def run(self, caller: Principal, schedule_id: str) -> Task:
        """Create the schedule's task now, on behalf of the caller. Does not change its times."""
        row = await self.get(caller, schedule_id)
        task_fields = _parse_task(row)
        await self._board.check_agents(caller.user_id, task_fields)
        async with self._database.transaction() as tx:
            return await self._create_task(tx, row, task_fields, caller.user_id)

    async def _check_limit(self, tx: Transaction, owner_id: str) -> None:
        """Raise ConflictError if the user has the maximum number of schedules. Locks the user's row, so that concurrent
        calls cannot exceed it."""
        await tx.session.execute(select(User.id).where(User.id == owner_id).with_for_update(key_share=True))
        count = await tx.session.scalar(select(func.count()).where(Schedule.owner_id == owner_id)) or 0
        if count >= self._max_own:
            raise ConflictError(
                f"You have {count} schedules; the limit is {self._max_own}. Delete one that you no longer need, or ask an "
                "administrator to raise SANDYARD_SCHEDULES_PER_USER."
            )

    async def _require_control(self, caller: Principal, schedule_id: str) -> Schedule:
        row = await self.get(caller, schedule_id)
        project = await self._projects.get(caller, row.project_id)
        if not (caller.is_admin or caller.user_id in (row.owner_id, project.owner_id)):
            raise ForbiddenError(
                "Only the schedule's creator, the project's owner or an administrator may disable or delete it."
            )
        return row

    # running ---------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            more = False
            try:
                more = await self.tick()
            except SandyardError as error:
                log.warning("schedules_failed", reason=error.message)
            except Exception as error:
                log.error("schedules_crashed", exc=error)  # noqa: TRY400
            if not more:
                await self._clock.sleep(CHECK_INTERVAL_S)

    async def tick(self) -> bool:
        """Create the tasks of schedules that are due, owners in turn, at most MAX_RUNS and MAX_RUNS_PER_OWNER.

        Returns True if more are due and the next tick should follow at once.
        """
        now = get_time(self._clock)
        due, left = await self._list_due(now)
        failed: set[str] = set()
        for row in due:
            try:
                await self._fire(row, now)
            except SandyardError as error:
                failed.add(row.id)
                log.warning("schedule_failed", schedule=row.id, reason=error.message)
            except Exception as error:
                failed.add(row.id)
                log.error("schedule_crashed", schedule=row.id, exc=error)  # noqa: TRY400
        self._failed = failed
        return left > 0 and not failed

    async def _list_due(self, now: datetime) -> tuple[Sequence[Schedule], int]:
        """Return the schedules to run now, each owner's first ones first, and how many others are due."""
        is_due = (Schedule.enabled, Schedule.next_at <= now)
        failed_last = case((Schedule.id.in_(self._failed), 1), else_=0)
        turn = func.row_number().over(
            partition_by=Schedule.owner_id, order_by=(failed_last, Schedule.next_at, Schedule.id)
        )
        turns = select(Schedule.id, turn.label("turn")).where(*is_due).subquery()
        query = select(Schedule).join(turns, turns.c.id == Schedule.id).where(turns.c.turn <= MAX_RUNS_PER_OWNER)
        query = query.order_by(turns.c.turn, failed_last, Schedule.next_at, Schedule.id).limit(MAX_RUNS)
        async with self._database.reading() as session:
            rows = list(await session.scalars(query))
            count = await session.scalar(select(func.count()).select_from(Schedule).where(*is_due)) or 0
        return rows, count - len(rows)

    async def _fire(self, row: Schedule, now: datetime) -> None:
        assert row.next_at is not None
        next_at, missed = now + RETRY_AFTER, 0
        try:
            next_at = get_next_time(row.cron, row.timezone, now)
            missed = _count_missed(row, now)
            task_fields = await self._require_valid_task(row)
            async with self._database.transaction() as tx:
                await lock_board(tx, row.project_id)
                if await self._claim(tx, row, next_at, now):
                    await self._create_task(tx, row, task_fields, row.owner_id, scheduled_at=row.next_at, missed=missed)
        except SandyardError as error:
            if error.status >= 500:  # not the schedule's fault: retry at the next tick
                raise
            async with self._database.transaction() as tx:
                project = await tx.session.get(Project, row.project_id)
                if project is not None and await self._claim(tx, row, next_at, now):
                    _emit_event(
                        tx, "schedule.failed", row, project, error=error.message[:1000], code=error.code, missed=missed
                    )
            log.warning("schedule_failed", schedule=row.id, reason=error.message)
        if missed:
            log.warning("schedule_times_missed", schedule=row.id, missed=missed)

    async def _require_valid_task(self, row: Schedule) -> ScheduledTask:
        """Return the schedule's task if it is still valid. Raises InvalidInputError or NotFoundError."""
        async with self._database.reading() as session:
            owner = await session.get(User, row.owner_id)
        if owner is None or owner.disabled_at is not None:
            raise NotFoundError("The user who created this schedule is no longer active. Create a new schedule.")
        await self._projects.get(Principal(owner.id, owner.name, owner.role, f"schedule:{row.id}"), row.project_id)
        task_fields = _parse_task(row)
        await self._board.check_agents(row.owner_id, task_fields)
        return task_fields

    async def _claim(self, tx: Transaction, row: Schedule, next_at: datetime, now: datetime) -> bool:
        """Advance the schedule. Returns False if another platform did so, or if it was changed."""
        claim = update(Schedule).where(Schedule.id == row.id, Schedule.enabled, Schedule.next_at == row.next_at)
        moved = await tx.session.execute(claim.values(next_at=next_at, last_at=now).returning(Schedule.id))
        return moved.first() is not None

    async def _create_task(
        self,
        tx: Transaction,
        row: Schedule,
        task_fields: ScheduledTask,
        user_id: str,
        *,
        scheduled_at: datetime | None = None,
        missed: int = 0,
    ) -> Task:
        project = await lock_board(tx, row.project_id)
        task = await self._board.add(
            tx,
            project,
            task_fields.get_task_fields(),
            created_by=user_id,
            source={"kind": "schedule", "scheduleId": row.id, "name": row.name},
            source_key=None if scheduled_at is None else f"schedule:{row.id}:{rfc3339(scheduled_at)}",
            start_for=user_id if task_fields.start else None,
        )
        await tx.session.execute(update(Schedule).where(Schedule.id == row.id).values(last_task_id=task.id))
        _emit_event(tx, "schedule.fired", row, project, taskId=task.id, missed=missed)
        return task


def _parse_task(row: Schedule) -> ScheduledTask:
    try:
        return ScheduledTask.model_validate(row.task)
    except ValidationError:
        raise InvalidInputError("The task of this schedule is no longer valid. Edit the schedule.") from None


def _count_missed(row: Schedule, now: datetime) -> int:
    """Return how many of the schedule's times since the one it waits for have passed, at most MAX_MISSED_COUNTED."""
    assert row.next_at is not None
    count, time = 0, row.next_at
    while count < MAX_MISSED_COUNTED and (time := get_next_time(row.cron, row.timezone, time)) <= now:
        count += 1
    return count


def _emit_event(tx: Transaction, kind: str, row: Schedule, project: Project, **data: Any) -> None:
    tx.emit(kind, owner_id=project.owner_id, project_id=project.id, scheduleId=row.id, name=row.name, **data)
