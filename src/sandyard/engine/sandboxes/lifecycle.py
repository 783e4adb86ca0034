"""Pause, resume and timeouts: the operations that change a sandbox's state.

The order is always the same: call the driver, then write the record. A crash in between leaves a record with the last
state that a client knows, and `reconciler` makes the host match it. Only stopping processes cannot be undone, so
`Intent.STOP` is written first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from sandyard.engine.contract import Driver
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.capacity import Capacity
from sandyard.engine.sandboxes.errors import make_not_found_error
from sandyard.engine.sandboxes.ledger import Ledger
from sandyard.engine.sandboxes.model import Intent, LogLevel, LogQuery, Network, OnTimeout, PauseKind, Sandbox, State
from sandyard.engine.sandboxes.reconciler import Reconciler
from sandyard.engine.sandboxes.registry import LiveSandbox
from sandyard.engine.sandboxes.remover import SandboxRemover
from sandyard.engine.sandboxes.sampler import Sampler
from sandyard.engine.sandboxes.trust import EgressTrust
from sandyard.kit.errors import ConflictError, SandyardError, UnsupportedError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

MAX_CONCURRENT_TIMEOUTS = 8  # timeouts handled concurrently, so that a thousand of them leave room for clients
RETRY_S = 5.0
DENIED_PREFIX, MAX_DENIED = "Blocked by the network policy:", 300
"""Prefix of log entries about blocked connections, and the maximum number of such entries per sandbox."""


class Lifecycle:
    """Pauses, resumes and extends sandboxes, one operation per sandbox at a time."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        calls: DriverCalls,
        capacity: Capacity,
        sampler: Sampler,
        remover: SandboxRemover,
        reconciler: Reconciler,
        trust: EgressTrust,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._capacity = capacity
        self._sampler = sampler
        self._remover = remover
        self._reconciler = reconciler
        self._trust = trust
        self._timeout_concurrency = asyncio.Semaphore(MAX_CONCURRENT_TIMEOUTS)

    @property
    def _driver(self) -> Driver:
        return self._calls.driver

    @property
    def _now(self) -> float:
        return self._ledger.clock.now()

    @asynccontextmanager
    async def hold(self, sandbox: LiveSandbox, *, changing: bool = False) -> AsyncIterator[None]:
        """Hold this sandbox exclusively. Raises NotFoundError if it was removed while waiting, and StuckError if its
        condition cannot be determined. With `changing`, traffic waits until the block ends."""
        async with self._lock(sandbox, changing=changing):
            if sandbox.failure_count:
                await self._reconciler.inspect(sandbox)
                if sandbox.removal_reason is not None:
                    raise make_not_found_error(sandbox.id)
            yield

    @asynccontextmanager
    async def hold_unknown(self, sandbox: LiveSandbox) -> AsyncIterator[None]:
        """Hold a sandbox exclusively whose condition need not be known, because the block replaces what the driver has of it.
        Traffic waits until the block ends. Raises NotFoundError if it was removed while waiting."""
        async with self._lock(sandbox, changing=True):
            yield
            sandbox.failure_count, sandbox.lost_reason = 0, None

    @asynccontextmanager
    async def _lock(self, sandbox: LiveSandbox, *, changing: bool) -> AsyncIterator[None]:
        async with sandbox.lock:
            if sandbox.removal_reason is not None:
                raise make_not_found_error(sandbox.id)
            if changing:
                sandbox.changing = asyncio.get_running_loop().create_future()
            try:
                yield
            finally:
                if sandbox.changing is not None and changing:
                    sandbox.changing.set_result(None)
                    sandbox.changing = None

    async def pause(self, sandbox: LiveSandbox, *, memory: bool) -> Sandbox:
        async with self.hold(sandbox, changing=True):
            if not sandbox.record.running:
                raise ConflictError(f"Error pausing sandbox - sandbox '{sandbox.id}' is already paused")
            return await self._pause(sandbox, memory=memory, reason="on request")

    async def _pause(self, sandbox: LiveSandbox, *, memory: bool, reason: str, lost: str | None = None) -> Sandbox:
        if not memory:
            await self.stop(sandbox)
            kind, event = PauseKind.FILESYSTEM, "The sandbox was paused; only its file system is kept"
        else:
            if not self._driver.capabilities.freeze:
                missing = self._driver.capabilities.missing.get("freeze", "this machine cannot freeze processes")
                raise UnsupportedError(
                    f"Pausing with memory is not supported here: {missing}. Pause without memory instead."
                )
            async with self._reconciler.recheck_on_failure(sandbox):
                await self._calls.run("freeze", sandbox.id, self._driver.freeze(sandbox.record.handle))
            kind, event = PauseKind.MEMORY, "The sandbox was paused; its memory is kept"
        async with self._reconciler.recheck_on_failure(sandbox):
            record = self._ledger.change(
                sandbox,
                f"{event} ({reason})",
                state=State.PAUSED,
                pause_kind=kind,
                paused_at=self._now,
                ends_at=self._now,
                memory_lost=lost,
                intent=None,
            )
        self._ledger.notify_interrupted(sandbox.id, "paused")
        if sandbox.series is not None:
            sandbox.series.restart()
        return record

    async def stop(self, sandbox: LiveSandbox) -> None:
        """Stop the processes for good. The intent stays until the caller has recorded the outcome."""
        self._ledger.change(sandbox, intent=Intent.STOP)
        self._remover.unwatch(sandbox)
        async with self._reconciler.recheck_on_failure(sandbox):
            handle = await self._calls.run("stop", sandbox.id, self._driver.stop(sandbox.record.handle))
            self._ledger.change(sandbox, handle=handle)

    async def connect(self, sandbox: LiveSandbox, timeout_s: float, *, memory: bool) -> tuple[Sandbox, bool]:
        if sandbox.record.running and sandbox.changing is None and not sandbox.failure_count:
            return self.extend(sandbox, timeout_s), False
        async with self.hold(sandbox, changing=True):
            if sandbox.record.running:
                return self.extend(sandbox, timeout_s), False
            return await self._resume(sandbox, timeout_s, memory=memory, reason="on request"), True

    async def resume(self, sandbox: LiveSandbox, timeout_s: float, *, auto_pause: bool | None, memory: bool) -> Sandbox:
        async with self.hold(sandbox, changing=True):
            if sandbox.record.running:
                raise ConflictError(f"Sandbox {sandbox.id} is already running")
            return await self._resume(sandbox, timeout_s, memory=memory, reason="on request", auto_pause=auto_pause)

    async def wake(self, sandbox: LiveSandbox, timeout_s: float) -> None:
        """Resume the sandbox because of incoming traffic, unless it was resumed in the meantime."""
        async with self.hold(sandbox, changing=True):
            if not sandbox.record.running:
                await self._resume(sandbox, timeout_s, memory=True, reason="by traffic")

    async def _resume(
        self, sandbox: LiveSandbox, timeout_s: float, *, memory: bool, reason: str, auto_pause: bool | None = None
    ) -> Sandbox:
        with self._reserve_capacity():
            return await self._start_paused(sandbox, timeout_s, memory=memory, reason=reason, auto_pause=auto_pause)

    @contextmanager
    def _reserve_capacity(self) -> Iterator[None]:
        """Reserve capacity for a sandbox while it is being resumed, so that concurrent requests cannot exceed the limit."""
        registry = self._ledger.registry
        self._capacity.check(registry.started_count + len(self._remover.removing))
        registry.resuming_count += 1
        try:
            yield
        finally:
            registry.resuming_count -= 1

    async def _start_paused(
        self, sandbox: LiveSandbox, timeout_s: float, *, memory: bool, reason: str, auto_pause: bool | None
    ) -> Sandbox:
        kind = sandbox.record.pause_kind
        if kind is not PauseKind.FILESYSTEM and not memory:
            await self.stop(sandbox)
            self._ledger.change(sandbox, pause_kind=PauseKind.FILESYSTEM, intent=None)
            kind = PauseKind.FILESYSTEM
        async with self._reconciler.recheck_on_failure(sandbox):
            handle = sandbox.record.handle
            if kind is PauseKind.MEMORY:
                await self._calls.run("thaw", sandbox.id, self._driver.thaw(handle))
            elif kind is PauseKind.DISK:
                handle = await self._calls.run("restore", sandbox.id, self._driver.restore(handle))
            else:
                handle = await self._reconciler.boot(sandbox)
            policy = sandbox.record.on_timeout
            if auto_pause is not None:
                policy = OnTimeout.PAUSE if auto_pause else OnTimeout.KILL
            now = self._now
            record = self._ledger.change(
                sandbox,
                f"The sandbox was resumed ({reason})",
                state=State.RUNNING,
                handle=handle,
                pause_kind=None,
                paused_at=None,
                started_at=now,
                ends_at=now + timeout_s,
                timeout_s=timeout_s,
                on_timeout=policy,
                intent=None,
            )
        if sandbox.watch is None:
            self._remover.watch(sandbox)
        self._sampler.schedule_sample(sandbox)
        return record

    def extend(self, sandbox: LiveSandbox, timeout_s: float, *, may_shorten: bool = False) -> Sandbox:
        """Set the timeout of a running sandbox, counted from now. Fast: it needs only one write."""
        ends_at = self._now + timeout_s
        if ends_at <= sandbox.record.ends_at and not may_shorten:
            return sandbox.record
        return self._ledger.change(sandbox, ends_at=ends_at, timeout_s=timeout_s)

    async def set_network(self, sandbox: LiveSandbox, network: Network) -> Sandbox:
        async with self.hold(sandbox):
            if not sandbox.record.running:
                raise ConflictError(f"Sandbox '{sandbox.id}' is paused; resume it to change its network")
            before = sandbox.record.network
            await self._trust.prepare_network(sandbox.record, network)
            self._ledger.change(sandbox, network=network, intent=Intent.NETWORK)
            call = self._driver.set_network(sandbox.record.handle, network.policy)
            try:
                async with self._reconciler.recheck_on_failure(sandbox):
                    await self._calls.run("set_network", sandbox.id, call)
            except SandyardError:
                self._ledger.change(sandbox, network=before)  # the intent stays, so the old policy is applied again
                raise
            return self._ledger.change(sandbox, "The network policy was changed", intent=None)

    async def log_denied(self, sandbox: LiveSandbox) -> None:
        """Write the connections blocked by the egress policy into the sandbox's log. Each host is logged once and the
        number is limited to a few hundred, so that a sandbox cannot push other events out of its own log."""
        if not sandbox.record.running:
            return
        try:
            found = await self._driver.take_denied(sandbox.record.handle)
        except SandyardError as error:
            log.warning("denied_not_read", sandbox=sandbox.id, reason=error.message)
            return
        if not found:
            return
        query = LogQuery(limit=MAX_DENIED, search=DENIED_PREFIX)
        known = {logged.message for logged in self._ledger.logs.query(sandbox.id, query)}
        for attempt in found:
            destination = attempt.host if attempt.port is None else f"{attempt.host}:{attempt.port}"
            message = f"{DENIED_PREFIX} {destination} ({attempt.protocol})"
            if message in known or len(known) >= MAX_DENIED:
                continue
            known.add(message)
            fields = {"event": "egress_denied", "host": attempt.host, "protocol": attempt.protocol}
            if attempt.port is not None:
                fields["port"] = str(attempt.port)
            self._ledger.logs.append(sandbox.id, LogLevel.WARN, message, **fields)

    async def handle_timer(self, sandbox: LiveSandbox) -> None:
        """Handle an expired timer: kill or pause the sandbox, or move its memory to disk. Never raises; failures are
        retried."""
        try:
            async with self._timeout_concurrency:
                await self._handle_timer(sandbox)
        except SandyardError as error:
            if sandbox.removal_reason is None:
                delay = RETRY_S if sandbox.record.running else self._ledger.suspend_after_s or RETRY_S
                self._ledger.set_timer(sandbox, self._now + delay)
                log.warning("sandbox_expiry_failed", sandbox=sandbox.id, reason=error.message, retry_s=delay)

    async def _handle_timer(self, sandbox: LiveSandbox) -> None:
        """Check what is due now, because the record may have changed since the timer was set."""
        if sandbox.removal_reason is not None:
            return
        if self._is_overdue(sandbox) and sandbox.record.on_timeout is OnTimeout.KILL:
            await self._remover.kill(sandbox, "The sandbox was killed: its timeout was reached")
            return
        async with self.hold(sandbox, changing=True):
            if self._is_overdue(sandbox):
                await self._auto_pause(sandbox)
            elif self._ledger.can_suspend(sandbox.record):
                await self._suspend(sandbox)

    def _is_overdue(self, sandbox: LiveSandbox) -> bool:
        return sandbox.record.running and sandbox.record.ends_at <= self._now

    async def _auto_pause(self, sandbox: LiveSandbox) -> None:
        memory, lost = sandbox.record.auto_pause_memory, None
        if memory and not self._driver.capabilities.freeze:
            # Killing it would lose more. The record says what happened to the memory.
            memory, lost = False, "This machine cannot keep the memory of a paused sandbox"
        await self._pause(sandbox, memory=memory, reason="its timeout was reached", lost=lost)

    async def _suspend(self, sandbox: LiveSandbox) -> None:
        """Move the memory of a paused sandbox to disk. Raises FullError, and leaves it in RAM, if it does not fit."""
        stats = await self._calls.run("stats", sandbox.id, self._driver.get_stats(sandbox.record.handle))
        room = self._driver.get_room(sandbox.record.handle)
        with self._capacity.reserve_disk(stats.memory_used + stats.memory_cache, room):
            self._remover.unwatch(sandbox)
            async with self._reconciler.recheck_on_failure(sandbox):
                handle = await self._calls.run("suspend", sandbox.id, self._driver.suspend(sandbox.record.handle))
                self._ledger.change(
                    sandbox, "The paused sandbox's memory was moved to disk", handle=handle, pause_kind=PauseKind.DISK
                )
