"""Git operations as database rows: stored before they start, reported as events, and restarted after a crash.

One operation runs per sandbox at a time, in the order of their requests. Operations that write to the remote or fetch from
it wait for their turn. The work itself is done by a handler. A handler may run again from its start, and must detect what
an earlier run has done already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Unpack
from weakref import WeakValueDictionary

from sqlalchemy import String, delete, literal, select

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.text import make_json_storable, make_storable
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import GitOperation, Sandbox
from sandyard.platform.db.models.git_details import OperationArguments, OperationDetail
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.git.model import OperationKind, OperationStatus
from sandyard.platform.domain.git.repository_queue import RepositoryQueue
from sandyard.platform.domain.projects.service import has_lost_access
from sandyard.platform.domain.repositories.errors import GitTimeoutError
from sandyard.platform.domain.repositories.model import Progress
from sandyard.platform.domain.sandboxes.e2b import EngineError, SandboxNotRunningError
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError, get_sandbox_event_fields, utc_now

log = get_logger(__name__)
OPEN_STATUSES = (OperationStatus.QUEUED, OperationStatus.RUNNING)
MAX_ATTEMPTS = 100
RETRY_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Delays before retrying an operation that failed because the engine was unavailable or the sandbox had been paused."""
ABANDONED_AFTER = timedelta(seconds=5)
"""If an open operation is not executed for this long, a caller that waits for it starts it."""
REPORT_INTERVAL_S, MAX_IMMEDIATE_REPORTS = 1.0, 50
Handler = Callable[["Job"], Awaitable[OperationDetail]]


class OperationFailedError(SandyardError):
    """The operation failed; this is its error."""

    def __init__(self, row: GitOperation) -> None:
        super().__init__(row.error or "The operation failed.")
        failure = row.detail.get("failure", {})
        for name, value in (("code", row.error_code or "git_failed"), ("status", failure.get("status", 409))):
            setattr(self, name, value)
        self._extra = {**failure.get("extra", {}), "operationId": row.id}

    @property
    def extra(self) -> Mapping[str, object]:
        return self._extra


@dataclass(slots=True)
class Job:
    """One run of an operation, as its handler sees it."""

    operation: GitOperation
    sandbox: Sandbox
    progress: Progress
    _operations: OperationRunner

    @property
    def arguments(self) -> OperationArguments:
        return self.operation.arguments

    @contextlib.asynccontextmanager
    async def wait_turn(self, repository: str, requester: str) -> AsyncIterator[None]:
        """Wait for the turn at this repository or mirror. See `RepositoryQueue.enter`. The operation is shown as queued until then."""
        async with self._operations.wait_turn(self, repository, requester):
            yield

    async def store(self, **arguments: Unpack[OperationArguments]) -> None:
        """Store arguments for a run after a crash. Call it before acting on them."""
        self.operation = await self._operations.store_arguments(self.operation.id, arguments)


