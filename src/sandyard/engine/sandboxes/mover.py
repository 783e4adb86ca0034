"""Move sandboxes to other hosts.

Files are moved, processes are not: the sandbox is frozen, its file system is saved as a snapshot, and a sandbox with the
same id is started from it on another host. The record then changes from one host to the other in one write. A crash
before that leaves the sandbox where it was, with its memory. The copy then has no record, so its host removes it.

If its host is lost, a sandbox continues in the same way from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sandyard.engine.contract import Driver, Handle, Layers
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.checkpoints import Checkpoint
from sandyard.engine.sandboxes.creation import Creation
from sandyard.engine.sandboxes.errors import StuckError
from sandyard.engine.sandboxes.ledger import Ledger
from sandyard.engine.sandboxes.lifecycle import Lifecycle
from sandyard.engine.sandboxes.model import LogLevel, PauseKind, Sandbox
from sandyard.engine.sandboxes.reconciler import Reconciler
from sandyard.engine.sandboxes.registry import LiveSandbox
from sandyard.engine.sandboxes.remover import SandboxRemover
from sandyard.engine.sandboxes.sampler import Sampler
from sandyard.engine.sandboxes.snapshots import Snapshots, make_snapshot_id
from sandyard.kit.errors import BusyError, NotFoundError, UnsupportedError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

TRANSFER_S, RETRY_S = 1800.0, 1.0
"""How long to wait for the layers of a sandbox to be copied to another host, and the pause between attempts: until they are
there, the driver refuses to create the sandbox."""


class Mover:
    """Moves sandboxes, one operation per sandbox at a time. The driver chooses the host."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        calls: DriverCalls,
        lifecycle: Lifecycle,
        creation: Creation,
        snapshots: Snapshots,
        reconciler: Reconciler,
        remover: SandboxRemover,
        sampler: Sampler,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._lifecycle = lifecycle
        self._creation = creation
        self._snapshots = snapshots
        self._reconciler = reconciler
        self._remover = remover
        self._sampler = sampler

    @property
    def _driver(self) -> Driver:
        return self._calls.driver

    async def move(self, sandbox: LiveSandbox, reason: str) -> None:
        """Move a running or paused sandbox to another host. It keeps its id, tokens and files; a running one is booted
        there, a paused one stays paused, both without memory. `reason` is recorded as why the memory was lost. The driver
        must not place new sandboxes on the present host. If it fails, the sandbox stays where it was, with its memory.
        Raises UnsupportedError if it mounts volumes, which do not move, and FullError if no host can take it."""
        async with self._lifecycle.hold(sandbox, changing=True):
            record = sandbox.record
            if record.volume_mounts:
                names = ", ".join(str(mount["name"]) for mount in record.volume_mounts)
                raise UnsupportedError(f"It mounts the volume {names}, whose files are on this host and do not move.")
            if not record.running:
                await self._move(sandbox, reason)
                return
            if not self._driver.capabilities.freeze:
                raise UnsupportedError("It cannot be frozen while it is moved: pause it without memory first.")
            async with self._reconciler.recheck_on_failure(sandbox):  # a failure lets the sandbox continue
                await self._calls.run("freeze", sandbox.id, self._driver.freeze(record.handle))
                await self._move(sandbox, reason)

    async def _move(self, sandbox: LiveSandbox, reason: str) -> None:
        snapshot_id = make_snapshot_id()
        used = (*sandbox.record.snapshots, snapshot_id)
        with self._snapshots.hold(used):
            snapshot = await self._creation.capture(sandbox, snapshot_id, hidden=True)
            event = f"{reason}; its files were moved to another host"
            await self._replace(
                sandbox, snapshot.layers, used, reason=reason, event=event, remove=self._remover.discard
            )

    async def recover(
        self, sandbox: LiveSandbox, checkpoint: Checkpoint, reason: str, abandon: Callable[[Handle], None]
    ) -> None:
        """Start a sandbox whose host is lost on another one, with the files of its checkpoint. It keeps its id and tokens; a
        running one is booted, a paused one stays paused, both without memory. `abandon` gets the lost one, which must be
        removed if its host returns. Raises NotFoundError if it was killed, and FullError if no host can take it."""
        async with self._lifecycle.hold_unknown(sandbox):
            snapshot = self._snapshots.find_stored(checkpoint.snapshot_id)
            if snapshot is None:
                raise NotFoundError("The files of its checkpoint no longer exist.")
            used = (*snapshot.snapshots, snapshot.id)
            with self._snapshots.hold(used):
                event = f"{reason}; it continues on another host"
                await self._replace(sandbox, snapshot.layers, used, reason=reason, event=event, remove=abandon)

    async def _replace(
        self,
        sandbox: LiveSandbox,
        layers: Layers,
        snapshots: tuple[str, ...],
        *,
        reason: str,
        event: str,
        remove: Callable[[Handle], None],
    ) -> None:
        """Start the sandbox from these layers on another host, and `remove` it where it was."""
        before = sandbox.record
        after = replace(before, layers=layers, snapshots=snapshots)
        handle = await self._start(after)
        had_memory = before.pause_kind is not PauseKind.FILESYSTEM
        self._remover.unwatch(sandbox)
        try:
            self._ledger.change(
                sandbox,
                event,
                level=LogLevel.WARN if had_memory else LogLevel.INFO,
                handle=handle,
                layers=layers,
                snapshots=snapshots,
                memory_lost=reason if had_memory else before.memory_lost,
                pause_kind=None if before.running else PauseKind.FILESYSTEM,
                intent=None,
            )
        except BaseException:
            self._remover.discard(handle)
            self._reconciler.recheck(sandbox)  # also watches the sandbox again
            raise
        log.info("sandbox_moved", sandbox=sandbox.id, reason=reason)
        if before.running:
            self._remover.watch(sandbox)
            self._sampler.handle_boot(sandbox)
            self._ledger.notify_interrupted(sandbox.id, "died")
        remove(before.handle)

    async def _start(self, record: Sandbox) -> Handle:
        """Create the sandbox, and boot it if it is running. Nothing is left if that fails."""

        async def discard(late: Handle) -> None:
            self._remover.discard(late)

        clock = self._ledger.clock
        deadline = clock.now() + TRANSFER_S
        while True:
            try:
                handle = await self._calls.run("move", record.id, self._driver.create(record.spec), if_late=discard)
                break
            except BusyError as error:
                if isinstance(error, StuckError) or clock.now() >= deadline:
                    raise
                await clock.sleep(RETRY_S)
        try:
            if record.running:
                await self._reconciler.prepare_agent(record, handle)
                return handle
            return await self._calls.run("stop", record.id, self._driver.stop(handle))
        except BaseException:
            self._remover.discard(handle)
            raise
