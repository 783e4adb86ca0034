"""Attempts: queueing, admission, and every change of an attempt's row.

Rounds wait as rows, are admitted within the limits, and then run as durable workflows (`rounds.py`). The next one is always of the user
with the fewest working attempts; a task's priority only decides between attempts of the same user.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVarTuple

from sqlalchemy import ColumnElement, Select, and_, exists, func, not_, select

from sandyard.kit import telemetry
from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Attempt, Project, Sandbox, Session, Step, Task, Turn
from sandyard.platform.db.models.task_details import MessageToAgent, RoundInput
from sandyard.platform.domain.agents.catalogue import find_default_agent
from sandyard.platform.domain.agents.model import TurnStatus
from sandyard.platform.domain.projects.model import AgentSettings, ProjectSettings
from sandyard.platform.domain.projects.service import Projects, is_visible_to
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import Status, utc_now
from sandyard.platform.domain.tasks.attempt_records import emit_attempt_event, lock_attempt, set_attempt_status
from sandyard.platform.domain.tasks.model import OPEN_ATTEMPTS, AttemptStatus, Column, RoundKind
from sandyard.platform.domain.tasks.moves import ACTIVE_ATTEMPTS, advance
from sandyard.platform.domain.tasks.sandbox_release import SandboxRelease
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

QUEUE_CHECK_S = 5.0
"""How often the queue is checked without a notification."""
RECONCILE_S = 60.0
"""How often running attempts are compared with their workflows."""
MAX_PENDING_CHARACTERS = 100_000
MAX_PENDING_MESSAGES = 10
"""Limits of the messages that wait for the end of a round. The characters are those of all messages."""
MAX_ABOUT_CHARACTERS = 1000
Columns = TypeVarTuple("Columns")


class Executor(Protocol):
    """Runs rounds: `durable.Durable`."""

    async def begin(self, attempt_id: str, number: int) -> None: ...
    async def get_state(self, attempt_id: str, number: int) -> str | None: ...


class Turns(Protocol):
    """The part of `agents.runner.turns.AgentTurns` that attempts need."""

    async def cancel_all(self, session_id: str) -> None: ...
    async def end_agent(self, session_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _ProjectLimit:
    """The maximum number of attempts of a project that run at once."""

    project: str
    parallel: int


class Attempts:
    def __init__(  # noqa: PLR0917 - its dependencies
        self,
        database: Database,
        projects: Projects,
        lifecycle: Lifecycle,
        turns: Turns,
        settings: PlatformSettings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._projects = projects
        self._sandbox_release = SandboxRelease(database, lifecycle, turns)
        self._turns = turns
        self._settings = settings
        self._tasks = TaskSet("attempts")
        self._changed = asyncio.Event()
        self._executor: Executor | None = None
        self._clock = clock

    # used by the board -----------------------------------------------------------------------------------------------------

    async def draft(self, tx: Transaction, task: Task, owner_id: str) -> list[Attempt]:
        """Create the attempts the task asks for, in the transaction that starts it. Call `nudge` afterwards."""
        after = await tx.session.scalar(select(func.max(Attempt.number)).where(Attempt.task_id == task.id)) or 0
        wanted = await self._list_requested_agents(tx, task)
        now = utc_now()
        created = []
        for index, (agent, model) in enumerate(wanted):
            attempt = Attempt(
                id=make_ordered_id("att_"),
                task_id=task.id,
                project_id=task.project_id,
                owner_id=owner_id,
                number=after + 1 + index,
                session_id=make_ordered_id("ses_"),
                agent=agent,
                model=model,
                status=AttemptStatus.QUEUED,
                round=1,
                work={"kind": RoundKind.TASK, "solo": len(wanted) == 1, "place": index, **_make_trace_input()},
                detail={},
                queued_at=now,
                updated_at=now,
            )
            tx.add(attempt)
            emit_attempt_event(tx, attempt, "attempt.queued", agent=attempt.agent, model=attempt.model)
            created.append(attempt)
        return created

    async def _list_requested_agents(self, tx: Transaction, task: Task) -> list[tuple[str, str | None]]:
        """Return the agent and model of each attempt the task asks for."""
        project = await tx.session.get(Project, task.project_id)
        defaults = ProjectSettings.from_project(project).agent if project is not None else AgentSettings()
        default = await find_default_agent(tx.session, project, self._settings)
        found = []
        for attempt in task.attempts or [{}]:
            agent = attempt.get("agent") or task.agent or default
            found.append(
                (agent, attempt.get("model") or task.model or (defaults.model if agent == defaults.default else None))
            )
        return found

    async def send_back(
        self,
        tx: Transaction,
        task: Task,
        attempt: Attempt,
        words: str,
        by: str,
        *,
        automatic: bool = False,
        about: str | None = None,
    ) -> None:
        """Start the next round with these words as its prompt. Call `nudge` afterwards.

        `about` is what its commit is named after, if not the words. While a round is running, the words wait for its end. A failed attempt
        is retried with them. If the task now asks for another agent, that agent continues.
        """
        log.info("attempt_sent_back", task=task.id, attempt=attempt.number, automatic=automatic)
        message: MessageToAgent = {
            "words": make_storable(words)[:MAX_PENDING_CHARACTERS],
            "by": by,
            "automatic": automatic,
        }
        if about is not None:
            message["about"] = make_storable(about)[:MAX_ABOUT_CHARACTERS]
        if attempt.status in ACTIVE_ATTEMPTS:
            attempt.detail = {**attempt.detail, "pending": [*attempt.detail.get("pending", []), message]}
        elif attempt.status == AttemptStatus.FAILED:
            await self.retry(tx, task, only=attempt.id, message=message)
        else:
            await self._hand_over(tx, task, [attempt])
            self._queue_next_round(tx, attempt, RoundKind.FEEDBACK, {"said": [message]})

    @staticmethod
    def has_room(attempt: Attempt, words: str) -> bool:
        """Return whether these words may wait for the end of the current round, in addition to those already waiting."""
        if attempt.status not in ACTIVE_ATTEMPTS:
            return True
        waiting = attempt.detail.get("pending", [])
        return (
            len(waiting) < MAX_PENDING_MESSAGES
            and sum(len(attempt["words"]) for attempt in waiting) + len(words) <= MAX_PENDING_CHARACTERS
        )

    def _queue_next_round(self, tx: Transaction, attempt: Attempt, kind: RoundKind, work: RoundInput) -> None:
        attempt.round += 1
        kept: RoundInput = {"solo": attempt.work.get("solo", True), "place": attempt.work.get("place")}
        attempt.work = {"kind": kind, **kept, **work, **_make_trace_input()}
        attempt.status, attempt.step, attempt.queued_at = AttemptStatus.QUEUED, None, utc_now()
        attempt.error = attempt.error_code = attempt.cancel_at = attempt.finished_at = None
        attempt.updated_at = attempt.queued_at
        emit_attempt_event(tx, attempt, "attempt.queued", round=attempt.round, work=kind)

    async def find_traceparent(self, attempt_id: str) -> str | None:
        """Return the span of the request that started the current round."""
        async with self._database.reading() as session:
            attempt = await session.get(Attempt, attempt_id)
        return None if attempt is None else attempt.work.get("traceparent")

    def nudge(self) -> None:
        """Signal a change, so that the queue is checked."""
        self._changed.set()

    async def cancel(self, task_id: str) -> None:
        """Cancel all attempts of the task, running or queued. Their work is kept. Idempotent."""
        left = (*OPEN_ATTEMPTS, AttemptStatus.FAILED)  # failed attempts have ended, but still have a sandbox
        async with self._database.transaction() as tx:
            await tx.session.get(Task, task_id, with_for_update=True)
            query = select(Attempt).where(Attempt.task_id == task_id, Attempt.status.in_(left))
            rows = list((await tx.session.scalars(query.with_for_update())).all())
            for row in rows:
                if row.status == AttemptStatus.FAILED:
                    continue
                row.cancel_at = row.cancel_at or utc_now()
                if row.status != AttemptStatus.RUNNING:
                    set_attempt_status(tx, row, AttemptStatus.CANCELLED)
        for row in rows:
            await self._turns.cancel_all(row.session_id)
            if row.status != AttemptStatus.RUNNING:
                self.release_sandbox(row.session_id, row.project_id)
        self.nudge()

    async def retry(
        self, tx: Transaction, task: Task, *, only: str | None = None, message: MessageToAgent | None = None
    ) -> list[Attempt]:
        """Retry failed and cancelled attempts from their existing work. Call `nudge` afterwards.

        The task's row must be locked. `only` selects one attempt; `message` is a message for the agents. If the task now asks for another
        agent, that agent continues.
        """
        ended = (AttemptStatus.FAILED, AttemptStatus.CANCELLED)
        query = select(Attempt).where(Attempt.task_id == task.id, Attempt.status.in_(ended)).order_by(Attempt.number)
        if only is not None:
            query = query.where(Attempt.id == only)
        rows = list((await tx.session.scalars(query.with_for_update())).all())
        if not rows:
            raise ConflictError("No attempt at this task has failed or was stopped, so there is nothing to retry.")
        await self._hand_over(tx, task, rows)
        for row in rows:
            # it is unknown whether the agent has read them
            words = _keep_newest([*row.work.get("said", ()), *([message] if message is not None else [])])
            work: RoundInput = {"ended": row.error}
            if words:
                work["said"] = words
            self._queue_next_round(tx, row, RoundKind.RETRY, work)
        task.error = task.finished_at = None
        return rows

    async def _hand_over(self, tx: Transaction, task: Task, rows: Sequence[Attempt]) -> None:
        """Switch the sessions of these attempts to other agents if the task now asks for others."""
        wanted = await self._list_requested_agents(tx, task)
        for row in rows:
            index = 0 if len(wanted) == 1 and row.work.get("solo", True) else row.work.get("place")
            if index is not None and index < len(wanted):
                await _assign_agent(tx, row, *wanted[index])

    async def pick(self, caller: Principal, task_id: str, attempt_id: str) -> Attempt:
        """Pick the attempt that becomes the pull request. The others are archived with their transcripts."""
        await self._get_task(caller, task_id)
        async with self._database.transaction() as tx:
            await tx.session.get(Task, task_id, with_for_update=True)
            query = select(Attempt).where(Attempt.task_id == task_id).order_by(Attempt.number).with_for_update()
            rows = list((await tx.session.scalars(query)).all())
            picked = next((row for row in rows if attempt_id in (row.id, str(row.number))), None)
            if picked is None:
                raise NotFoundError(f"Task {task_id} has no attempt {attempt_id[:60]!r}.")
            if picked.status != AttemptStatus.READY:
                raise ConflictError(
                    f"Attempt {picked.number} is {picked.status}. Only an attempt that is ready can be picked."
                )
            if busy := [row for row in rows if row.status in (AttemptStatus.QUEUED, AttemptStatus.RUNNING)]:
                numbers = ", ".join(str(row.number) for row in busy)
                raise ConflictError(f"Attempt {numbers} is still running. Wait for it or stop the task.")
            others = [row for row in rows if row is not picked and row.status != AttemptStatus.ARCHIVED]
            for row in others:
                set_attempt_status(tx, row, AttemptStatus.ARCHIVED)
            # later rounds of it are published too
            self._queue_next_round(tx, picked, RoundKind.PUBLISH, {"solo": True})
        for row in others:
            self.release_sandbox(row.session_id, row.project_id, archive=True)
        self.nudge()
        return picked

    # reading ---------------------------------------------------------------------------------------------------------------

    async def list_for_task(self, caller: Principal, task_id: str) -> list[Attempt]:
        await self._get_task(caller, task_id)
        return (await self.list_for_tasks([task_id])).get(task_id, [])

    async def list_for_tasks(self, task_ids: Sequence[str]) -> dict[str, list[Attempt]]:
        """Return attempts by task. The caller must already be authorized to see the tasks."""
        found: dict[str, list[Attempt]] = {}
        async with self._database.reading() as session:
            query = select(Attempt).where(Attempt.task_id.in_(task_ids)).order_by(Attempt.number)
            for row in (await session.scalars(query)).all():
                found.setdefault(row.task_id, []).append(row)
        return found

    async def list_steps(self, attempt_id: str) -> list[Step]:
        async with self._database.reading() as session:
            query = select(Step).where(Step.attempt_id == attempt_id).order_by(Step.round, Step.number)
            return list((await session.scalars(query)).all())

    async def get_queue_positions(self) -> dict[str, int]:
        """Return the queue positions of all waiting attempts by id. The next one is 1."""
        async with self._database.reading() as session:
            return {
                row: position
                for position, row in enumerate(await session.scalars(_select_queue(select(Attempt.id))), 1)
            }

    async def list_queue(self, caller: Principal) -> list[tuple[Attempt, int, str]]:
        """Return the waiting attempts that the caller may see, with their position and what they wait for."""
        async with self._database.reading() as session:
            mine = set(await session.scalars(select(Project.id).where(is_visible_to(caller))))
        (waiting, limits), counts = await self._list_queued(), await self._count_working()
        return [
            (row, position, self._find_obstacle(row, limits[row.project_id], counts) or "It is about to start.")
            for position, row in enumerate(waiting, 1)
            if row.project_id in mine
        ]

    async def _get_task(self, caller: Principal, task_id: str) -> Task:
        async with self._database.reading() as session:
            task = await session.get(Task, task_id)
        if task is not None:
            with contextlib.suppress(NotFoundError):
                await self._projects.get(caller, task.project_id)
                return task
        raise NotFoundError(f"There is no task {task_id[:60]!r}.")

    # admission -------------------------------------------------------------------------------------------------------------

    def start(self, executor: Executor) -> None:
        self._executor = executor
        self._tasks.spawn(self._dispatch())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _dispatch(self) -> None:
        due, loop = 0.0, asyncio.get_running_loop()
        self._tasks.spawn(self._sandbox_release.recover())
        while True:
            self._changed.clear()
            try:
                if loop.time() >= due:
                    await self._reconcile()
                    due = loop.time() + RECONCILE_S
                await self._admit()
            except SandyardError as error:
                due = 0.0  # an attempt may be admitted but not started
                log.warning("attempts_not_started", reason=error.message)
            except Exception as error:
                due = 0.0
                log.error("attempts_crashed", exc=error)  # noqa: TRY400
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUEUE_CHECK_S):
                    await self._changed.wait()

    async def _reconcile(self) -> None:
        """Start attempts that were admitted but not started, also by an earlier process, and fail those whose workflow is broken."""
        assert self._executor is not None
        async with self._database.reading() as session:
            query = select(Attempt).where(Attempt.status == AttemptStatus.RUNNING)
            rows = list((await session.scalars(query)).all())
        for row in rows:
            state = await self._executor.get_state(row.id, row.round)
            if state is None:
                await self._executor.begin(row.id, row.round)
            elif state == "broken":
                message = "Internal error while working on this task. Retry the task."
                await self.fail(row.id, "internal", message, number=row.round)

    async def _admit(self) -> None:
        assert self._executor is not None
        counts = await self._count_working()
        if counts["machine"] >= self._settings.parallel_attempts:
            return
        waiting, limits = await self._list_queued()
        while waiting := [row for row in waiting if self._find_obstacle(row, limits[row.project_id], counts) is None]:
            firsts = {row.owner_id: row for row in reversed(waiting)}.values()  # each user's next one
            row = min(firsts, key=lambda row: (counts[row.owner_id], row.queued_at, row.id))
            waiting.remove(row)
            async with self._database.transaction() as tx:
                known = await tx.session.get(Attempt, row.id, with_for_update=True)
                if known is None or known.status != AttemptStatus.QUEUED:
                    continue
                known.status, known.updated_at = AttemptStatus.RUNNING, utc_now()
                known.started_at = known.started_at or known.updated_at
                emit_attempt_event(tx, known, "attempt.started", round=known.round)
            counts.update(("machine", known.project_id, known.owner_id))
            await self._executor.begin(known.id, known.round)

    async def _list_queued(self) -> tuple[list[Attempt], dict[str, _ProjectLimit]]:
        """Return the queue in order, and the limits of its projects."""
        async with self._database.reading() as session:
            rows = list(await session.scalars(_select_queue(select(Attempt))))
            if not rows:
                return [], {}
            projects = await session.scalars(select(Project).where(Project.id.in_({row.project_id for row in rows})))
            limits = {
                project.id: _ProjectLimit(project.name, ProjectSettings.from_project(project).tasks.parallel)
                for project in projects
            }
            return [row for row in rows if row.project_id in limits], limits

    async def _count_working(self) -> Counter[str]:
        """Return how many attempts are working: on this machine, and by project and owner."""
        counts: Counter[str] = Counter()
        query = select(Attempt.project_id, Attempt.owner_id).where(_is_working())
        async with self._database.reading() as session:
            for row in (await session.execute(query)).all():
                counts.update(("machine", *row))
        return counts

    def _find_obstacle(self, row: Attempt, limit: _ProjectLimit, counts: Counter[str]) -> str | None:
        """Return why the attempt may not run now, or None."""
        if counts["machine"] >= self._settings.parallel_attempts:
            return f"The platform's limit of {self._settings.parallel_attempts} parallel attempts is reached (SANDYARD_PARALLEL_ATTEMPTS)."
        if counts[row.project_id] >= limit.parallel:
            return f"The limit of {limit.parallel} parallel attempts of project {limit.project!r} is reached (setting tasks.parallel)."
        if counts[row.owner_id] >= self._settings.parallel_attempts_per_user:
            return (
                f"The limit of {self._settings.parallel_attempts_per_user} parallel attempts per user is reached "
                "(SANDYARD_PARALLEL_ATTEMPTS_PER_USER)."
            )
        return None

    # used by rounds ----------------------------------------------------------------------------------------------------------

    async def fail(self, attempt_id: str, code: str, message: str, *, number: int | None = None) -> None:
        """Mark the round as failed. Idempotent.

        If none of its other attempts is at work, the task also fails; if other attempts can be picked, it goes to review.
        """
        async with self._database.transaction() as tx:
            found = await lock_attempt(tx, attempt_id)
            if found is None or found[1].status != AttemptStatus.RUNNING or number not in (None, found[1].round):
                return
            task, row = found
            cancelled = row.cancel_at is not None
            if cancelled:
                set_attempt_status(tx, row, AttemptStatus.CANCELLED)
            else:
                set_attempt_status(
                    tx,
                    row,
                    AttemptStatus.FAILED,
                    error=make_storable(message)[:MAX_PENDING_CHARACTERS],
                    error_code=code,
                )
            if not cancelled and task.status == Column.IN_PROGRESS:
                await self._update_task_after_failure(tx, task, row)
        if cancelled:
            self.release_sandbox(row.session_id, row.project_id)
        self.nudge()

    async def _update_task_after_failure(self, tx: Transaction, task: Task, row: Attempt) -> None:
        """Update the task after this attempt failed."""
        query = select(Attempt.status).where(
            Attempt.task_id == row.task_id, Attempt.id != row.id, Attempt.status.in_(OPEN_ATTEMPTS)
        )
        others = set(await tx.session.scalars(query))
        if not others:
            task.error, task.updated_at = row.error, utc_now()
            emit_attempt_event(
                tx, row, "task.updated", title=task.title, status=task.status, error=(task.error or "")[:1000]
            )
        elif not others & set(ACTIVE_ATTEMPTS):
            await advance(tx, self._clock, task, Column.IN_REVIEW)

    async def finish_round(self, tx: Transaction, task: Task, row: Attempt, status: AttemptStatus) -> bool:
        """Finish the round as ready or in review. Returns True if messages that arrived meanwhile have started the next round."""
        pending = row.detail.get("pending", [])
        set_attempt_status(tx, row, status)
        if pending:
            detail = row.detail.copy()
            del detail["pending"]
            row.detail = detail
            await self._hand_over(tx, task, [row])
            self._queue_next_round(tx, row, RoundKind.FEEDBACK, {"said": pending})
        return bool(pending)

    def release_sandbox(self, session_id: str, project_id: str, *, archive: bool = False) -> None:
        """Delete or pause the attempt's sandbox in the background, per the project's settings. Branch and transcript are kept."""
        self._tasks.spawn(self._sandbox_release.release(session_id, project_id, archive=archive))


def _keep_newest(messages: Sequence[MessageToAgent]) -> list[MessageToAgent]:
    """Return the newest messages for one round: at most MAX_PENDING_MESSAGES, with MAX_PENDING_CHARACTERS in total."""
    kept: list[MessageToAgent] = []
    left = MAX_PENDING_CHARACTERS
    for message in reversed(messages[-MAX_PENDING_MESSAGES:]):
        left -= len(message["words"])
        if left < 0 and kept:
            break
        kept.insert(0, message)
    return kept


async def _assign_agent(tx: Transaction, row: Attempt, agent: str, model: str | None) -> None:
    """Switch the attempt's session to this agent and model, if the agent changes."""
    if row.agent == agent:
        row.model = model or row.model
        return
    row.agent, row.model = agent, model
    if (session := await tx.session.get(Session, row.session_id, with_for_update=True)) is not None:
        session.agent, session.model, session.mode = agent, model, None


