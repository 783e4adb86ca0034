"""The components of the sandbox service, wired together once, and the background tasks that run with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from sandyard.engine.contract import Driver
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.capacity import Capacity
from sandyard.engine.sandboxes.checkpoints import Checkpoints
from sandyard.engine.sandboxes.counters import Counters
from sandyard.engine.sandboxes.creation import Creation
from sandyard.engine.sandboxes.internal_sandboxes import InternalSandboxes
from sandyard.engine.sandboxes.ledger import Ledger
from sandyard.engine.sandboxes.lifecycle import Lifecycle
from sandyard.engine.sandboxes.logs import SandboxLogs
from sandyard.engine.sandboxes.model import Sandbox, Template
from sandyard.engine.sandboxes.mover import Mover
from sandyard.engine.sandboxes.pool import Pool
from sandyard.engine.sandboxes.reconciler import Reconciler
from sandyard.engine.sandboxes.recovery import Recovery, read_boot_id
from sandyard.engine.sandboxes.registry import LiveSandbox, Registry
from sandyard.engine.sandboxes.remover import SandboxRemover
from sandyard.engine.sandboxes.repository import SandboxRepository
from sandyard.engine.sandboxes.sampler import Sampler
from sandyard.engine.sandboxes.snapshots import Snapshots
from sandyard.engine.sandboxes.trust import EgressTrust
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

UPKEEP_INTERVAL_S = 2.0
BACKGROUND_TIMEOUT_S = 1.0  # removals that take longer are left to the next engine


class Components:
    """Owns the components and their background tasks."""

    def __init__(
        self,
        database: Database,
        driver: Driver,
        settings: EngineSettings,
        *,
        clock: Clock | None = None,
        boot_id: str | None = None,
        egress_authority: bytes = b"",
        get_deadline: Callable[[str], float] | None = None,
    ) -> None:
        self.database = database
        self._settings = settings
        self._clock = clock or SystemClock()
        self.tasks = TaskSet("verbs")  # operations that clients have requested
        self.background = TaskSet("background")  # recovery, removals and expired timers
        self.loops = TaskSet("loops")  # run until the engine is closed
        self.registry = Registry()
        self.repository = SandboxRepository(database)
        self.logs = SandboxLogs(database, self._clock, kept=settings.logs_kept, retention_s=settings.logs_retention_s)
        self.counters = Counters(self._clock)
        self.calls = DriverCalls(driver, get_deadline or settings.get_deadline, self.counters)
        trust = EgressTrust(self.calls, egress_authority)
        self.ledger = Ledger(
            database=database,
            repository=self.repository,
            logs=self.logs,
            registry=self.registry,
            clock=self._clock,
            on_due=self._on_timer,
        )
        self.remover = SandboxRemover(
            self.ledger, self.calls, self.background.spawn, interrupt_timeout_s=settings.kill_patience_s
        )
        self.capacity = Capacity(settings, driver.get_room)
        self.sampler = Sampler(
            self.calls,
            self._clock,
            self.logs,
            lambda: self.registry,
            interval_s=settings.metrics_interval_s,
            kept=settings.metrics_kept,
        )
        self.snapshots = Snapshots(
            database, self.calls, self.background.spawn, self._list_all_sandboxes, lambda: self.pool.list_snapshots
        )
        self.checkpoints = Checkpoints(database, self.snapshots)
        self.reconciler = Reconciler(
            self.ledger,
            self.calls,
            self.remover,
            self.background.spawn,
            trust,
            start_timeout_s=settings.start_patience_s,
        )
        self.lifecycle = Lifecycle(
            ledger=self.ledger,
            calls=self.calls,
            capacity=self.capacity,
            sampler=self.sampler,
            remover=self.remover,
            reconciler=self.reconciler,
            trust=trust,
        )
        self.pool = Pool(
            self.calls,
            self.remover,
            self.capacity,
            self._clock,
            size=settings.pool_size,
            started_size=settings.pool_started_size,
            gvisor_size=settings.pool_gvisor_size,
            idle_s=settings.pool_idle_s,
            start_timeout_s=settings.start_patience_s,
            count_taken=lambda: self.registry.started_count + len(self.remover.removing),
            max_sandboxes=settings.max_sandboxes,
        )
        self.creation = Creation(
            ledger=self.ledger,
            calls=self.calls,
            capacity=self.capacity,
            sampler=self.sampler,
            remover=self.remover,
            lifecycle=self.lifecycle,
            pool=self.pool,
            snapshots=self.snapshots,
            trust=trust,
            settings=settings,
        )
        self.mover = Mover(
            ledger=self.ledger,
            calls=self.calls,
            lifecycle=self.lifecycle,
            creation=self.creation,
            snapshots=self.snapshots,
            reconciler=self.reconciler,
            remover=self.remover,
            sampler=self.sampler,
        )
        self.internal = InternalSandboxes(
            calls=self.calls,
            capacity=self.capacity,
            creation=self.creation,
            snapshots=self.snapshots,
            clock=self._clock,
        )
        self._recovery = Recovery(
            database=database,
            ledger=self.ledger,
            calls=self.calls,
            snapshots=self.snapshots,
            reconciler=self.reconciler,
            remover=self.remover,
            spawn=self.background.spawn,
            boot_id=boot_id or read_boot_id(),
        )
        self.remover.add_listener(lambda record: self._retry_cleanup())
        self.reconciler.on_boot = self._handle_boot
        self.remover.on_stopped = self.reconciler.handle_stop
        self.calls.on_late = self._on_late_call
        driver.on_doubt = self._on_doubt
        self._closed = False

    async def open(self, get_prewarmed: Callable[[], Template | None]) -> None:
        """Recover the sandboxes of an earlier engine, then start the background tasks. `get_prewarmed` returns the
        template whose pool is kept at full size, or None while it is not ready."""
        self.checkpoints.load()
        await self._recovery.run()
        self._enable_suspend()
        for loop in (self.ledger.timers.run(), self.sampler.run(), self.pool.run(), self._run_upkeep(get_prewarmed)):
            self.loops.spawn(loop)

    async def close(self, timeout_s: float) -> None:
        """Let operations in progress continue for `timeout_s` seconds, then stop everything and release the driver.
        Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.pool.stop_refilling(timeout_s)
        await self.loops.cancel()
        if not await self.tasks.wait(timeout_s):
            log.warning("verbs_abandoned", verbs=len(self.tasks))
        await self.background.wait(BACKGROUND_TIMEOUT_S)
        await self.stop_now()
        await asyncio.gather(self.pool.close(), self.remover.finish_discards())
        try:
            await self.calls.run("close", "the engine", self.calls.driver.close())
        except SandyardError as error:
            log.warning("driver_close_failed", reason=error.message)

    async def stop_now(self) -> None:
        """Cancel all operations and background tasks. Sandboxes keep running."""
        await self.loops.cancel()
        await self.tasks.cancel()
        await self.background.cancel()
        self.calls.stop_tracking()
        for sandbox in self.registry:
            if sandbox.watch is not None:
                sandbox.watch.cancel()

    def uses_layer(self, layer: str) -> bool:
        return any(layer in sandbox.layers for sandbox in self._list_all_sandboxes()) or self.snapshots.uses_layer(
            layer
        )

    def _list_all_sandboxes(self) -> Iterable[Sandbox]:
        return self.list_sandboxes(removing=True)

    def list_sandboxes(self, *, removing: bool) -> Iterable[Sandbox]:
        """Return all sandboxes with a record; with `removing`, also those that the driver has not removed yet."""
        yield from (sandbox.record for sandbox in self.registry)
        yield from self.remover.removing if removing else ()

    def _handle_boot(self, sandbox: LiveSandbox) -> None:
        self.counters.boots.inc()
        self.sampler.handle_boot(sandbox)

    def _on_late_call(self, sandbox_id: str) -> None:
        sandbox = self.registry.find(sandbox_id)
        if sandbox is not None:
            self.reconciler.recheck(sandbox)

    def _on_doubt(self, sandbox_ids: Collection[str], reason: str) -> None:
        if self._closed:
            return
        log.warning("sandboxes_in_doubt", count=len(sandbox_ids), reason=reason)
        ids = frozenset(sandbox_ids)
        for sandbox_id in ids:
            sandbox = self.registry.find(sandbox_id)
            if sandbox is not None:
                self.reconciler.handle_doubt(sandbox, reason)
        self.pool.discard(ids)

    def _on_timer(self, sandbox_id: str) -> None:
        sandbox = self.registry.find(sandbox_id)
        if sandbox is not None:
            self.background.spawn(self.lifecycle.handle_timer(sandbox))

    async def _run_upkeep(self, get_prewarmed: Callable[[], Template | None]) -> None:
        while True:
            if self._settings.pool_size:
                self._prewarm(get_prewarmed)
                self.pool.tidy()
            self._retry_cleanup()
            self._delete_expired()
            self._enable_suspend()
            await self._clock.sleep(UPKEEP_INTERVAL_S)

    def _enable_suspend(self) -> None:
        """Enable suspending if it has become available: some drivers test it first and know only after they were
        opened."""
        levels = self.calls.driver.capabilities.suspend
        if levels != self.ledger.suspendable:
            self.ledger.set_suspend_after(self._settings.suspend_after_s, levels)

    def _prewarm(self, get_prewarmed: Callable[[], Template | None]) -> None:
        """Keep sandboxes of the prewarmed template in the pool, even before the first request."""
        try:
            template = get_prewarmed()
            if template is None:
                return
            isolation = self.creation.choose_isolation(template)
            containers = self.creation.choose_containers(template, isolation)
            if self.creation.choose_host_labels(template):
                return  # the pool is for sandboxes on any host
        except SandyardError as error:
            log.warning("template_not_prewarmed", reason=error.message)
            return
        limits = self.creation.get_limits(template)
        self.pool.keep_pooled(template, limits, isolation, containers=containers, full_size=True)

    def _retry_cleanup(self) -> None:
        """Write the rows that could not be written to a full disk, and remove snapshots that are no longer needed."""
        try:
            self.ledger.write_pending()
            self.snapshots.remove_unused()
        except SandyardError as error:
            log.warning("upkeep_failed", reason=error.message)

    def _delete_expired(self) -> None:
        try:
            self.logs.delete_expired()
            self.repository.delete_keys(self._clock.now() - self._settings.idempotency_retention_s)
        except SandyardError as error:
            log.warning("upkeep_failed", reason=error.message)
