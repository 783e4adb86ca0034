"""Empty hosts: move all sandboxes away from drained hosts, and recover the sandboxes of lost hosts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sandyard.engine.sandboxes.checkpoints import Checkpoints
from sandyard.engine.sandboxes.mover import Mover
from sandyard.engine.sandboxes.places import Places
from sandyard.engine.sandboxes.pool import Pool
from sandyard.engine.sandboxes.registry import LiveSandbox, Registry
from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, NotFoundError, SandyardError, UnsupportedError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

MAX_CONCURRENT_MOVES = 4  # per host
CHECK_S = 2.0
FIRST_RETRY_S, MAX_RETRY_S = 5.0, 60.0


class StrandedError(NotFoundError):
    """A sandbox of a lost host has no checkpoint."""


@dataclass(frozen=True, slots=True)
class EmptiedHost:
    """A host to empty. `lost`: its sandboxes are recovered from their checkpoints as long as it cannot be reached."""

    name: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """The time of the next attempt to move a sandbox, and the delay since the last one."""

    at: float
    delay: float


@dataclass(slots=True)
class Progress:
    """The progress of emptying a host: `moved` of `total` sandboxes. `failures`: why others could not be moved yet, by id.
    `stranded`: those that have no checkpoint, so that they can only continue if their lost host returns."""

    moved: int = 0
    total: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    stranded: set[str] = field(default_factory=set)
    retries: dict[str, Retry] = field(default_factory=dict)


class Evacuation:
    """Empties hosts. `on_return` is called with the id of a lost host that can be reached again, which is then no longer
    emptied."""

    def __init__(
        self,
        *,
        mover: Mover,
        checkpoints: Checkpoints,
        registry: Registry,
        pool: Pool,
        clock: Clock,
        places: Places,
        on_return: Callable[[str], object],
    ) -> None:
        self._mover = mover
        self._checkpoints = checkpoints
        self._registry = registry
        self._pool = pool
        self._clock = clock
        self._places = places
        self._on_return = on_return
        self._tasks = TaskSet("evacuation")
        self._hosts: dict[str, tuple[EmptiedHost, asyncio.Task[None], Progress]] = {}

    def set_hosts(self, hosts: Mapping[str, EmptiedHost]) -> None:
        """Empty these hosts from now on, given by id, and no others. What is being moved from others stays there."""
        for host_id, (host, task, _) in list(self._hosts.items()):
            if host_id not in hosts or hosts[host_id].lost != host.lost:
                task.cancel()
                del self._hosts[host_id]
        for host_id, host in hosts.items():
            if host_id not in self._hosts:
                progress = Progress(total=len(self.list_sandboxes(host_id)))
                self._hosts[host_id] = host, self._tasks.spawn(self._empty(host_id, host, progress)), progress

    def find_progress(self, host_id: str) -> Progress | None:
        """Return how far a host is emptied, or None if it is not being emptied."""
        found = self._hosts.get(host_id)
        return found[2] if found is not None else None

    def list_sandboxes(self, host_id: str) -> list[LiveSandbox]:
        """Return the sandboxes on a host that have a record."""
        return [sandbox for sandbox in self._registry if self._places.find_host(sandbox.record.handle) == host_id]

    def list_checkpoint_times(self, host_id: str) -> list[float]:
        """Return when the checkpoints of the sandboxes on a host were taken."""
        found = (self._checkpoints.find(sandbox.id) for sandbox in self.list_sandboxes(host_id))
        return [checkpoint.taken_at for checkpoint in found if checkpoint is not None]

    async def close(self) -> None:
        """Stop. What was not moved stays where it is."""
        self._hosts.clear()
        await self._tasks.cancel()

    async def _empty(self, host_id: str, host: EmptiedHost, progress: Progress) -> None:
        while True:
            if host.lost and self._places.is_ready(host_id):
                await self._report_return(host_id, host)
                return
            self._pool.discard(frozenset(self._places.list_sandboxes(host_id)))
            present = self.list_sandboxes(host_id)
            progress.total = progress.moved + len(present)
            for sandbox_id in progress.failures.keys() - {sandbox.id for sandbox in present}:
                del progress.failures[sandbox_id]
                del progress.retries[sandbox_id]
                progress.stranded.discard(sandbox_id)
            now = self._clock.now()
            waiting = {sandbox_id for sandbox_id, retry in progress.retries.items() if retry.at > now}
            due = [sandbox for sandbox in present if sandbox.id not in waiting]
            slots = asyncio.Semaphore(MAX_CONCURRENT_MOVES)
            await asyncio.gather(*(self._try_to_move(sandbox, host_id, host, progress, slots) for sandbox in due))
            await self._clock.sleep(CHECK_S)

    async def _report_return(self, host_id: str, host: EmptiedHost) -> None:
        log.info("lost_host_is_back", host=host_id, name=host.name, sandboxes=len(self.list_sandboxes(host_id)))
        while True:
            try:
                self._on_return(host_id)
            except SandyardError as error:  # the database
                log.warning("return_of_host_not_recorded", host=host_id, reason=error.message)
                await self._clock.sleep(MAX_RETRY_S)
            else:
                return

    async def _try_to_move(
        self, sandbox: LiveSandbox, host_id: str, host: EmptiedHost, progress: Progress, slots: asyncio.Semaphore
    ) -> None:
        async with slots:
            try:
                if host.lost:
                    await self._recover(sandbox, host_id, host.name)
                else:
                    await self._mover.move(sandbox, f"Its host {host.name} was drained")
            except SandyardError as error:
                if sandbox.removal_reason is not None:
                    return
                before = progress.retries.get(sandbox.id)
                delay = FIRST_RETRY_S if before is None else min(2 * before.delay, MAX_RETRY_S)
                progress.retries[sandbox.id] = Retry(self._clock.now() + delay, delay)
                if progress.failures.get(sandbox.id) != error.message:
                    log.warning("sandbox_not_moved", sandbox=sandbox.id, reason=error.message, retry_s=delay)
                progress.failures[sandbox.id] = error.message
                if isinstance(error, StrandedError):
                    progress.stranded.add(sandbox.id)
            else:
                progress.moved += 1
                progress.failures.pop(sandbox.id, None)
                progress.retries.pop(sandbox.id, None)
                progress.stranded.discard(sandbox.id)

    async def _recover(self, sandbox: LiveSandbox, host_id: str, name: str) -> None:
        """Start a sandbox of a lost host on another one. Raises ConflictError if the host is not lost."""
        if self._places.is_ready(host_id):
            raise ConflictError(f"The host {name} is back. The sandbox continues there.")
        checkpoint = self._checkpoints.find(sandbox.id)
        record = sandbox.record
        if record.volume_mounts:
            names = ", ".join(str(mount["name"]) for mount in record.volume_mounts)
            raise UnsupportedError(
                f"It mounts the volume {names}, which is on its host. It is kept in case the host returns."
            )
        if checkpoint is None:
            failure = self._checkpoints.failures.get(sandbox.id)
            raise StrandedError(
                "It has no checkpoint: its files are only on its host. It is kept in case the host returns."
                + (f" The last attempt to copy them failed: {failure}" if failure else "")
            )
        reason = f"Its host {name} was lost; its files are from {_format_time(checkpoint.taken_at)}"
        seen = self._places.find_last_seen(host_id)
        if not record.running and record.paused_at is not None and checkpoint.taken_at >= record.paused_at:
            reason += ", after it was paused"
        elif seen is not None:
            reason += f", {format_duration(max(0.0, seen - checkpoint.taken_at))} before the host last answered"
        await self._mover.recover(sandbox, checkpoint, reason, self._places.abandon)


def _format_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_duration(seconds: float) -> str:
    """Return, for example, `40 seconds`, `14 minutes` or `3 hours`."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * size or (size == 60 and seconds >= 60):
            count = math.floor(seconds / size)
            return f"{count} {unit}" + ("" if count == 1 else "s")
    count = math.floor(seconds)
    return "1 second" if count == 1 else f"{count} seconds"