def _is_working() -> ColumnElement[bool]:
    """Return the condition for attempts that count towards the limits: those that run, unless their agent waits for a person and their
    sandbox is paused."""
    waits = (
        exists()
        .where(Session.id == Attempt.session_id, Sandbox.id == Session.sandbox_id, Sandbox.status == Status.PAUSED)
        .where(Turn.session_id == Session.id, Turn.status == TurnStatus.WAITING)
    )
    return and_(Attempt.status == AttemptStatus.RUNNING, not_(waits))


def _select_queue(query: Select[*Columns]) -> Select[*Columns]:
    """Limit a query of attempts to those that are queued, the next one first.

    Each user's attempts are ordered by priority, then by age. Users take turns, those with fewer working attempts first.
    """
    query = query.join(Task, Task.id == Attempt.task_id).where(Attempt.status == AttemptStatus.QUEUED)
    working = select(Attempt.owner_id, func.count().label("count")).where(_is_working())
    counts = working.group_by(Attempt.owner_id).subquery()
    place = func.row_number().over(
        partition_by=Attempt.owner_id, order_by=(Task.priority.desc(), Attempt.queued_at, Attempt.id)
    )
    query = query.outerjoin(counts, counts.c.owner_id == Attempt.owner_id)
    return query.order_by(func.coalesce(counts.c.count, 0) + place, Attempt.queued_at, Attempt.id)


def _make_trace_input() -> RoundInput:
    traceparent = telemetry.traceparent()
    return {} if traceparent is None else {"traceparent": traceparent}
