"""The only place where a sandbox's record changes: row, memory, timer and log are updated together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandyard.engine.contract import Isolation
from sandyard.engine.sandboxes.errors import make_not_found_error
from sandyard.engine.sandboxes.logs import SandboxLogs
from sandyard.engine.sandboxes.model import LogLevel, PauseKind, Sandbox
from sandyard.engine.sandboxes.registry import LiveSandbox, Registry
from sandyard.engine.sandboxes.repository import KeyUse, SandboxRepository
from sandyard.engine.sandboxes.timers import Timers
from sandyard.engine.store.database import Database, DatabaseUnavailableError
from sandyard.kit.clock import Clock
from sandyard.kit.errors import NoSpaceError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_TIMER_FIELDS = frozenset({"state", "ends_at", "pause_kind", "paused_at"})  # fields that a timer depends on
Listener = Callable[[str, str], None]


class Ledger:
    """Synchronous: a change is committed when the call returns, and nothing else runs in between.

    If the database raises (disk full, server away), nothing has changed anywhere and the error is passed on, except in `remove`.
    """

    def __init__(
        self,
        *,
        database: Database,
        repository: SandboxRepository,
        logs: SandboxLogs,
        registry: Registry,
        clock: Clock,
        on_due: Callable[[str], None],
    ) -> None:
        self._database = database
        self._repository = repository
        self.registry = registry
        self.logs = logs
        self.clock = clock
        self.timers = Timers(clock, on_due)
        self.suspend_after_s: float | None = None
        self.suspendable: frozenset[Isolation] = frozenset()
        self._listeners: list[Listener] = []
        self._pending_deletions: dict[str, tuple[str, LogLevel]] = {}

    def add_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def set_suspend_after(self, seconds: float | None, levels: frozenset[Isolation]) -> None:
        """Move the memory of paused sandboxes with these isolation levels to disk after this time. Called when the
        driver supports it."""
        self.suspend_after_s, self.suspendable = seconds, levels
        for sandbox in self.registry:
            self._update_timer(sandbox)

    def load(self) -> None:
        """Load all rows into memory at start."""
        for record in self._repository.list_all():
            self._update_timer(self.registry.add(record))

    def insert(self, sandbox: Sandbox, message: str, *, key: tuple[str, str, bytes] | None = None) -> LiveSandbox:
        """Add a sandbox. `key` is (owner, idempotency key, digest)."""
        with self._database.transaction():
            record = self._repository.insert(sandbox)
            self.logs.append(sandbox.id, LogLevel.INFO, message, template=sandbox.template_id)
            if key is not None:
                owner, name, digest = key
                self._repository.insert_key_use(owner, name, KeyUse(digest, sandbox.id), sandbox.created_at)
        live = self.registry.add(record)
        self._update_timer(live)
        log.info("sandbox_created", sandbox=sandbox.id, template=sandbox.template_id)
        return live

    def change(
        self, sandbox: LiveSandbox, event: str | None = None, /, *, level: LogLevel = LogLevel.INFO, **changes: Any
    ) -> Sandbox:
        """Change fields of the latest record. `event`, a sentence, is added to the sandbox's log in the same
        transaction. Raises NotFoundError if the sandbox was killed in the meantime."""
        if sandbox.removal_reason is not None:
            raise make_not_found_error(sandbox.id)
        before = sandbox.record
        record = self.registry.change(sandbox, **changes)
        try:
            with self._database.transaction():
                self._repository.update(record)
                if record.layers is not before.layers:
                    self._repository.update_spec(record)
                if event is not None:
                    self.logs.append(sandbox.id, level, event)
        except BaseException:
            self.registry.change(sandbox, **{name: getattr(before, name) for name in changes})
            raise
        if _TIMER_FIELDS & changes.keys():  # otherwise a timer that is waiting to retry would fire at once
            self._update_timer(sandbox)
        if event is not None:
            log.info("sandbox_changed", sandbox=sandbox.id, state=record.state.value, what=event)
        return record

    def remove(self, sandbox: LiveSandbox, event: str, *, reason: str, level: LogLevel = LogLevel.INFO) -> None:
        """Remove the sandbox; it no longer exists for any client. `reason` is passed to listeners.

        Works on a full disk, or nothing could be removed to make room, and while the database is away: `write_pending` then
        deletes the row later. If
        the engine ends before that, the next one finds a record without a sandbox and removes it.
        """
        try:
            self._delete_row(sandbox.id, event, level)
        except (NoSpaceError, DatabaseUnavailableError) as error:
            self._pending_deletions[sandbox.id] = (event, level)
            log.warning("sandbox_row_left", sandbox=sandbox.id, reason=error.message)
        self.registry.remove(sandbox, event)
        self.timers.cancel(sandbox.id)
        if sandbox.watch is not None:
            sandbox.watch.cancel()
        log.info("sandbox_removed", sandbox=sandbox.id, what=event)
        self.notify_interrupted(sandbox.id, reason)

    def write_pending(self) -> None:
        """Write what could not be written while the disk was full or the database away."""
        for sandbox_id, (event, level) in tuple(self._pending_deletions.items()):
            self._delete_row(sandbox_id, event, level)
            del self._pending_deletions[sandbox_id]

    def _delete_row(self, sandbox_id: str, event: str, level: LogLevel) -> None:
        with self._database.transaction():
            self._repository.delete(sandbox_id)
            self.logs.append(sandbox_id, level, event)
            self.logs.mark_ended(sandbox_id)

    def notify_interrupted(self, sandbox_id: str, reason: str) -> None:
        for listener in self._listeners:
            listener(sandbox_id, reason)

    def set_timer(self, sandbox: LiveSandbox, when: float) -> None:
        """Set the timer to `when`, regardless of the record, to retry something that was due and failed."""
        self.timers.set(sandbox.id, when)

    def can_suspend(self, record: Sandbox) -> bool:
        """Return whether the memory of this sandbox is moved to disk after a while."""
        has_memory = record.pause_kind is PauseKind.MEMORY and not record.containers  # no driver can suspend containers
        return has_memory and self.suspend_after_s is not None and record.isolation in self.suspendable

    def _update_timer(self, sandbox: LiveSandbox) -> None:
        record = sandbox.record
        if record.running:
            self.timers.set(record.id, record.ends_at)
        elif self.can_suspend(record) and self.suspend_after_s is not None and record.paused_at is not None:
            self.timers.set(record.id, record.paused_at + self.suspend_after_s)
        else:
            self.timers.cancel(record.id)
