"""Calls of drivers and agents with deadlines: a call completes, fails or is declared stuck, but never blocks its caller
forever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from sandyard.engine.contract import Driver
from sandyard.engine.sandboxes.counters import Counters
from sandyard.engine.sandboxes.errors import StuckError, make_not_found_error
from sandyard.kit import telemetry
from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import SandyardError, UnreachableError
from sandyard.kit.logging import get_logger

T = TypeVar("T")
log = get_logger(__name__)

# They never change the sandbox, whenever they end.
_READ_ONLY_OPERATIONS = frozenset({"condition", "stats", "connect", "init"})


class DriverCalls:
    """Runs each driver call as a separate task, so that it can be abandoned or cancelled by others."""

    def __init__(self, driver: Driver, get_deadline: Callable[[str], float], counters: Counters | None = None) -> None:
        self.driver = driver
        self.counters = counters or Counters(SystemClock())
        self._get_deadline = get_deadline  # seconds, by operation
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}
        self._abandoned: dict[asyncio.Task[None], tuple[str, str]] = {}
        self.on_late: Callable[[str], None] = lambda subject: None
        """Called with the sandbox's id when an abandoned call that may have changed the sandbox has ended."""

    async def run(
        self,
        operation: str,
        subject: str,
        call: Coroutine[Any, Any, T],
        *,
        if_late: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Run a driver call and return its result. `subject` is the sandbox's id.

        Raises StuckError after the operation's deadline: the call is cancelled and abandoned, and if it succeeds
        anyway, `if_late` gets its result. Raises NotFoundError if `interrupt` cancelled it. Kit errors of the driver
        are passed on; anything else becomes SandyardError.
        """

        def report(deadline: float) -> StuckError:
            log.error("driver_stuck", verb=operation, sandbox=subject, seconds=deadline)
            return StuckError(
                f"The driver {self.driver.name!r} did not complete {operation!r} for {subject} within {deadline:g} s."
            )

        name = f"driver.{operation}"
        with telemetry.span(name, sandbox=subject), self.counters.measure(name, subject):
            return await self._run(operation, subject, call, report, if_late)

    async def run_with_agent(self, operation: str, subject: str, call: Coroutine[Any, Any, T]) -> T:
        """Run an exchange with the sandbox's agent, like `run`. Raises UnreachableError after the deadline: programs in
        the sandbox can stop or replace the agent, so this says nothing about the driver."""

        def report(deadline: float) -> UnreachableError:
            log.warning("agent_not_responding", verb=operation, sandbox=subject, seconds=deadline)
            return UnreachableError(f"The agent of sandbox {subject} did not respond within {deadline:g} s.")

        name = f"agent.{operation}"
        with telemetry.span(name, sandbox=subject), self.counters.measure(name, subject):
            return await self._run(operation, subject, call, report, None)

    async def _run(
        self,
        operation: str,
        subject: str,
        call: Coroutine[Any, Any, T],
        report: Callable[[float], SandyardError],
        if_late: Callable[[T], Awaitable[None]] | None,
    ) -> T:
        """`report` logs that the deadline has passed, and returns the error to raise."""
        deadline = self._get_deadline(operation)
        task = asyncio.ensure_future(call)
        tasks = self._tasks.setdefault(subject, set())
        tasks.add(task)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline)
        except asyncio.CancelledError:
            self._abandon_call(operation, subject, task, if_late)
            raise
        finally:
            tasks.discard(task)
            if not tasks and self._tasks.get(subject) is tasks:
                del self._tasks[subject]
        if not done:
            self._abandon_call(operation, subject, task, if_late)
            raise report(deadline)
        return _get_result(operation, subject, task)

    async def wait_for_abandoned(self, subject: str) -> None:
        """Wait for abandoned calls for this sandbox, because the driver may still be running them. Raises StuckError if
        they do not end."""
        late = [
            task
            for task, (operation, owner) in self._abandoned.items()
            if owner == subject and operation not in _READ_ONLY_OPERATIONS
        ]
        if late:
            _, pending = await asyncio.wait(late, timeout=self._get_deadline("rest"))
            if pending:
                raise StuckError(
                    f"The driver is still busy with sandbox '{subject}' and does not finish. Try again later."
                )

    def interrupt(self, subject: str) -> None:
        """Cancel the calls in progress for this sandbox."""
        for task in tuple(self._tasks.get(subject, ())):
            task.cancel()

    def stop_tracking(self) -> None:
        """Stop waiting for abandoned calls. Their results are ignored from now on."""
        for task in tuple(self._abandoned):
            task.cancel()

    def _abandon_call(
        self, operation: str, subject: str, task: asyncio.Task[T], if_late: Callable[[T], Awaitable[None]] | None
    ) -> None:
        async def follow() -> None:
            # The driver may ignore the cancellation and create something without an owner.
            await asyncio.wait({task})
            if task.cancelled() or task.exception() is not None:
                return
            log.warning("driver_answered_late", verb=operation, sandbox=subject)
            if if_late is not None:
                await if_late(task.result())

        task.cancel()
        follower = asyncio.ensure_future(follow())
        self._abandoned[follower] = (operation, subject)
        follower.add_done_callback(self._on_abandoned_end)

    def _on_abandoned_end(self, late: asyncio.Task[None]) -> None:
        operation, subject = self._abandoned.pop(late)
        if operation not in _READ_ONLY_OPERATIONS:
            self.on_late(subject)
        if not late.cancelled() and late.exception() is not None:
            log.error("late_answer_not_undone", exc=late.exception())


def _get_result(operation: str, subject: str, task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise make_not_found_error(subject)
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, SandyardError):
        raise error
    log.error("driver_failed", verb=operation, sandbox=subject, exc=error)
    raise SandyardError(f"The driver failed at {operation!r} for {subject}: {type(error).__name__}: {error}") from error
