"""Remove sandboxes that were killed or are gone, and watch the others for an unexpected end. Every trace is removed,
however long the driver takes. A sandbox whose processes ended by themselves keeps its files: `on_stopped` decides what
happens next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sandyard.engine.contract import Condition, Handle
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.errors import make_not_found_error
from sandyard.engine.sandboxes.ledger import Ledger
from sandyard.engine.sandboxes.model import LogLevel, PauseKind, Sandbox
from sandyard.engine.sandboxes.registry import LiveSandbox
from sandyard.kit.errors import BusyError, SandyardError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
_ALIVE = frozenset({Condition.RUNNING, Condition.FROZEN, Condition.SUSPENDED})
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class SandboxRemover:
    """Removes and watches sandboxes. A kill deletes the row first: from then on the sandbox does not exist. If the
    engine dies before the driver is done, the next `driver.open` finds a sandbox that is not listed and removes it."""

    def __init__(self, ledger: Ledger, calls: DriverCalls, spawn: Spawn, *, interrupt_timeout_s: float) -> None:
        self._ledger = ledger
        self._calls = calls
        self._spawn = spawn
        self._interrupt_timeout_s = interrupt_timeout_s
        self._removing: dict[str, Sandbox] = {}
        self._discarded: list[Handle] = []  # without a record, and not removed yet; several may have the same id
        self._listeners: list[Callable[[Sandbox], None]] = []
        self.on_stopped: Callable[[LiveSandbox, str], None] = lambda sandbox, reason: None
        """Called with the reason when the processes of a running sandbox ended and its file system remains."""

    @property
    def removing(self) -> tuple[Sandbox, ...]:
        """Sandboxes without a record that the driver has not removed yet: they still use capacity and snapshots."""
        return tuple(self._removing.values())

    def add_listener(self, listener: Callable[[Sandbox], None]) -> None:
        """Register `listener(record)`, which is called when the driver has removed a sandbox."""
        self._listeners.append(listener)

    async def kill(self, sandbox: LiveSandbox, event: str) -> None:
        """Kill a sandbox. Raises NotFoundError if another kill was first, and BusyError if the driver does not finish
        in time; it is then retried until it succeeds."""
        if sandbox.removal_reason is not None:
            raise make_not_found_error(sandbox.id)
        self._ledger.remove(sandbox, event, reason="killed")
        await self.remove(sandbox)

    async def remove(self, sandbox: LiveSandbox) -> None:
        """Let the driver remove a sandbox whose record is gone."""
        self._removing[sandbox.id] = sandbox.record
        has_lock = await self._interrupt(sandbox)
        try:
            await self._calls.run("kill", sandbox.id, self._calls.driver.kill(sandbox.record.handle))
        except SandyardError as error:
            self._spawn(self._retry_removal(sandbox.record.handle, sandbox.record))
            raise BusyError(
                f"Sandbox '{sandbox.id}' was killed, but the driver could not remove it yet; "
                f"the engine keeps trying. {error.message}"
            ) from error
        finally:
            if has_lock:
                sandbox.lock.release()
        self._finish_removal(sandbox.record)

    async def remove_unrecorded(self, handle: Handle) -> None:
        """Remove a sandbox without a record and return when it is gone; if that fails, it is removed later."""
        try:
            await self._calls.run("kill", handle.id, self._calls.driver.kill(handle))
        except SandyardError:
            self.discard(handle)

    def discard(self, handle: Handle) -> None:
        """Remove a sandbox that never got a record, in the background."""
        self._discarded.append(handle)
        self._spawn(self._retry_removal(handle, None))

    async def finish_discards(self) -> None:
        """Remove what `discard` has not removed yet. Called when the engine stops, once its tasks have ended: a driver with a running
        sandbox leaves everything on the machine for it."""
        kills = (self._calls.run("kill", handle.id, self._calls.driver.kill(handle)) for handle in self._discarded)
        await asyncio.gather(*kills, return_exceptions=True)
        self._discarded.clear()

    def watch(self, sandbox: LiveSandbox) -> None:
        """Watch this running or frozen sandbox for an unexpected end."""
        self.unwatch(sandbox)
        sandbox.watch = asyncio.ensure_future(self._watch(sandbox))

    def unwatch(self, sandbox: LiveSandbox) -> None:
        if sandbox.watch is not None:
            sandbox.watch.cancel()
            sandbox.watch = None

    async def _interrupt(self, sandbox: LiveSandbox) -> bool:
        """Let an operation in progress finish if it is quick, otherwise cancel it. Return whether the lock is held."""
        if not sandbox.lock.locked():
            return await sandbox.lock.acquire()
        for _ in range(2):
            try:
                async with asyncio.timeout(self._interrupt_timeout_s):
                    return await sandbox.lock.acquire()
            except TimeoutError:
                self._calls.interrupt(sandbox.id)
        return False

    async def _retry_removal(self, handle: Handle, record: Sandbox | None) -> None:
        """Retry until it is removed. A sandbox with a record was tried before, so the first attempt waits."""
        delay = FIRST_RETRY_S
        if record is not None:
            await self._ledger.clock.sleep(delay)
        while True:
            try:
                await self._calls.run("kill", handle.id, self._calls.driver.kill(handle))
            except SandyardError as error:
                log.warning("sandbox_removal_failed", sandbox=handle.id, reason=error.message, retry_s=delay)
                await self._ledger.clock.sleep(delay)
                delay = min(2 * delay, MAX_RETRY_S)
            else:
                break
        if record is not None:
            self._finish_removal(record)
        else:
            self._discarded = [other for other in self._discarded if other is not handle]

    def _finish_removal(self, record: Sandbox) -> None:
        self._removing.pop(record.id, None)
        for listener in self._listeners:
            listener(record)

    async def _watch(self, sandbox: LiveSandbox) -> None:
        """Wait until the sandbox has ended, and handle that."""
        driver = self._calls.driver
        while True:
            try:
                reason = await driver.wait_for_exit(sandbox.record.handle)
            except Exception as error:  # a broken watch must not look like a live sandbox
                reason = str(error)
            condition = await self._get_condition(sandbox)
            if condition not in _ALIVE:
                break
            await self._ledger.clock.sleep(FIRST_RETRY_S)  # then check again, because the reported end may be outdated
        while True:
            try:
                self._handle_end(sandbox, reason, condition)
            except SandyardError as error:
                log.warning("sandbox_end_not_recorded", sandbox=sandbox.id, reason=error.message)
                await self._ledger.clock.sleep(MAX_RETRY_S)
            else:
                return

    async def _get_condition(self, sandbox: LiveSandbox) -> Condition:
        """Return the condition, asking the driver as often as needed."""
        delay = FIRST_RETRY_S
        while True:
            try:
                return await self._calls.run(
                    "condition", sandbox.id, self._calls.driver.get_condition(sandbox.record.handle)
                )
            except SandyardError as error:
                log.warning("sandbox_watch_failed", sandbox=sandbox.id, reason=error.message)
                await self._ledger.clock.sleep(delay)
                delay = min(2 * delay, MAX_RETRY_S)

    def _handle_end(self, sandbox: LiveSandbox, reason: str, condition: Condition) -> None:
        if sandbox.removal_reason is not None:
            return
        sandbox.watch = None  # otherwise it would cancel itself while running this
        if condition is Condition.STOPPED and sandbox.record.running:
            self._ledger.notify_interrupted(sandbox.id, "died")
            self.on_stopped(sandbox, reason)
            return
        if condition is Condition.STOPPED:
            self._ledger.change(
                sandbox,
                f"The paused sandbox lost its memory: {reason}",
                level=LogLevel.ERROR,
                pause_kind=PauseKind.FILESYSTEM,
                memory_lost=reason,
            )
            return
        self._ledger.remove(sandbox, f"The sandbox ended: {reason}", reason="died", level=LogLevel.ERROR)
        self._spawn(self.remove(sandbox))