class OperationRunner:
    """Stores operations, runs their handlers in the background, and reports their results."""

    def __init__(self, database: Database, queue: RepositoryQueue, handlers: Mapping[OperationKind, Handler]) -> None:
        self._database = database
        self._queue = queue
        self._handlers = handlers
        self.tasks = TaskSet("git operations")
        self._running: dict[str, asyncio.Task[None]] = {}
        self._executing: set[str] = set()
        self._repositories: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Cancel running operations; the next process restarts them."""
        await self.tasks.cancel()

    # requests ---------------------------------------------------------------------------------------------------------

    def draft(
        self,
        tx: Transaction,
        kind: OperationKind,
        sandbox: Sandbox,
        *,
        project_id: str | None,
        user_id: str | None,
        arguments: OperationArguments | None = None,
        status: OperationStatus = OperationStatus.QUEUED,
    ) -> GitOperation:
        """Add an operation in the caller's transaction. Then call `begin`, or `execute` if its status is `running`."""
        now, running = utc_now(), status == OperationStatus.RUNNING
        row = GitOperation(
            id=make_ordered_id("gop_"),
            project_id=project_id,
            session_id=sandbox.session_id,
            sandbox_id=sandbox.id,
            user_id=user_id,
            kind=kind,
            status=status,
            arguments=dict(arguments or {}),
            detail={},
            attempts=int(running),
            created_at=now,
            started_at=now if running else None,
        )
        tx.add(row)
        tx.emit("git.started" if running else "git.queued", **_make_event_fields(row, sandbox))
        return row

    async def submit(
        self,
        kind: OperationKind,
        sandbox: Sandbox,
        *,
        project_id: str | None,
        user_id: str | None,
        **arguments: Unpack[OperationArguments],
    ) -> GitOperation:
        """Store an operation and start it.

        A push returns the existing operation if the sandbox's last open operation is the same push and has not started
        yet, so that a caller who asks again after each of many crashes does not fill the queue.
        """
        async with self._database.transaction() as tx:
            row = await self._get_last_pending(tx, sandbox) if kind is OperationKind.PUSH else None
            if row is None or (row.kind, row.user_id) != (kind, user_id):
                row = self.draft(tx, kind, sandbox, project_id=project_id, user_id=user_id, arguments=arguments)
        self.begin(row)
        return row

    async def _get_last_pending(self, tx: Transaction, sandbox: Sandbox) -> GitOperation | None:
        """Return the sandbox's last open operation, if it has not started in this process yet."""
        query = select(GitOperation).where(
            GitOperation.sandbox_id == sandbox.id, GitOperation.status.in_(OPEN_STATUSES)
        )
        row = (await tx.session.scalars(query.order_by(GitOperation.id.desc()).limit(1))).first()
        return None if row is None or row.id in self._executing else row

    def begin(self, row: GitOperation) -> None:
        """Run the operation in the background. Idempotent."""
        if row.id in self._running:
            return
        assert row.sandbox_id is not None
        lock = self._locks.get(row.sandbox_id)
        if lock is None:
            lock = self._locks[row.sandbox_id] = asyncio.Lock()
        task = self._running[row.id] = self.tasks.spawn(self._run(row.id, row.sandbox_id, lock))
        task.add_done_callback(lambda _: self._running.pop(row.id, None))

    async def recover(self, older_than: timedelta = timedelta(0)) -> int:
        """Restart unfinished operations in order of request: of an earlier process, or of this one while the database was unavailable.

        Operations that run here are left alone.
        """
        async with self._database.reading() as session:
            query = select(GitOperation).where(GitOperation.status.in_(OPEN_STATUSES)).order_by(GitOperation.id)
            query = query.where(GitOperation.created_at <= utc_now() - older_than)
            found = (await session.scalars(query)).all()
        rows = [row for row in found if row.id not in self._running and row.id not in self._executing]
        for row in rows:
            self.begin(row)
        return len(rows)

    async def wait(self, operation_id: str, timeout_s: float | None = None) -> GitOperation:
        """Return the operation when it has finished, or as it is after the timeout.

        Cancelling the call does not cancel the operation.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    if (task := self._running.get(operation_id)) is not None:
                        await asyncio.wait((task,))
                    row = await self.get(operation_id)
                    if OperationStatus(row.status).is_final:
                        return row
                    if (
                        row.sandbox_id
                        and utc_now() - row.created_at > ABANDONED_AFTER
                        and row.id not in self._executing
                    ):
                        self.begin(row)  # the requester was interrupted before the commit was acknowledged
                    elif task is None:
                        await asyncio.sleep(0.5)
        return await self.get(operation_id)

    def raise_failure(self, operation: GitOperation) -> None:
        """Raise the error of a failed operation."""
        if operation.status == OperationStatus.FAILED:
            raise OperationFailedError(operation)

    async def get(self, operation_id: str) -> GitOperation:
        async with self._database.reading() as session:
            row = await session.get(GitOperation, operation_id)
        if row is None:
            raise NotFoundError(f"There is no git operation {operation_id[:60]!r}.")
        return row

    def get_position(self, operation_id: str) -> int | None:
        """Return how many operations are ahead of it at its repository. None if it is not waiting."""
        repository = self._repositories.get(operation_id)
        return None if repository is None else self._queue.get_position(repository, operation_id)

    async def trim(self, older_than: timedelta) -> None:
        """Delete operations that finished longer ago."""
        async with self._database.transaction() as tx:
            await tx.session.execute(delete(GitOperation).where(GitOperation.finished_at < utc_now() - older_than))

    # execution --------------------------------------------------------------------------------------------------------

    async def _run(self, operation_id: str, sandbox_id: str, lock: asyncio.Lock) -> None:
        async with lock:
            started = await retry_while_database_unavailable(
                lambda: self._mark_running(operation_id, sandbox_id), "git operation", operation=operation_id
            )
            if started is not None:
                await self.execute(*started)

    async def _mark_running(self, operation_id: str, sandbox_id: str) -> tuple[GitOperation, Sandbox] | None:
        async with self._database.transaction() as tx:
            query = select(GitOperation, Sandbox).join(Sandbox, Sandbox.id == sandbox_id)
            found = (await tx.session.execute(query.where(GitOperation.id == operation_id))).first()
            if found is None or OperationStatus(found[0].status).is_final:
                return None
            row, sandbox = found
            row.status, row.attempts = OperationStatus.RUNNING, row.attempts + 1
            row.started_at = row.started_at or utc_now()
            tx.emit("git.started", **_make_event_fields(row, sandbox))
        return row, sandbox

    async def execute(self, row: GitOperation, sandbox: Sandbox, timeout_s: float | None = None) -> None:
        """Run the operation's handler and store the result."""
        reporter = _Reporter(self._database, row, sandbox, self.tasks)
        job = Job(row, sandbox, reporter, self)
        self._executing.add(row.id)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    detail = await self._handle(job, RETRY_PAUSES if timeout_s is None else ())
                finally:
                    await reporter.flush()
        except TimeoutError:
            await self.finish(job, OperationStatus.FAILED, error=GitTimeoutError())
        except SandyardError as error:
            await self.finish(job, OperationStatus.FAILED, error=error)
        except Exception as error:
            log.error("git_operation_crashed", operation=row.id, kind=row.kind, exc=error)  # noqa: TRY400 - `exc` is our own keyword
            await self.finish(
                job, OperationStatus.FAILED, error=SandyardError("Internal error; see the platform's log.")
            )
        else:
            await self.finish(job, OperationStatus.COMPLETED, detail=detail)
        finally:
            self._executing.discard(row.id)

    async def _handle(self, job: Job, pauses: Sequence[float]) -> OperationDetail:
        if job.operation.attempts > MAX_ATTEMPTS:
            raise SandyardError(
                f"The operation was started {MAX_ATTEMPTS} times, and each time the platform stopped before it finished."
            )
        handle = self._handlers[OperationKind(job.operation.kind)]

        async def handle_with_retries(job: Job) -> OperationDetail:
            return await retry_while_database_unavailable(
                lambda: handle(job), "git operation", operation=job.operation.id
            )

        for pause in pauses:
            await self._require_access(job)
            try:
                return await handle_with_retries(job)
            except EngineError as error:
                paused = isinstance(error, SandboxNotRunningError)  # by the engine; its row has been updated by now
                if job.operation.kind == OperationKind.DISCARD or not (error.transient or paused):
                    raise
                log.info(
                    "git_operation_again", operation=job.operation.id, kind=job.operation.kind, reason=error.message
                )
                job.progress("waiting for the engine")
                await asyncio.sleep(pause)
        await self._require_access(job)
        return await handle_with_retries(job)

    async def _require_access(self, job: Job) -> None:
        """Raise OwnerWithoutAccessError if the user who requested the operation was disabled or has left the project since. Handlers use the
        project's credential, not the user's."""
        row = job.operation

        async def has_lost() -> bool:
            async with self._database.reading() as session:
                return bool(
                    await session.scalar(
                        select(has_lost_access(literal(row.user_id), literal(row.project_id, String())))
                    )
                )

        if row.user_id is not None and await retry_while_database_unavailable(
            has_lost, "git operation", operation=row.id
        ):
            raise OwnerWithoutAccessError(
                "The user who requested this operation was disabled or no longer has access to the project, so it was not done."
            )

    async def finish(
        self,
        job: Job,
        status: OperationStatus,
        *,
        detail: OperationDetail | None = None,
        error: SandyardError | None = None,
    ) -> None:
        """Store the result. If that fails, store a failure, so that the operation always ends."""
        write = partial(retry_while_database_unavailable, what="git operation", operation=job.operation.id)
        try:
            await write(lambda: self._write_result(job, status, detail or {}, error))
        except SandyardError:
            raise  # the database is closed: `recover` will end the operation
        except Exception as write_error:
            log.error("git_operation_not_written", operation=job.operation.id, exc=write_error)  # noqa: TRY400
            failure = SandyardError(
                "The operation has finished, but its result could not be stored; see the platform's log."
            )
            await write(lambda: self._write_result(job, OperationStatus.FAILED, {}, failure))

    async def _write_result(
        self, job: Job, status: OperationStatus, detail: OperationDetail, error: SandyardError | None
    ) -> None:
        async with self._database.transaction() as tx:
            row = await tx.session.get(GitOperation, job.operation.id)
            if row is None:
                return  # its session was deleted meanwhile
            row.status, row.finished_at = status, utc_now()
            if error is not None:
                message, extra = make_storable(error.message), make_json_storable(dict(error.extra))
                row.error, row.error_code = message, error.code
                row.detail = {"failure": {"status": error.status, "extra": extra}}
                tx.emit("git.failed", **_make_event_fields(row, job.sandbox), error=message, code=error.code, **extra)
                log.info("git_operation_failed", operation=row.id, kind=row.kind, code=error.code, reason=message)
            else:
                row.detail = make_json_storable(detail)
                tx.emit("git.completed", **_make_event_fields(row, job.sandbox), detail=row.detail)

    @contextlib.asynccontextmanager
    async def wait_turn(self, job: Job, repository: str, requester: str) -> AsyncIterator[None]:
        row = job.operation
        outer = self._repositories.get(row.id)
        self._repositories[row.id] = repository
        turn = self._queue.enter(repository, id=row.id, requester=requester)
        try:
            if not turn.done():
                await self._set_status(job, OperationStatus.QUEUED, "git.queued", position=self.get_position(row.id))
                await turn
                await self._require_access(job)
                await self._set_status(job, OperationStatus.RUNNING, "git.started", position=0)
            yield
        finally:
            self._queue.leave(repository, row.id)
            if outer is None:
                del self._repositories[row.id]
            else:
                self._repositories[row.id] = outer

    async def _set_status(self, job: Job, status: OperationStatus, event: str, **data: Any) -> None:
        async with self._database.transaction() as tx:
            row = await tx.session.get(GitOperation, job.operation.id)
            if row is not None:
                row.status = status
                tx.emit(event, **_make_event_fields(row, job.sandbox), **data)

    async def store_arguments(self, operation_id: str, arguments: OperationArguments) -> GitOperation:
        async with self._database.transaction() as tx:
            row = await tx.session.get(GitOperation, operation_id)
            if row is None:
                raise NotFoundError(f"There is no git operation {operation_id[:60]!r}.")
            row.arguments = {**row.arguments, **arguments}
        return row


