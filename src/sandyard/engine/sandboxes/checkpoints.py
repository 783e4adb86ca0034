"""Checkpoints: copies of the files of sandboxes on hosts, kept on the engine's machine in case a host is lost.

A checkpoint is a hidden snapshot whose layers were copied to the engine's machine. Each sandbox has at most one, the
newest. The work to do is found by comparing sandboxes with checkpoints, so a crash loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass

from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.creation import Creation
from sandyard.engine.sandboxes.lifecycle import Lifecycle
from sandyard.engine.sandboxes.places import Places
from sandyard.engine.sandboxes.registry import LiveSandbox, Registry
from sandyard.engine.sandboxes.snapshots import Snapshots, make_snapshot_id
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock
from sandyard.kit.errors import NoSpaceError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

CHECK_S = 2.0
MEASUREMENTS = 20
"""How often a running sandbox is measured per interval once a checkpoint could be due."""
SETTLE_S = 5.0
"""A sandbox gets a checkpoint only when it has been paused for this long, because many are resumed immediately."""
IDLE_CPU = 0.05
"""A sandbox that uses less than this part of one processor is idle."""
UNCHANGED_CPU_S = 0.1
"""A sandbox that has used less processor time than this since its checkpoint is considered unchanged."""
MAX_POSTPONED = 6
"""A sandbox that is never idle gets a checkpoint after this many intervals."""
MAX_CONCURRENT, MAX_CONCURRENT_PER_HOST = 4, 2
FIRST_RETRY_S, MAX_RETRY_S = 5.0, 600.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a sandbox at one time, as a snapshot that no client sees."""

    snapshot_id: str
    taken_at: float


class Checkpoints:
    """The checkpoints of all sandboxes, in memory and in the database. `load` must be called before the driver is opened."""

    def __init__(self, database: Database, snapshots: Snapshots) -> None:
        self._database = database
        self._snapshots = snapshots
        self._checkpoints: dict[str, Checkpoint] = {}
        self.failures: dict[str, str] = {}
        """Why the last attempt to take a checkpoint failed, by sandbox."""
        snapshots.keepers.append(self._list_needed)

    def load(self) -> None:
        rows = self._database.query("SELECT sandbox_id, snapshot_id, taken_at FROM checkpoints")
        self._checkpoints = {str(row[0]): Checkpoint(str(row[1]), float(str(row[2]))) for row in rows}

    def find(self, sandbox_id: str) -> Checkpoint | None:
        return self._checkpoints.get(sandbox_id)

    def put(self, sandbox_id: str, checkpoint: Checkpoint) -> None:
        """Store the checkpoint of a sandbox in place of the one that it had."""
        self._database.execute(
            "INSERT INTO checkpoints (sandbox_id, snapshot_id, taken_at) VALUES (?, ?, ?) ON CONFLICT (sandbox_id) DO UPDATE"
            " SET snapshot_id = excluded.snapshot_id, taken_at = excluded.taken_at",
            (sandbox_id, checkpoint.snapshot_id, checkpoint.taken_at),
        )
        self._checkpoints[sandbox_id] = checkpoint

    def keep_only(self, sandbox_ids: Set[str]) -> None:
        """Delete the checkpoints of all other sandboxes. Their files are removed when nothing needs them."""
        for sandbox_id in self.failures.keys() - sandbox_ids:
            del self.failures[sandbox_id]
        for sandbox_id in self._checkpoints.keys() - sandbox_ids:
            self._database.execute("DELETE FROM checkpoints WHERE sandbox_id = ?", (sandbox_id,))
            del self._checkpoints[sandbox_id]

    def _list_needed(self) -> Iterable[str]:
        for checkpoint in self._checkpoints.values():
            snapshot = self._snapshots.find_stored(checkpoint.snapshot_id)
            yield checkpoint.snapshot_id
            yield from snapshot.snapshots if snapshot is not None else ()


@dataclass(frozen=True, slots=True)
class _Usage:
    """The processor time that a sandbox had used at a time."""

    at: float
    cpu_seconds: float


@dataclass(slots=True)
class _State:
    """The state of a sandbox between checks. `usage`: at the last check. `used`: processor time at the last checkpoint."""

    usage: _Usage | None = None
    used: float | None = None
    measure_at: float = 0.0
    retry_at: float = 0.0
    retry_delay: float = 0.0


