"""What is done to repositories, as rows: written before it is begun, told as events, begun again after a crash.

Of one sandbox one operation runs at a time, in the order they were asked for. Those that write to the repository wait for its
turn. What an operation does is its handler's; a handler may be run again from its beginning, and has to find what an earlier run
has done already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import delete, select

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.ids import ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.text import storable, storable_json
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import GitOperation, Sandbox
from sandyard.platform.domain.git.errors import GitTimeoutError
from sandyard.platform.domain.git.model import OperationKind, OperationStatus, Progress
from sandyard.platform.domain.git.turns import Turns
from sandyard.platform.domain.sandboxes.e2b import EngineError, SandboxNotRunningError
from sandyard.platform.domain.sandboxes.model import about, utc_now

log = get_logger(__name__)
T = TypeVar("T")
OPEN = (OperationStatus.QUEUED, OperationStatus.RUNNING)
ATTEMPTS = 100
PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Before what failed because the engine was away, or the sandbox had fallen asleep, is done once more."""
FORGOTTEN = timedelta(seconds=5)
"""One that is open so long and that nobody here carries out is begun by whoever waits for it."""
TOLD_EVERY_S, THINGS = 1.0, 50
Detail = dict[str, Any]
Handler = Callable[["Job"], Awaitable[Detail]]


class OperationFailedError(SandyardError):
    """The operation failed; this is its error."""

    def __init__(self, row: GitOperation) -> None:
        super().__init__(row.error or "The operation failed.")
        told = row.detail.get("failure", {})
        for name, value in (("code", row.error_code or "git_failed"), ("status", told.get("status", 409))):
            setattr(self, name, value)
        self._extra = {**told.get("extra", {}), "operationId": row.id}

    @property
    def extra(self) -> Mapping[str, object]:
        return self._extra


@dataclass(slots=True)
class Job:
    """One run of an operation, as its handler sees it."""

    operation: GitOperation
    sandbox: Sandbox
    progress: Progress
    _operations: Operations

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.operation.arguments

    @contextlib.asynccontextmanager
    async def turn(self, repository: str) -> AsyncIterator[None]:
        """Be the only one who writes to this repository. Until then the operation is shown as queued."""
        async with self._operations.turn_of(self, repository):
            yield

    async def note(self, **arguments: Any) -> None:
        """Remember something for a run after a crash, before acting on it."""
        self.operation = await self._operations.note(self.operation.id, arguments)


