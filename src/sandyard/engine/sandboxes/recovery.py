"""Recovery at engine start: find out what the previous engine left and whether the machine was rebooted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from sandyard.engine.contract import Condition, NetworkPolicy
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.ledger import Ledger
from sandyard.engine.sandboxes.model import Intent, PauseKind
from sandyard.engine.sandboxes.reconciler import PROCESSES_ENDED, Reconciler, is_consistent, needs_boot
from sandyard.engine.sandboxes.registry import LiveSandbox
from sandyard.engine.sandboxes.remover import SandboxRemover, Spawn
from sandyard.engine.sandboxes.snapshots import Snapshots
from sandyard.engine.store.database import Database
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

REBOOTED = "The machine was restarted"
ENDED_MEANWHILE = f"{PROCESSES_ENDED} while the engine was down"
MAX_CONCURRENT = 8


def read_boot_id() -> str:
    """Return an id that changes with every boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


class Recovery:
    """Runs once, when the engine starts."""

    def __init__(
        self,
        *,
        database: Database,
        ledger: Ledger,
        calls: DriverCalls,
        snapshots: Snapshots,
        reconciler: Reconciler,
        remover: SandboxRemover,
        spawn: Spawn,
        boot_id: str,
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._calls = calls
        self._snapshots = snapshots
        self._reconciler = reconciler
        self._remover = remover
        self._spawn = spawn
        self._boot_id = boot_id
        self._concurrency = asyncio.Semaphore(MAX_CONCURRENT)

    async def run(self) -> None:
        """Adopt existing sandboxes. When it returns every record is correct, except that sandboxes whose processes are
        gone are being booted in the background; their operations and traffic wait for that."""
        self._ledger.load()
        self._snapshots.load()
        handles = [sandbox.record.handle for sandbox in self._ledger.registry]
        observed = await self._calls.run(
            "open", "the engine", self._calls.driver.open(handles, self._snapshots.list_needed())
        )
        lost = REBOOTED if self._database.get_meta("boot_id") not in {None, self._boot_id} else ENDED_MEANWHILE
        await self._adopt(observed, lost)
        self._database.set_meta("boot_id", self._boot_id)
        log.info("engine_recovered", sandboxes=len(self._ledger.registry), running=self._ledger.registry.running_count)

    async def _adopt(self, observed: Mapping[str, Condition], lost: str) -> None:
        now = self._ledger.clock.now()
        recoveries = []
        for sandbox in self._ledger.registry:
            condition = observed.get(sandbox.id)
            if condition is not None and is_consistent(sandbox, condition):
                if sandbox.record.pause_kind in {None, PauseKind.MEMORY}:
                    self._remover.watch(sandbox)
                if sandbox.record.network.policy == NetworkPolicy():
                    continue
            await sandbox.lock.acquire()
            if condition is not None and needs_boot(sandbox, condition, now):
                sandbox.changing = asyncio.get_running_loop().create_future()
                self._spawn(self._recover(sandbox, condition, lost))
            else:
                recoveries.append(self._recover_soon(sandbox, condition, lost))
        await asyncio.gather(*recoveries)

    async def _recover_soon(self, sandbox: LiveSandbox, condition: Condition | None, lost: str) -> None:
        """Like `_recover`, but only a few at once. The reconciler limits those that have to be booted."""
        async with self._concurrency:
            await self._recover(sandbox, condition, lost)

    async def _recover(self, sandbox: LiveSandbox, condition: Condition | None, lost: str) -> None:
        """Recover one sandbox. Its lock is held and is released here."""
        try:
            if condition is None:
                sandbox.failure_count += 1
                await self._reconciler.inspect(sandbox)
            elif not is_consistent(sandbox, condition):
                await self._reconciler.reconcile(sandbox, condition, lost)
            await self._apply_policy(sandbox)
        except SandyardError as error:
            log.warning("sandbox_recovery_failed", sandbox=sandbox.id, reason=error.message)
            self._reconciler.recheck(sandbox)
        finally:
            if sandbox.changing is not None:
                sandbox.changing.set_result(None)
                sandbox.changing = None
            sandbox.lock.release()

    async def _apply_policy(self, sandbox: LiveSandbox) -> None:
        """Apply the policy again, because a policy that was changed while the sandbox ran is not in its handle."""
        record = sandbox.record
        if (
            sandbox.removal_reason is None
            and record.network.policy != NetworkPolicy()
            and record.pause_kind in {None, PauseKind.MEMORY}
        ):
            await self._calls.run(
                "set_network", sandbox.id, self._calls.driver.set_network(record.handle, record.network.policy)
            )
            if record.intent is Intent.NETWORK:
                self._ledger.change(sandbox, intent=None)
