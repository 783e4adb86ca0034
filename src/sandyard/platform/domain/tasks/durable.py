"""Durable execution with DBOS, on its own thread and event loop.

A workflow runs on that loop and is recorded step by step; the work of a step runs on the platform's loop, where all services live. DBOS
takes over its loop's default executor and blocks while it launches, so it gets its own loop. A step that was interrupted by a crash or a
shutdown is not recorded and starts again: every step must be idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID, WorkflowSerializationFormat
from dbos._serialization import DefaultSerializer
from sqlalchemy.engine import make_url

from sandyard.kit import telemetry
from sandyard.kit.logging import get_logger
from sandyard.platform.domain.sandboxes.commands import StoppingError

log = get_logger(__name__)
T = TypeVar("T")

VERSION = "1"
"""The version of the workflow below. Another version would strand workflows in progress, so a changed workflow must still replay them."""
StepRunner = Callable[..., Coroutine[Any, Any, Any]]
RoundFunction = Callable[[StepRunner, str, int], Coroutine[Any, Any, None]]
"""Called with a function that runs steps, an attempt and a round. It must be deterministic: it depends only on recorded step results."""
DELETE_BATCH = 500
"""Number of rounds deleted in one batch."""
_FAILED_STATUSES = ("ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
_current: Durable | None = None


def _refuse_pickle(_: DefaultSerializer, serialized_data: str) -> Any:
    raise ValueError("The database contains pickled data, which is not loaded because it could run programs.")


# each row says in which format it is, so a backup that somebody has changed could bring pickled data; there is no setting against it
DefaultSerializer.deserialize = _refuse_pickle  # type: ignore[assignment]


@DBOS.workflow(
    name="attempt_round", max_recovery_attempts=None, serialization_type=WorkflowSerializationFormat.PORTABLE
)
async def _workflow(attempt_id: str, number: int) -> None:
    assert _current is not None
    await _current.run(attempt_id, number)


class Durable:
    """The durable executor. Only one per process, because DBOS allows one.

    It opens on first use and then continues workflows that an earlier process left unfinished.
    """

    def __init__(
        self,
        database_url: str,
        executor_id: str,
        run_round: RoundFunction,
        find_traceparent: Callable[[str], Awaitable[str | None]] | None = None,
    ) -> None:
        """`find_traceparent` returns the span that started the current round of an attempt."""
        self._url = database_url
        self._executor_id = executor_id
        self._run_round = run_round
        self._find_traceparent = find_traceparent
        self._main_loop = asyncio.get_running_loop()
        self._open_lock = asyncio.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._engine: sa.Engine | None = None
        self._closed = False

    async def _open(self) -> None:
        async with self._open_lock:
            if self._closed:
                raise StoppingError("The platform is stopping. The work continues when it starts again.")
            if self._thread is None:
                await self._start()

    async def _start(self) -> None:
        global _current  # noqa: PLW0603 - a recovered workflow has nothing else to find its services by
        if _current is not None:
            raise RuntimeError("only one durable executor is allowed per process")
        _current = self
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run_thread, args=(ready,), name="workflows", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(ready)
        except BaseException:
            _current = self._thread = None
            raise

    async def begin(self, attempt_id: str, number: int) -> None:
        """Start the round of an attempt, unless it was started before."""
        await self._run_on_dbos_loop(self._begin(attempt_id, number))

    async def get_state(self, attempt_id: str, number: int) -> str | None:
        """Return `running`, `done` or `broken`; None if it was never started."""
        return await self._run_on_dbos_loop(self._get_state(attempt_id, number))

    async def tidy(self, older_than: timedelta) -> None:
        """Delete the records of rounds that ended longer ago. Their results are stored in the attempts."""
        if self._thread is not None:
            await self._run_on_dbos_loop(self._tidy(datetime.now(UTC) - older_than))

    async def close(self) -> None:
        """Stop workflows where they are. They continue when a platform opens again."""
        global _current  # noqa: PLW0603
        self._closed = True
        async with self._open_lock:  # stopping a loop while it launches has no effect
            if self.loop is not None and self._thread is not None:
                self.loop.call_soon_threadsafe(self.loop.stop)
                await asyncio.to_thread(self._thread.join)
                _current = self._thread = None

    async def run(self, attempt_id: str, number: int) -> None:
        """Run a workflow, on the DBOS loop."""
        parent = None
        if telemetry.is_enabled() and self._find_traceparent is not None:
            parent = await self._run_on_main_loop(self._find_traceparent(attempt_id))
        with telemetry.span("round", parent=parent, attempt=attempt_id, round=number):
            await self._run_round(self._run_step, attempt_id, number)

    async def _run_step(self, name: str, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        async def work() -> T:
            with telemetry.span(f"step.{name}"):
                return await self._run_on_main_loop(function(*arguments))

        return await DBOS.run_step_async({"name": name}, work)

    async def _begin(self, attempt_id: str, number: int) -> None:
        name = f"{attempt_id}-{number}"
        if await DBOS.get_workflow_status_async(name) is not None:
            return
        with SetWorkflowID(name):
            await DBOS.start_workflow_async(_workflow, attempt_id, number)

    async def _get_state(self, attempt_id: str, number: int) -> str | None:
        workflow = await DBOS.get_workflow_status_async(f"{attempt_id}-{number}")
        if workflow is None:
            return None
        if workflow.status == "SUCCESS":
            return "done"
        return "broken" if workflow.status in _FAILED_STATUSES else "running"

    async def _tidy(self, ended_before: datetime) -> None:
        ids: list[str] | None = None
        while ids is None or len(ids) == DELETE_BATCH:
            found = await DBOS.list_workflows_async(
                status=["SUCCESS", *_FAILED_STATUSES],
                completed_before=ended_before.isoformat(),
                limit=DELETE_BATCH,
                load_input=False,
                load_output=False,
            )
            ids = [workflow.workflow_id for workflow in found]
            if ids:
                await DBOS.delete_workflows_async(ids)

    # two event loops -----------------------------------------------------------------------------------------------------

    async def _run_on_dbos_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the DBOS loop and wait for it on ours."""
        try:
            await self._open()
        except BaseException:
            work.close()
            raise
        assert self.loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def _run_on_main_loop(self, work: Awaitable[T]) -> T:
        """Run work on our loop and wait for it on the DBOS loop. Cancelling the waiter cancels the work."""

        async def run() -> T:
            return await work

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._main_loop))

    def _run_thread(self, ready: Future[None]) -> None:
        """Run the thread: launch, serve, shut down."""
        loop = self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._launch())
        except BaseException as error:
            ready.set_exception(error)
            self._shut_down(loop)
            return
        ready.set_result(None)
        loop.run_forever()
        self._shut_down(loop)

    async def _launch(self) -> None:
        logger = logging.getLogger("dbos")  # with a handler present, DBOS adds none of its own
        logger.handlers, logger.propagate = [logging.NullHandler()], True
        config: DBOSConfig = {
            "name": "sandyard",
            "application_version": VERSION,
            "executor_id": self._executor_id,
            "log_level": "WARNING",
            "use_listen_notify": False,
            "enable_otlp": False,
            "serializer": DBOSPortableJSONSerializer(),
            **self._get_storage_config(),
        }
        DBOS(config=config)
        DBOS.launch()  # on this thread, so that its coroutines run on this loop

    def _get_storage_config(self) -> DBOSConfig:
        url = make_url(self._url)
        if url.get_backend_name() == "sqlite":
            self._engine = sa.create_engine(url.set(drivername="sqlite"), connect_args={"check_same_thread": False})
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            return {"system_database_engine": self._engine, "system_database_url": str(url)}
        psycopg = url.set(drivername="postgresql").render_as_string(hide_password=False)
        return {"system_database_url": psycopg, "sys_db_pool_size": 5}

    def _shut_down(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(Exception):
            left = [task for task in asyncio.all_tasks(loop) if not task.done()]
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=5))
        for close_part in (DBOS.destroy, loop.close, self._engine.dispose if self._engine else None):
            try:
                if close_part is not None:
                    close_part()
            except Exception as error:
                log.warning("workflows_not_closed", reason=str(error))


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = "IMMEDIATE"
    for pragma in ("busy_timeout=30000", "foreign_keys=ON", "journal_mode=WAL", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")
