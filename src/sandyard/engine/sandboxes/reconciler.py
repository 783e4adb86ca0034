"""Make the host match the record.

Runs for every sandbox when the engine starts, and for one sandbox after its processes ended or a driver operation
failed or got stuck. The record takes precedence where possible, because it is what the client knows. If memory is
lost that is not possible, and the record is changed to say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sandyard.engine.contract import Condition, Driver, Handle
from sandyard.engine.sandboxes.agent import send_identity
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.ledger import Ledger
from sandyard.engine.sandboxes.model import Intent, LogLevel, OnTimeout, PauseKind, Sandbox, State
from sandyard.engine.sandboxes.registry import AUTOMATIC_BOOTS, LiveSandbox
from sandyard.engine.sandboxes.remover import SandboxRemover, Spawn
from sandyard.engine.sandboxes.start_command import run_start_command
from sandyard.engine.sandboxes.trust import EgressTrust
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

PROCESSES_ENDED: Final = "Its processes ended"
_EXPECTED_CONDITIONS: Final = {
    PauseKind.MEMORY: Condition.FROZEN,
    PauseKind.DISK: Condition.SUSPENDED,
    PauseKind.FILESYSTEM: Condition.STOPPED,
    None: Condition.RUNNING,
}
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
BOOTS_WITHIN_S = 600.0  # see AUTOMATIC_BOOTS
MAX_CONCURRENT_BOOTS = 4  # automatic ones, so that many of them leave room for clients


def is_consistent(sandbox: LiveSandbox, observed: Condition) -> bool:
    """Return whether nothing has to be done for this sandbox."""
    return sandbox.record.intent is None and _EXPECTED_CONDITIONS[sandbox.record.pause_kind] is observed


def needs_boot(sandbox: LiveSandbox, observed: Condition, now: float) -> bool:
    """Return whether the sandbox should be running, has time left, and its processes are gone."""
    record = sandbox.record
    return (
        observed is Condition.STOPPED and record.running and record.intent is not Intent.STOP and record.ends_at > now
    )


@asynccontextmanager
async def _block_traffic(sandbox: LiveSandbox) -> AsyncIterator[None]:
    """Make traffic wait. The caller holds the lock. If its operation already makes traffic wait, that continues until
    the operation ends."""
    if sandbox.changing is not None:
        yield
        return
    sandbox.changing = asyncio.get_running_loop().create_future()
    try:
        yield
    finally:
        sandbox.changing.set_result(None)
        sandbox.changing = None


class Reconciler:
    """Makes record and host match. `on_boot` is called after a sandbox was booted again because its processes had
    ended."""

    def __init__(
        self,
        ledger: Ledger,
        calls: DriverCalls,
        remover: SandboxRemover,
        spawn: Spawn,
        trust: EgressTrust,
        *,
        start_timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._remover = remover
        self._spawn = spawn
        self._trust = trust
        self._start_timeout_s = start_timeout_s
        self._recheck_events: dict[str, asyncio.Event] = {}
        self._boot_concurrency = asyncio.Semaphore(MAX_CONCURRENT_BOOTS)
        self.on_boot: Callable[[LiveSandbox], None] = lambda sandbox: None

    @property
    def _driver(self) -> Driver:
        return self._calls.driver

    @asynccontextmanager
    async def recheck_on_failure(self, sandbox: LiveSandbox) -> AsyncIterator[None]:
        """Recheck the sandbox if the block fails: its condition is then determined in the background, and before its
        next operation."""
        try:
            yield
        except BaseException:
            self.recheck(sandbox)
            raise

    def recheck(self, sandbox: LiveSandbox) -> None:
        """Mark the condition as unknown. One task at a time determines it; a new call makes it check again at once."""
        if sandbox.removal_reason is not None:
            return
        sandbox.failure_count += 1
        requested = self._recheck_events.get(sandbox.id)
        if requested is None:
            requested = self._recheck_events[sandbox.id] = asyncio.Event()
            self._spawn(self._inspect_until_known(sandbox, requested))
        requested.set()

    def handle_stop(self, sandbox: LiveSandbox, reason: str) -> None:
        """Handle that the processes of a running sandbox have ended: it is booted again from its file system, in the
        background and before its next operation."""
        sandbox.lost_reason = f"{PROCESSES_ENDED} ({reason})"
        self.recheck(sandbox)

    def handle_doubt(self, sandbox: LiveSandbox, reason: str) -> None:
        """Handle that the sandbox may have changed unnoticed: its condition is determined in the background and before its
        next operation. `reason` is recorded if its processes are gone."""
        sandbox.lost_reason = reason
        self.recheck(sandbox)

    async def inspect(self, sandbox: LiveSandbox) -> None:
        """Ask the driver for the condition and make record and host match. Does nothing if the condition is known. The
        caller holds the lock. Raises StuckError if the driver does not answer."""
        while sandbox.failure_count and sandbox.removal_reason is None:
            failures = sandbox.failure_count
            await self._calls.wait_for_abandoned(sandbox.id)
            observed = await self._calls.run("condition", sandbox.id, self._driver.get_condition(sandbox.record.handle))
            await self.reconcile(sandbox, observed, sandbox.lost_reason or PROCESSES_ENDED)
            sandbox.lost_reason = None
            if sandbox.failure_count == failures:  # otherwise an abandoned call ended in the meantime
                sandbox.failure_count = 0

    async def _inspect_until_known(self, sandbox: LiveSandbox, requested: asyncio.Event) -> None:
        """Inspect the sandbox until that succeeds, after growing delays. `requested` ends a delay."""
        delay = 0.0
        try:
            while sandbox.failure_count and sandbox.removal_reason is None:
                await self._wait_for_recheck(requested, delay)
                async with sandbox.lock:
                    try:
                        await self.inspect(sandbox)
                    except SandyardError as error:
                        delay = min(MAX_RETRY_S, max(FIRST_RETRY_S, 2 * delay))
                        log.warning(
                            "sandbox_condition_unknown", sandbox=sandbox.id, reason=error.message, retry_s=delay
                        )
        finally:
            del self._recheck_events[sandbox.id]

    async def _wait_for_recheck(self, requested: asyncio.Event, delay: float) -> None:
        """Wait for another request to check, or for `delay` seconds."""
        waits = {asyncio.ensure_future(requested.wait()), asyncio.ensure_future(self._ledger.clock.sleep(delay))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        requested.clear()

    async def reconcile(self, sandbox: LiveSandbox, observed: Condition, loss_reason: str) -> None:
        """Make record and host match. `loss_reason` says why processes are gone, if they are. Raises if the driver fails."""
        log.info("sandbox_found", sandbox=sandbox.id, record=sandbox.record.state.value, observed=observed.value)
        if observed is Condition.ABSENT:
            self._ledger.remove(sandbox, f"The sandbox is gone: {loss_reason}", reason="died", level=LogLevel.ERROR)
            self._spawn(self._remover.remove(sandbox))
            return
        if sandbox.record.running:
            await self._reconcile_running(sandbox, observed, loss_reason)
        else:
            await self._reconcile_paused(sandbox, observed, loss_reason)
        alive = sandbox.removal_reason is None and observed is not Condition.STOPPED
        if alive and sandbox.watch is None and sandbox.record.pause_kind in {None, PauseKind.MEMORY}:
            self._remover.watch(sandbox)

    async def _reconcile_running(self, sandbox: LiveSandbox, observed: Condition, loss_reason: str) -> None:
        record = sandbox.record
        if observed is Condition.STOPPED:
            await self._reconcile_ended(sandbox, loss_reason)
            return
        if observed is Condition.FROZEN:
            await self._calls.run("thaw", sandbox.id, self._driver.thaw(record.handle))
        elif observed is Condition.SUSPENDED:
            handle = await self._calls.run("restore", sandbox.id, self._driver.restore(record.handle))
            self._ledger.change(sandbox, handle=handle)
        if record.intent is Intent.NETWORK:
            await self._calls.run(
                "set_network", sandbox.id, self._driver.set_network(record.handle, record.network.policy)
            )
        if record.intent is not None:
            self._ledger.change(sandbox, intent=None)

    async def _reconcile_ended(self, sandbox: LiveSandbox, loss_reason: str) -> None:
        """Handle a sandbox that should be running but whose processes are gone."""
        record, now = sandbox.record, self._ledger.clock.now()
        self._remover.unwatch(sandbox)
        if record.intent is Intent.STOP:
            self._mark_paused(
                sandbox, "The sandbox was paused; only its file system is kept (finished after an interruption)", None
            )
        elif record.ends_at > now and self._ends_too_often(sandbox, now):
            self._mark_paused(
                sandbox,
                f"{loss_reason}, {AUTOMATIC_BOOTS + 1} times within {BOOTS_WITHIN_S / 60:.0f} minutes; the sandbox is paused, its "
                "file system is kept",
                loss_reason,
            )
        elif record.ends_at > now:
            try:
                async with _block_traffic(sandbox), self._boot_concurrency:
                    handle = await self.boot(sandbox)
            except SandyardError as error:
                # If it cannot be reached, this raises, and the boot is tried again later.
                await self._calls.run("condition", sandbox.id, self._driver.get_condition(record.handle))
                self._mark_paused(
                    sandbox, f"{loss_reason}, and the sandbox could not be booted again: {error.message}", loss_reason
                )
                self.recheck(sandbox)
                return
            sandbox.boots = (*sandbox.boots, now)[-AUTOMATIC_BOOTS:]
            self._ledger.change(
                sandbox,
                f"{loss_reason}; the sandbox was booted again from its file system",
                level=LogLevel.WARN,
                handle=handle,
                memory_lost=loss_reason,
                intent=None,
            )
            self._remover.watch(sandbox)
            self.on_boot(sandbox)
        elif record.on_timeout is OnTimeout.PAUSE:
            self._mark_paused(
                sandbox,
                f"{loss_reason}, and its timeout was reached; the sandbox is paused, its file system is kept",
                loss_reason,
            )
        else:
            self._ledger.remove(sandbox, "The sandbox was killed: its timeout was reached", reason="killed")
            self._spawn(self._remover.remove(sandbox))

    def _ends_too_often(self, sandbox: LiveSandbox, now: float) -> bool:
        return len(sandbox.boots) == AUTOMATIC_BOOTS and sandbox.boots[0] > now - BOOTS_WITHIN_S

    def _mark_paused(self, sandbox: LiveSandbox, event: str, loss_reason: str | None) -> None:
        """Record that the sandbox is paused without memory. `loss_reason` says why its memory was lost, or None if it was dropped on
        request."""
        now = self._ledger.clock.now()
        self._ledger.change(
            sandbox,
            event,
            level=LogLevel.WARN if loss_reason else LogLevel.INFO,
            state=State.PAUSED,
            pause_kind=PauseKind.FILESYSTEM,
            paused_at=now,
            ends_at=now,
            memory_lost=loss_reason,
            intent=None,
        )
        self._ledger.notify_interrupted(sandbox.id, "paused")

    async def _reconcile_paused(self, sandbox: LiveSandbox, observed: Condition, loss_reason: str) -> None:
        record = sandbox.record
        kind = record.pause_kind
        if observed is Condition.STOPPED and kind is PauseKind.FILESYSTEM:
            self._remover.unwatch(sandbox)
            if record.intent is not None:
                self._ledger.change(sandbox, intent=None)
        elif observed is Condition.STOPPED:
            self._remover.unwatch(sandbox)
            was_requested = record.intent is Intent.STOP
            self._ledger.change(
                sandbox,
                "The paused sandbox's memory was dropped"
                if was_requested
                else f"The paused sandbox lost its memory: {loss_reason}",
                level=LogLevel.WARN,
                pause_kind=PauseKind.FILESYSTEM,
                memory_lost=None if was_requested else loss_reason,
                intent=None,
            )
        elif kind is PauseKind.FILESYSTEM:
            self._remover.unwatch(sandbox)
            handle = await self._calls.run("stop", sandbox.id, self._driver.stop(record.handle))
            self._ledger.change(sandbox, handle=handle, intent=None)
        else:
            if observed is Condition.RUNNING:
                await self._calls.run("freeze", sandbox.id, self._driver.freeze(record.handle))
            found = PauseKind.DISK if observed is Condition.SUSPENDED else PauseKind.MEMORY
            if found is not kind or record.intent is not None:
                self._ledger.change(sandbox, pause_kind=found, intent=None)

    async def boot(self, sandbox: LiveSandbox) -> Handle:
        """Start a stopped sandbox and send its new agent the previous settings. If it fails, the sandbox stays
        stopped."""
        record = sandbox.record

        async def stop_late(handle: Handle) -> None:
            await (self._driver.kill(handle) if sandbox.removal_reason is not None else self._driver.stop(handle))

        handle = await self._calls.run(
            "boot", sandbox.id, self._driver.boot(record.handle, record.spec), if_late=stop_late
        )
        try:
            await self.prepare_agent(record, handle)
        except SandyardError:
            await self._calls.run("stop", sandbox.id, self._driver.stop(handle))
            raise
        return handle

    async def prepare_agent(self, record: Sandbox, handle: Handle) -> None:
        """Send the previous settings to the new agent of a sandbox whose files are those of this record, and run its start
        command, whose failure is only logged: its files are available, so the client can look for the cause."""
        env = self._trust.make_env(record)
        await send_identity(self._calls, handle, record.template_id, env, record.defaults)
        if record.start is not None:
            try:
                await run_start_command(self._calls, handle, record.start, self._start_timeout_s)
            except SandyardError as error:
                self._ledger.logs.append(record.id, LogLevel.WARN, f"After the boot: {error.message}")