class Operations:
    def __init__(self, database: Database, turns: Turns) -> None:
        self._database = database
        self._turns = turns
        self.handlers: dict[OperationKind, Handler] = {}
        self.tasks = TaskSet("git operations")
        self._running: dict[str, asyncio.Task[None]] = {}
        self._carried: set[str] = set()
        self._repositories: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """What is under way is begun again by the next process."""
        await self.tasks.cancel()

    # asking ------------------------------------------------------------------------------------------------------------

    def draft(
        self,
        tx: Transaction,
        kind: OperationKind,
        sandbox: Sandbox,
        *,
        project_id: str | None,
        user_id: str | None,
        arguments: Mapping[str, Any] | None = None,
        status: OperationStatus = OperationStatus.QUEUED,
    ) -> GitOperation:
        """Written in the caller's transaction; then call `begin`, or `carry_out` for one that is `running`."""
        now, running = utc_now(), status == OperationStatus.RUNNING
        row = GitOperation(
            id=ordered_id("gop_"),
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
        tx.emit("git.started" if running else "git.queued", **_about(row, sandbox))
        return row

    async def submit(
        self,
        kind: OperationKind,
        sandbox: Sandbox,
        *,
        project_id: str | None,
        user_id: str | None,
        **arguments: Any,
    ) -> GitOperation:
        """A push that is asked for while the last thing asked of the sandbox is the same push, and nothing of it is done
        yet, is that one: whoever asks again after each of many crashes must not make a queue of it."""
        async with self._database.transaction() as tx:
            row = await self._waiting(tx, sandbox) if kind is OperationKind.PUSH else None
            if row is None or (row.kind, row.user_id) != (kind, user_id):
                row = self.draft(tx, kind, sandbox, project_id=project_id, user_id=user_id, arguments=arguments)
        self.begin(row)
        return row

    async def _waiting(self, tx: Transaction, sandbox: Sandbox) -> GitOperation | None:
        """The last operation asked of it, if it is still to be begun in this process."""
        query = select(GitOperation).where(GitOperation.sandbox_id == sandbox.id, GitOperation.status.in_(OPEN))
        row = (await tx.session.scalars(query.order_by(GitOperation.id.desc()).limit(1))).first()
        return None if row is None or row.id in self._carried else row

    def begin(self, row: GitOperation) -> None:
        """Run it in the background. To begin twice is to begin once."""
        if row.id in self._running:
            return
        assert row.sandbox_id is not None
        lock = self._locks.get(row.sandbox_id)
        if lock is None:
            lock = self._locks[row.sandbox_id] = asyncio.Lock()
        task = self._running[row.id] = self.tasks.spawn(self._run(row.id, row.sandbox_id, lock))
        task.add_done_callback(lambda _: self._running.pop(row.id, None))

    async def recover(self, older_than: timedelta = timedelta(0)) -> int:
        """Begin again what an earlier process, or this one while the database was away, has not ended, in the order in which it was
        asked for. What runs here is left alone."""
        async with self._database.reading() as session:
            query = select(GitOperation).where(GitOperation.status.in_(OPEN)).order_by(GitOperation.id)
            query = query.where(GitOperation.created_at <= utc_now() - older_than)
            found = (await session.scalars(query)).all()
        rows = [row for row in found if row.id not in self._running and row.id not in self._carried]
        for row in rows:
            self.begin(row)
        return len(rows)

    async def wait(self, operation_id: str, timeout_s: float | None = None) -> GitOperation:
        """The operation when it is over, or as it is after so many seconds. Cancelling this does not end it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    if (task := self._running.get(operation_id)) is not None:
                        await asyncio.wait((task,))
                    row = await self.get(operation_id)
                    if OperationStatus(row.status).over:
                        return row
                    if row.sandbox_id and utc_now() - row.created_at > FORGOTTEN and row.id not in self._carried:
                        self.begin(row)  # whoever has asked for it was cut off: its commit was not answered
                    elif task is None:
                        await asyncio.sleep(0.5)
        return await self.get(operation_id)

    async def get(self, operation_id: str) -> GitOperation:
        async with self._database.reading() as session:
            row = await session.get(GitOperation, operation_id)
        if row is None:
            raise NotFoundError(f"There is no git operation {operation_id[:60]!r}.")
        return row

    def position(self, operation_id: str) -> int | None:
        """How many are before it at its repository; None when it does not wait."""
        repository = self._repositories.get(operation_id)
        return None if repository is None else self._turns.position(repository, operation_id)

    async def trim(self, older_than: timedelta) -> None:
        """Forget what ended longer ago."""
        async with self._database.transaction() as tx:
            await tx.session.execute(delete(GitOperation).where(GitOperation.finished_at < utc_now() - older_than))

    # running -----------------------------------------------------------------------------------------------------------

    async def _run(self, operation_id: str, sandbox_id: str, lock: asyncio.Lock) -> None:
        async with lock:
            begun = await self._while_away(operation_id, lambda: self._note_begun(operation_id, sandbox_id))
            if begun is not None:
                await self.carry_out(*begun)

    async def _note_begun(self, operation_id: str, sandbox_id: str) -> tuple[GitOperation, Sandbox] | None:
        async with self._database.transaction() as tx:
            query = select(GitOperation, Sandbox).join(Sandbox, Sandbox.id == sandbox_id)
            found = (await tx.session.execute(query.where(GitOperation.id == operation_id))).first()
            if found is None or OperationStatus(found[0].status).over:
                return None
            row, sandbox = found
            row.status, row.attempts = OperationStatus.RUNNING, row.attempts + 1
            row.started_at = row.started_at or utc_now()
            tx.emit("git.started", **_about(row, sandbox))
        return row, sandbox

    async def _while_away(self, operation_id: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._database.retry_while_away(work, "git operation", operation=operation_id)

    async def carry_out(self, row: GitOperation, sandbox: Sandbox, timeout_s: float | None = None) -> None:
        """Run its handler and write down what came of it."""
        reporter = _Reporter(self._database, row, sandbox, self.tasks)
        job = Job(row, sandbox, reporter, self)
        self._carried.add(row.id)
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    detail = await self._handle(job, PAUSES if timeout_s is None else ())
                finally:
                    await reporter.told()
        except TimeoutError:
            await self._end(job, OperationStatus.FAILED, error=GitTimeoutError())
        except SandyardError as error:
            await self._end(job, OperationStatus.FAILED, error=error)
        except Exception as error:
            log.error("git_operation_crashed", operation=row.id, kind=row.kind, exc=error)  # noqa: TRY400 - exc= is our own word
            await self._end(job, OperationStatus.FAILED, error=SandyardError("Internal error; see the platform's log."))
        else:
            await self._end(job, OperationStatus.COMPLETED, detail=detail)
        finally:
            self._carried.discard(row.id)

    async def _handle(self, job: Job, pauses: Sequence[float]) -> Detail:
        if job.operation.attempts > ATTEMPTS:
            raise SandyardError(
                f"The operation was started {ATTEMPTS} times, and each time the platform stopped before it finished."
            )
        known = self.handlers[OperationKind(job.operation.kind)]

        async def handler(job: Job) -> Detail:
            return await self._while_away(job.operation.id, lambda: known(job))

        for pause in pauses:
            try:
                return await handler(job)
            except EngineError as error:
                asleep = isinstance(error, SandboxNotRunningError)  # behind our back: by now its row says so
                if job.operation.kind == OperationKind.DISCARD or not (error.transient or asleep):
                    raise
                log.info(
                    "git_operation_again", operation=job.operation.id, kind=job.operation.kind, reason=error.message
                )
                job.progress("waiting for the engine")
                await asyncio.sleep(pause)
        return await handler(job)

    async def _end(
        self, job: Job, status: OperationStatus, *, detail: Detail | None = None, error: SandyardError | None = None
    ) -> None:
        """Whatever it has to say, it ends."""
        write = partial(self._while_away, job.operation.id)
        try:
            await write(lambda: self._write_end(job, status, detail or {}, error))
        except SandyardError:
            raise  # it is closed: `recover` ends it
        except Exception as fault:
            log.error("git_operation_not_written", operation=job.operation.id, exc=fault)  # noqa: TRY400
            told = SandyardError(
                "The operation has finished, but its result could not be stored; see the platform's log."
            )
            await write(lambda: self._write_end(job, OperationStatus.FAILED, {}, told))

    async def _write_end(self, job: Job, status: OperationStatus, detail: Detail, error: SandyardError | None) -> None:
        async with self._database.transaction() as tx:
            row = await tx.session.get(GitOperation, job.operation.id)
            if row is None:
                return  # its session was deleted meanwhile
            row.status, row.finished_at = status, utc_now()
            if error is not None:
                message, extra = storable(error.message), storable_json(dict(error.extra))
                row.error, row.error_code = message, error.code
                row.detail = {"failure": {"status": error.status, "extra": extra}}
                tx.emit("git.failed", **_about(row, job.sandbox), error=message, code=error.code, **extra)
                log.info("git_operation_failed", operation=row.id, kind=row.kind, code=error.code, reason=message)
            else:
                row.detail = storable_json(detail)
                tx.emit("git.completed", **_about(row, job.sandbox), detail=row.detail)

    @contextlib.asynccontextmanager
    async def turn_of(self, job: Job, repository: str) -> AsyncIterator[None]:
        row = job.operation
        self._repositories[row.id] = repository
        turn = self._turns.enter(repository, id=row.id, who=row.sandbox_id or row.id)
        try:
            if not turn.done():
                await self._say(job, OperationStatus.QUEUED, "git.queued", position=self.position(row.id))
                await turn
                await self._say(job, OperationStatus.RUNNING, "git.started", position=0)
            yield
        finally:
            self._turns.leave(repository, row.id)
            self._repositories.pop(row.id, None)

    async def _say(self, job: Job, status: OperationStatus, event: str, **data: Any) -> None:
        async with self._database.transaction() as tx:
            row = await tx.session.get(GitOperation, job.operation.id)
            if row is not None:
                row.status = status
                tx.emit(event, **_about(row, job.sandbox), **data)

    async def note(self, operation_id: str, arguments: Mapping[str, Any]) -> GitOperation:
        async with self._database.transaction() as tx:
            row = await tx.session.get(GitOperation, operation_id)
            if row is None:
                raise NotFoundError(f"There is no git operation {operation_id[:60]!r}.")
            row.arguments = {**row.arguments, **arguments}
        return row


class _Reporter:
    """Tells how far an operation is, in order: once a second at most, and the first `THINGS` new things at once."""

    def __init__(self, database: Database, row: GitOperation, sandbox: Sandbox, tasks: TaskSet) -> None:
        self._database = database
        self._about = _about(row, sandbox)
        self._tasks = tasks
        self._what = ""
        self._things = 0
        self._at = 0.0
        self._telling: asyncio.Task[None] | None = None

    def __call__(self, what: str, percent: int | None = None) -> None:
        now = asyncio.get_running_loop().time()
        new = what != self._what and self._things < THINGS
        if not new and now - self._at < TOLD_EVERY_S:
            return
        self._what, self._at, self._things = what, now, self._things + new
        self._telling = self._tasks.spawn(self._tell(self._telling, what, percent))

    async def told(self) -> None:
        """All that there was to say is said."""
        if self._telling is not None:
            await asyncio.wait((self._telling,))

    async def _tell(self, before: asyncio.Task[None] | None, what: str, percent: int | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        async with self._database.transaction() as tx:
            tx.emit("git.progress", **self._about, what=what[:200], percent=percent)


def _about(row: GitOperation, sandbox: Sandbox) -> dict[str, Any]:
    return {**about(sandbox), "project_id": row.project_id, "operationId": row.id, "operation": row.kind}