class Checkpointer:
    """Takes checkpoints in the background: of paused sandboxes soon after the pause, of running ones at most every `interval_s`
    seconds, if they have done something since the last one and are idle. Sandboxes with volumes get none, because volumes
    stay on their host."""

    def __init__(
        self,
        *,
        checkpoints: Checkpoints,
        registry: Registry,
        lifecycle: Lifecycle,
        creation: Creation,
        snapshots: Snapshots,
        calls: DriverCalls,
        clock: Clock,
        places: Places,
        interval_s: float,
        get_free_disk: Callable[[], int],
        min_free_disk: int,
    ) -> None:
        """`get_free_disk` returns the bytes that are free on the disk of the engine's machine. No checkpoint is taken if these are
        less than `min_free_disk`."""
        self._checkpoints = checkpoints
        self._registry = registry
        self._lifecycle = lifecycle
        self._creation = creation
        self._snapshots = snapshots
        self._calls = calls
        self._clock = clock
        self._places = places
        self._interval_s = interval_s
        self._get_free_disk = get_free_disk
        self._min_free_disk = min_free_disk
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._host_slots: dict[str, asyncio.Semaphore] = {}
        self._hosts_in_progress: set[str] = set()
        self._in_progress: set[str] = set()
        self._states: dict[str, _State] = {}
        self._tasks = TaskSet("checkpoints")

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._work()
            except SandyardError as error:  # the database
                log.warning("checkpoints_not_taken", reason=error.message)
            await self._clock.sleep(CHECK_S)

    async def _work(self) -> None:
        remote = [
            sandbox for sandbox in self._registry if self._places.find_host(sandbox.record.handle) != LOCAL_HOST_ID
        ]
        self._checkpoints.keep_only({sandbox.id for sandbox in remote})
        self._states = {sandbox.id: self._states.get(sandbox.id) or _State() for sandbox in remote}
        by_host: dict[str, list[LiveSandbox]] = {}
        for sandbox in remote:
            by_host.setdefault(self._places.find_host(sandbox.record.handle), []).append(sandbox)
        for host_id, sandboxes in by_host.items():
            if host_id not in self._hosts_in_progress:
                self._hosts_in_progress.add(host_id)
                self._tasks.spawn(self._take_due(host_id, sandboxes))

    async def _take_due(self, host_id: str, sandboxes: Sequence[LiveSandbox]) -> None:
        """Start taking the due checkpoints of one host's sandboxes. Hosts are handled separately, so that one that does not respond
        does not delay the others."""
        slots = self._host_slots.setdefault(host_id, asyncio.Semaphore(MAX_CONCURRENT_PER_HOST))
        try:
            for sandbox in sandboxes:
                state = self._states.get(sandbox.id)  # None: it was removed in the meantime
                if state is not None and sandbox.id not in self._in_progress and await self._is_due(sandbox, state):
                    self._in_progress.add(sandbox.id)
                    self._tasks.spawn(self._try_to_take(sandbox, state, slots))
        finally:
            self._hosts_in_progress.discard(host_id)

    async def _is_due(self, sandbox: LiveSandbox, state: _State) -> bool:
        record, now = sandbox.record, self._clock.now()
        if (
            record.volume_mounts
            or sandbox.failure_count
            or not self._places.is_ready(self._places.find_host(record.handle))
        ):
            return False
        if state.retry_at > now:
            return False
        last = self._checkpoints.find(sandbox.id)
        if not record.running:
            paused_at = record.paused_at or record.created_at
            return now - paused_at >= SETTLE_S and (last is None or last.taken_at < paused_at)
        since = now - (record.created_at if last is None else last.taken_at)
        if since < self._interval_s or now < state.measure_at:
            return False
        state.measure_at = now + self._interval_s / MEASUREMENTS
        return await self._is_worth_it(sandbox, state, since)

    async def _is_worth_it(self, sandbox: LiveSandbox, state: _State, since: float) -> bool:
        """Return whether a running sandbox has done something since its last checkpoint, and is idle now or never idle."""
        usage = await self._measure(sandbox)
        if usage is None:
            return False
        before, state.usage = state.usage, usage
        if state.used is not None and 0 <= usage.cpu_seconds - state.used < UNCHANGED_CPU_S:
            return False
        if since >= MAX_POSTPONED * self._interval_s:
            return True
        if before is None or usage.at <= before.at:
            return False
        return usage.cpu_seconds - before.cpu_seconds < IDLE_CPU * (usage.at - before.at)

    async def _measure(self, sandbox: LiveSandbox) -> _Usage | None:
        try:
            stats = await self._calls.run("stats", sandbox.id, self._calls.driver.get_stats(sandbox.record.handle))
        except SandyardError:
            return None  # its watcher handles the cause
        return _Usage(self._clock.now(), stats.cpu_seconds)

    async def _try_to_take(self, sandbox: LiveSandbox, state: _State, slots: asyncio.Semaphore) -> None:
        try:
            async with slots, self._slots:
                state.used = await self._take(sandbox)
        except SandyardError as error:
            if sandbox.removal_reason is not None:
                return
            state.retry_delay = min(max(FIRST_RETRY_S, 2 * state.retry_delay), MAX_RETRY_S)
            state.retry_at = self._clock.now() + state.retry_delay
            self._checkpoints.failures[sandbox.id] = error.message
            log.warning("checkpoint_failed", sandbox=sandbox.id, reason=error.message, retry_s=state.retry_delay)
        else:
            state.retry_delay = 0.0
            self._checkpoints.failures.pop(sandbox.id, None)
        finally:
            self._in_progress.discard(sandbox.id)

    async def _take(self, sandbox: LiveSandbox) -> float | None:
        """Take a checkpoint. Return the processor time that the sandbox had used, or None if it is not running."""
        if self._get_free_disk() < self._min_free_disk:
            raise NoSpaceError(
                f"Less than {self._min_free_disk >> 20} MiB of the disk of the engine's machine are free: twice the reserve (setting "
                "disk_reserve_mb)."
            )
        snapshot_id = make_snapshot_id()
        with ExitStack() as held:
            async with self._lifecycle.hold(sandbox):
                held.enter_context(self._snapshots.hold((*sandbox.record.snapshots, snapshot_id)))
                usage = await self._measure(sandbox) if sandbox.record.running else None
                taken_at = self._clock.now()
                snapshot = await self._creation.capture(sandbox, snapshot_id, hidden=True)
            await self._places.fetch_layers(snapshot.layers)
            if sandbox.removal_reason is None:
                self._checkpoints.put(sandbox.id, Checkpoint(snapshot_id, taken_at))
        log.info("checkpoint_taken", sandbox=sandbox.id, snapshot=snapshot_id)
        return None if usage is None else usage.cpu_seconds