class _Reporter:
    """Reports the progress of an operation in order, at most once per second.

    The first `MAX_IMMEDIATE_REPORTS` new steps are reported at once.
    """

    def __init__(self, database: Database, row: GitOperation, sandbox: Sandbox, tasks: TaskSet) -> None:
        self._database = database
        self._event_fields = _make_event_fields(row, sandbox)
        self._tasks = tasks
        self._step = ""
        self._reported_steps = 0
        self._reported_at = 0.0
        self._last_report: asyncio.Task[None] | None = None

    def __call__(self, what: str, percent: int | None = None) -> None:
        now = asyncio.get_running_loop().time()
        new = what != self._step and self._reported_steps < MAX_IMMEDIATE_REPORTS
        if not new and now - self._reported_at < REPORT_INTERVAL_S:
            return
        self._step, self._reported_at, self._reported_steps = what, now, self._reported_steps + new
        self._last_report = self._tasks.spawn(self._report(self._last_report, what, percent))

    async def flush(self) -> None:
        """Wait until everything has been reported."""
        if self._last_report is not None:
            await asyncio.wait((self._last_report,))

    async def _report(self, previous: asyncio.Task[None] | None, what: str, percent: int | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        async with self._database.transaction() as tx:
            tx.emit("git.progress", **self._event_fields, what=what[:200], percent=percent)


def _make_event_fields(row: GitOperation, sandbox: Sandbox) -> dict[str, Any]:
    return {
        **get_sandbox_event_fields(sandbox),
        "project_id": row.project_id,
        "operationId": row.id,
        "operation": row.kind,
    }
