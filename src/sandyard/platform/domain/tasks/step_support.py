"""Types and helpers that all steps of a round share: context, result, retries, cancellation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, Project, Step, Task
from sandyard.platform.db.models.task_details import StepDetail
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.e2b import EngineError, EngineQuotaError
from sandyard.platform.domain.tasks.model import AttemptStatus
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
T = TypeVar("T")
StepKey = tuple[str, int, int]
"""Attempt, round and number of a step: the key of its row."""

ENGINE_RETRY_S = 900.0
"""How long the engine may be unavailable before a step gives up."""
CANCEL_CHECK_S = 1.0
"""How often a long step checks for cancellation."""


class StepFailure(TypedDict):
    code: str
    message: str


class StepResult(TypedDict, total=False):
    """The result of a step, which the workflow records. Only `shown` is visible to people."""

    failed: StepFailure
    shown: StepDetail
    preparation: str  # of setup
    ok: bool  # of verify and push
    message: str
    words: str  # of verify: the prompt that asks the agent to fix what failed


class CancelledStep(Exception):  # noqa: N818 - not an error: a user asked for it
    """Cancellation was requested."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The attempt, task and project a step works on, and the user it works for."""

    attempt: Attempt
    task: Task
    project: Project
    caller: Principal

    @property
    def settings(self) -> ProjectSettings:
        return ProjectSettings.from_project(self.project)


class StepSupport:
    """Save a step's details, retry its calls to the engine, and end it if its attempt is cancelled."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save_detail(self, step_key: StepKey, detail: StepDetail) -> None:
        """Save details of the step, for a retry after a crash and to show them to users."""
        async with self._database.transaction() as tx:
            row = await tx.session.get(Step, step_key, with_for_update=True)
            if row is not None:
                row.detail = {**row.detail, **detail}

    async def retry_while_engine_unavailable(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry while the engine is unavailable or full."""
        started, pause = time.monotonic(), 0.5
        while True:
            try:
                return await work()
            except EngineError as error:
                is_temporary = error.transient or isinstance(error, EngineQuotaError)
                if not is_temporary or time.monotonic() - started > ENGINE_RETRY_S:
                    raise
                log.info("engine_awaited", code=error.code, reason=error.message)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)

    async def raise_if_cancelled(self, attempt_id: str) -> None:
        """Raise CancelledStep if the attempt is cancelled or no longer running."""
        async with self._database.reading() as session:
            row = await session.get(Attempt, attempt_id)
        if row is None or row.cancel_at is not None or row.status != AttemptStatus.RUNNING:
            raise CancelledStep

    async def wait_unless_cancelled(self, attempt_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work, and cancel it if the attempt is cancelled."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=CANCEL_CHECK_S)
                if not task.done():
                    await self.raise_if_cancelled(attempt_id)
            return task.result()
        finally:
            await end_tasks(task)
