"""Driver calls with deadlines: a call completes, fails or is declared stuck, but never blocks its caller forever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from sandyard.engine.contract import Driver
from sandyard.engine.sandboxes.errors import StuckError, no_such_sandbox
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

T = TypeVar("T")
log = get_logger(__name__)

_HARMLESS = frozenset({"condition", "stats", "connect", "init"})  # they never change the sandbox, whenever they end


class DriverCalls:
    """Runs each driver call as a separate task, so that it can be abandoned or cancelled by others."""

    def __init__(self, driver: Driver, deadline: Callable[[str], float]) -> None:
        self.driver = driver
        self._deadline = deadline  # seconds, by operation
        self._under_way: dict[str, set[asyncio.Task[Any]]] = {}
        self._late: dict[asyncio.Task[None], tuple[str, str]] = {}
        self.on_late: Callable[[str], None] = lambda subject: (
            None
        )  # called when an abandoned call that may have changed something has ended

    async def run(
        self,
        verb: str,
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
        deadline = self._deadline(verb)
        task = asyncio.ensure_future(call)
        tasks = self._under_way.setdefault(subject, set())
        tasks.add(task)
        try:
            done, _ = await asyncio.wait({task}, timeout=deadline)
        except asyncio.CancelledError:
            self._give_up(verb, subject, task, if_late)
            raise
        finally:
            tasks.discard(task)
            if not tasks and self._under_way.get(subject) is tasks:
                del self._under_way[subject]
        if not done:
            self._give_up(verb, subject, task, if_late)
            log.error("driver_stuck", verb=verb, sandbox=subject, seconds=deadline)
            raise StuckError(
                f"The driver {self.driver.name!r} did not complete {verb!r} for {subject} within {deadline:g} s."
            )
        return _get_result(verb, subject, task)

    async def wait_for_abandoned(self, subject: str) -> None:
        """Wait for abandoned calls for this sandbox, because the driver may still be running them. Raises StuckError if
        they do not end."""
        late = [task for task, (verb, whose) in self._late.items() if whose == subject and verb not in _HARMLESS]
        if late:
            _, pending = await asyncio.wait(late, timeout=self._deadline("rest"))
            if pending:
                raise StuckError(
                    f"The driver is still busy with sandbox '{subject}' and does not finish. Try again later."
                )

    def interrupt(self, subject: str) -> None:
        """Cancel the calls in progress for this sandbox."""
        for task in tuple(self._under_way.get(subject, ())):
            task.cancel()

    def abandon(self) -> None:
        """Stop tracking all calls."""
        for task in tuple(self._late):
            task.cancel()

    def _give_up(
        self, verb: str, subject: str, task: asyncio.Task[T], if_late: Callable[[T], Awaitable[None]] | None
    ) -> None:
        async def follow() -> None:
            # the driver may ignore the cancellation; nobody then owns what it created
            await asyncio.wait({task})
            if task.cancelled() or task.exception() is not None:
                return
            log.warning("driver_answered_late", verb=verb, sandbox=subject)
            if if_late is not None:
                await if_late(task.result())

        task.cancel()
        late = asyncio.ensure_future(follow())
        self._late[late] = (verb, subject)
        late.add_done_callback(self._on_late_end)

    def _on_late_end(self, late: asyncio.Task[None]) -> None:
        verb, subject = self._late.pop(late)
        if verb not in _HARMLESS:
            self.on_late(subject)
        if not late.cancelled() and late.exception() is not None:
            log.error("late_answer_not_undone", exc=late.exception())


def _get_result(verb: str, subject: str, task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise no_such_sandbox(subject)
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, SandyardError):
        raise error
    log.error("driver_failed", verb=verb, sandbox=subject, exc=error)
    raise SandyardError(f"The driver failed at {verb!r} for {subject}: {type(error).__name__}: {error}") from error
