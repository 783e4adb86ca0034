"""Background tasks with an owner: none is lost to the garbage collector, none fails silently, all end with their owner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Iterator
from typing import Any, TypeVar

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

T = TypeVar("T")
log = get_logger(__name__)

RECANCEL_S = 1.0
"""A task that swallowed its cancellation is cancelled again after this many seconds."""


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until each has ended. If the caller is cancelled while waiting, even repeatedly, it still waits for the tasks
    and then raises CancelledError."""
    now = asyncio.get_running_loop().time
    pending, cancelled = {task for task in tasks if not task.done()}, None
    while pending:
        for task in pending:
            task.cancel()
        deadline = now() + RECANCEL_S
        while pending and (remaining := deadline - now()) > 0:
            try:
                await asyncio.wait(pending, timeout=remaining)
            except asyncio.CancelledError as error:
                cancelled = error
            pending = {task for task in pending if not task.done()}
    if cancelled is not None:
        raise cancelled


@contextlib.contextmanager
def propagate_cancellation() -> Iterator[None]:
    """Wrap calls into libraries: if one swallows a cancellation or treats it as an error, the block still ends with CancelledError.
    `asyncio.wait_for` of Python 3.11 swallows a cancellation that arrives together with the result."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    except Exception:
        if task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    if task.cancelling() > before:
        raise asyncio.CancelledError


async def run_uninterrupted(work: Awaitable[T]) -> T:
    """Return the result of `work`. Cancellation is delayed until it has ended, because a thread, for example, cannot be stopped."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await task
        raise


class TaskSet:
    """The background tasks of one owner. `owner` names it in the log."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in the background. A failure is logged."""
        task = self._start(work)
        task.add_done_callback(self._on_end)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end even if the caller is cancelled. Then the result is discarded and a failure is logged."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(self._on_end)
            raise
        finally:
            if task.done():
                self._tasks.discard(task)

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 (a bound on waiting, nothing is cancelled)
        """Wait for running tasks to end. Return False if some still run after `timeout` seconds."""
        tasks = self._tasks - {asyncio.current_task()}
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=timeout)
            return not pending
        return True

    async def cancel(self) -> None:
        """Cancel all tasks. Tasks started later are cancelled immediately."""
        self._closed = True
        await end_tasks(*(task for task in self._tasks if task is not asyncio.current_task()))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=getattr(work, "__qualname__", "task"))
        self._tasks.add(task)
        if self._closed:
            task.cancel()
        return task

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, SandyardError):
            log.warning("task_failed", owner=self._owner, task=task.get_name(), reason=error.message)
        elif error is not None:
            log.error("task_crashed", owner=self._owner, task=task.get_name(), exc=error)
