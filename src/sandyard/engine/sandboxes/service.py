"""The sandboxes of this engine: every operation a protocol may call.

Rules for all operations
- Changes are in the database before an operation returns. If the caller is cancelled (its client disconnected), the
  operation still runs to completion and leaves no partial state.
- Operations on one sandbox are serialised; `kill` does not wait for others.
- A driver that does not answer in time causes an error, never a hang.
- Raises only `sandyard.kit.errors`: NotFoundError (no such sandbox), ConflictError (wrong state), FullError (names the
  exhausted resource), InvalidInputError, BusyError, UnreachableError.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from sandyard.engine.contract import Driver, Isolation
from sandyard.engine.sandboxes.components import Components
from sandyard.engine.sandboxes.errors import PortClosedError, SandboxUnreachableError, StuckError, make_not_found_error
from sandyard.engine.sandboxes.model import (
    CreateSandbox,
    ForkResult,
    LogEntry,
    LogLevel,
    LogQuery,
    Metric,
    Network,
    OnTimeout,
    Page,
    PauseKind,
    Sandbox,
    SandboxQuery,
    Snapshot,
    SnapshotQuery,
    Template,
    Templates,
)
from sandyard.engine.sandboxes.registry import LiveSandbox
from sandyard.engine.sandboxes.repository import compute_digest
from sandyard.engine.sandboxes.snapshots import DEFAULT_TAG, split_name
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, UnreachableError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_ALL, _ALL_SNAPSHOTS, _ALL_LOGS = SandboxQuery(), SnapshotQuery(), LogQuery()
CLOSE_TIMEOUT_S = 10.0  # how long operations in progress may continue when the engine stops


class Sandboxes:
    """The operations. See the module's docstring for the rules of all of them."""

    def __init__(
        self,
        database: Database,
        driver: Driver,
        templates: Templates,
        settings: EngineSettings,
        *,
        clock: Clock | None = None,
        boot_id: str | None = None,
        egress_authority: bytes = b"",
        get_deadline: Callable[[str], float] | None = None,
        explain_missing: Callable[[str], str | None] = lambda name: None,
        make_ready: Callable[[Template], str] = lambda template: "is not ready.",
    ) -> None:
        """`database` is open and stays owned by the caller. `egress_authority` is the certificate (PEM) that sandboxes with
        network rules have to trust. `get_deadline` returns the seconds that a driver call may take, by operation; the
        settings' by default. `explain_missing` returns what is missing for a name that does not resolve. `make_ready`
        starts the build of a template that is not ready, unless it is already running, and returns a description of its
        status."""
        self._templates = templates
        self._explain_missing = explain_missing
        self.make_ready = make_ready
        self._settings = settings
        self.components = Components(
            database,
            driver,
            settings,
            clock=clock,
            boot_id=boot_id,
            egress_authority=egress_authority,
            get_deadline=get_deadline,
        )
        self.internal = self.components.internal
        self.pull_snapshot: Callable[[str], Coroutine[Any, Any, object]] | None = None
        """Fetches a snapshot that is published under this id or name, if there is one."""
        self._creating: dict[tuple[str, str], tuple[bytes, asyncio.Task[Sandbox]]] = {}

    async def open(self) -> None:
        """Take over the driver and its sandboxes, finish or undo what a crash interrupted, and start timers and
        pool."""
        await self.components.open(self._get_default_template)

    async def close(self) -> None:
        """Release the driver; sandboxes keep running. Idempotent."""
        await self.components.close(CLOSE_TIMEOUT_S)

    async def create(self, request: CreateSandbox) -> Sandbox:
        """Create a running sandbox. The same idempotency key with the same request returns the same sandbox; with a
        different request it raises ConflictError. If the caller disconnects before the response, the sandbox lives
        until its timeout."""
        self._check_timeout(request.timeout_s)
        if request.auto_resume and request.on_timeout is OnTimeout.PAUSE and not request.auto_pause_memory:
            raise InvalidInputError(
                "A sandbox that pauses without memory cannot auto-resume. Keep its memory, or disable auto-resume."
            )
        if self.pull_snapshot is not None and not self._has_template(request.template):
            await self.components.tasks.finish(self.pull_snapshot(request.template))
        if request.idempotency_key is not None:
            return await self._create_once(request, (request.owner, request.idempotency_key))
        template = self.resolve_template(request.template)
        ready = self.components.creation.claim_pooled(request, template)
        if ready is not None:
            return ready
        return await self.components.tasks.finish(self._hold_and_create(request, template))

    def _hold_and_create(
        self, request: CreateSandbox, template: Template, key: tuple[str, str, bytes] | None = None
    ) -> Coroutine[Any, Any, Sandbox]:
        """Return the work of creating a sandbox. The template's snapshots are held from now on, because a delete may run
        before the first step of the work."""
        stack = ExitStack()
        stack.enter_context(self.components.snapshots.hold(template.snapshots))

        async def work() -> Sandbox:
            with stack:
                return await self.components.creation.create(request, template, key)

        return work()

    async def _create_once(self, request: CreateSandbox, key: tuple[str, str]) -> Sandbox:
        """Create a sandbox, or return the one that was created with this key, which is (owner, idempotency key)."""
        request_digest = compute_digest(request)
        in_progress = self._creating.get(key)
        if in_progress is not None:
            before, task = in_progress
        else:
            use = self.components.repository.find_key_use(*key)
            if use is not None:
                self._require_same_request(use.digest, request_digest)
                sandbox = self.components.registry.find(use.sandbox_id)
                if sandbox is None:
                    raise ConflictError(
                        f"The idempotency key was used for sandbox '{use.sandbox_id}', which has ended."
                    )
                return sandbox.record
            template = self.resolve_template(request.template)
            before = request_digest
            task = self.components.tasks.spawn(self._hold_and_create(request, template, (*key, request_digest)))
            self._creating[key] = (request_digest, task)
            task.add_done_callback(lambda _: self._creating.pop(key, None))
        self._require_same_request(before, request_digest)
        return await asyncio.shield(task)

    def _require_same_request(self, before: bytes, after: bytes) -> None:
        if before != after:
            raise ConflictError("The idempotency key was already used with a different request.")

    def find_shortage(self) -> str | None:
        """Return why no sandbox could be created now for lack of memory or disk, or None."""
        return self.components.capacity.find_shortage()

    def get(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox from memory, in microseconds; never wakes it. Raises NotFoundError."""
        return self.components.registry.get(sandbox_id).record

    def find(self, sandbox_id: str) -> Sandbox | None:
        """Return a sandbox or None."""
        sandbox = self.components.registry.find(sandbox_id)
        return None if sandbox is None else sandbox.record

    def list(self, query: SandboxQuery = _ALL) -> Page[Sandbox]:
        """Return a page, newest first. A sandbox that exists while all pages are read is returned exactly once. Raises
        InvalidInputError for a bad cursor."""
        return self.components.registry.get_page(query)

    def count(self, query: SandboxQuery = _ALL) -> int:
        """Return the number of sandboxes on all pages."""
        return self.components.registry.count(query)

    async def kill(self, sandbox_id: str) -> None:
        """Kill a running or paused sandbox. Raises NotFoundError if it does not exist (also if another kill was
        first)."""
        sandbox = self.components.registry.get(sandbox_id)
        await self.components.tasks.finish(self.components.remover.kill(sandbox, "The sandbox was killed on request"))

    async def pause(self, sandbox_id: str, *, memory: bool = True) -> Sandbox:
        """Pause the sandbox. `memory=False` keeps only the file system. Raises ConflictError if it is already
        paused."""
        sandbox = self.components.registry.get(sandbox_id)
        return await self.components.tasks.finish(self.components.lifecycle.pause(sandbox, memory=memory))

    async def connect(self, sandbox_id: str, timeout_s: float, *, memory: bool = True) -> tuple[Sandbox, bool]:
        """Connect to a sandbox. If running, extend its timeout to `timeout_s` from now, never shorten it, and return
        (sandbox, False). If paused, resume it and return (sandbox, True). `memory=False` discards the memory and boots
        it again."""
        self._check_timeout(timeout_s)
        sandbox = self.components.registry.get(sandbox_id)
        return await self.components.tasks.finish(self.components.lifecycle.connect(sandbox, timeout_s, memory=memory))

    async def resume(
        self, sandbox_id: str, timeout_s: float, *, auto_pause: bool | None = None, memory: bool = True
    ) -> Sandbox:
        """Resume a paused sandbox. Raises ConflictError if it is running."""
        self._check_timeout(timeout_s)
        sandbox = self.components.registry.get(sandbox_id)
        work = self.components.lifecycle.resume(sandbox, timeout_s, auto_pause=auto_pause, memory=memory)
        return await self.components.tasks.finish(work)

    async def set_timeout(self, sandbox_id: str, timeout_s: float) -> Sandbox:
        """Set the timeout, counted from now; may shorten it. 0 or less expires at once. Raises NotFoundError for a
        paused sandbox, as E2B does."""
        self._check_timeout(max(0.0, timeout_s))
        sandbox = await self._get_running(sandbox_id)
        record = self.components.lifecycle.extend(sandbox, max(0.0, timeout_s), may_shorten=True)
        if timeout_s > 0:
            return record
        await self.components.tasks.finish(self.components.lifecycle.handle_timer(sandbox))
        return sandbox.record

    async def refresh(self, sandbox_id: str, duration_s: float) -> Sandbox:
        """Like set_timeout, but never shortens."""
        self._check_timeout(duration_s)
        return self.components.lifecycle.extend(await self._get_running(sandbox_id), duration_s)

    async def fork(
        self, sandbox_id: str, count: int = 1, timeout_s: float = 15, memory: bool | None = None
    ) -> Sequence[ForkResult]:
        """Create `count` running sandboxes with this one's file system at one instant; each succeeds or fails
        independently. With `memory` they also continue its processes; None: if its isolation level and its processes
        allow it, as forks of E2B do. Raises ConflictError if it is paused, and UnsupportedError if `memory` is True but
        not possible."""
        if not 1 <= count <= self._settings.max_forks:
            raise InvalidInputError(f"Count must be at least 1 and cannot be greater than {self._settings.max_forks}")
        self._check_timeout(timeout_s)
        sandbox = self.components.registry.get(sandbox_id)
        return await self.components.tasks.finish(self.components.creation.fork(sandbox, count, timeout_s, memory))

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> Snapshot:
        """Save the current file system under a new id. `name` may contain `:tag`; an existing name and tag is moved to
        the new snapshot."""
        chosen, tag = (None, None) if name is None else split_name(name)
        existing = self._templates.resolve(chosen) if chosen is not None else None
        if existing is not None and not existing.can_be_overridden:
            raise ConflictError(f"A template with the name {chosen!r} already exists. Choose another name.")
        sandbox = self.components.registry.get(sandbox_id)
        return await self.components.tasks.finish(self._snapshot(sandbox, chosen, tag or DEFAULT_TAG))

    async def _snapshot(self, sandbox: LiveSandbox, name: str | None, tag: str) -> Snapshot:
        snapshot = await self.components.creation.snapshot(sandbox, name, tag)
        await self.components.database.flush()
        return snapshot

    def list_snapshots(self, query: SnapshotQuery = _ALL_SNAPSHOTS) -> Page[Snapshot]:
        """Return a page of snapshots, newest first."""
        return self.components.snapshots.get_page(query)

    def has_snapshot(self, name: str) -> bool:
        """Return whether a snapshot with this id, name or ref exists."""
        return self.components.snapshots.resolve(name) is not None

    async def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot by id, name or ref. It is no longer visible at once; its directory is removed when no
        sandbox uses it. Raises NotFoundError."""
        self.components.snapshots.delete(snapshot)

    async def set_network(self, sandbox_id: str, network: Network) -> Sandbox:
        """Replace the egress policy of a running sandbox. Raises ConflictError if it is paused."""
        sandbox = self.components.registry.get(sandbox_id)
        return await self.components.tasks.finish(self.components.lifecycle.set_network(sandbox, network))

    async def list_metrics(
        self, sandbox_id: str, start: float | None = None, end: float | None = None
    ) -> Sequence[Metric]:
        """Return the samples, oldest first. A running sandbox without samples is sampled at once."""
        sandbox = self.components.registry.get(sandbox_id)
        if not sandbox.series:
            await self.components.sampler.sample(sandbox)
        return sandbox.series.list_between(start, end) if sandbox.series is not None else []

    async def get_latest_metrics(self, sandbox_ids: Sequence[str]) -> dict[str, Metric]:
        """Return the newest sample of each sandbox that exists."""
        found: dict[str, Metric] = {}
        for sandbox in filter(None, map(self.components.registry.find, sandbox_ids)):
            if not sandbox.series:
                await self.components.sampler.sample(sandbox)
            last = sandbox.series.get_last() if sandbox.series is not None else None
            if last is not None:
                found[sandbox.id] = last
        return found

    @property
    def can_report_denied(self) -> bool:
        """Whether connections blocked by an egress policy can be reported."""
        return self.components.calls.driver.capabilities.egress

    async def log_denied(self, sandbox_id: str) -> None:
        """Update the log with what the sandbox's egress policy has blocked."""
        sandbox = self.components.registry.find(sandbox_id)
        if sandbox is not None:
            await self.components.lifecycle.log_denied(sandbox)

    def list_logs(self, sandbox_id: str, query: LogQuery = _ALL_LOGS) -> Sequence[LogEntry]:
        """Return log entries, also of a sandbox that has ended, while its logs are kept. Raises NotFoundError."""
        if self.components.registry.find(sandbox_id) is None and not self.components.logs.has_entries(sandbox_id):
            raise make_not_found_error(sandbox_id)
        return self.components.logs.query(sandbox_id, query)

    def log(self, sandbox_id: str, level: LogLevel, message: str, **fields: str) -> None:
        """Add an entry to a sandbox's own log (protocols record what a client did). Does nothing if the sandbox does
        not exist."""
        if self.components.registry.find(sandbox_id) is not None:
            self.components.logs.append(sandbox_id, level, message, **fields)

    def on_interrupted(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(sandbox_id, reason)` in the event loop when a sandbox was paused, killed or died: connections
        to it should be closed (a frozen agent never answers). `reason` is "paused", "killed" or "died"."""
        self.components.ledger.add_listener(listener)

    async def dial(self, sandbox_id: str, port: int) -> socket.socket:
        """Return a connected, non-blocking socket to a port of the sandbox. A paused sandbox is resumed first if it
        allows that. Raises SandboxUnreachableError "… was not found" (does not exist, or is paused) or PortClosedError
        "… port is not open"."""
        sandbox = self.components.registry.find(sandbox_id)
        if sandbox is None:
            raise SandboxUnreachableError
        if sandbox.changing is not None:
            await self._wait_until_settled(sandbox)
        if not sandbox.record.running or sandbox.removal_reason is not None:
            await self._wake(sandbox)
        driver = self.components.calls.driver
        try:
            return await self.components.calls.run("connect", sandbox_id, driver.connect(sandbox.record.handle, port))
        except StuckError:
            raise
        except (UnreachableError, NotFoundError) as error:
            raise (
                PortClosedError()
                if sandbox.removal_reason is None and sandbox.record.running
                else SandboxUnreachableError()
            ) from error

    async def _wait_until_settled(self, sandbox: LiveSandbox) -> None:
        if sandbox.changing is not None:
            done, _ = await asyncio.wait({sandbox.changing}, timeout=self._settings.get_deadline("boot"))
            if not done:
                raise StuckError(f"Sandbox '{sandbox.id}' is changing its state and does not finish. Try again later.")

    async def _wake(self, sandbox: LiveSandbox) -> None:
        """Resume a paused sandbox for traffic. Raises SandboxUnreachableError if it does not allow that."""
        record = sandbox.record
        # Traffic does not boot a sandbox without memory, unless it lost its memory without its user's decision.
        may_wake = record.auto_resume and (
            record.pause_kind is not PauseKind.FILESYSTEM or record.memory_lost is not None
        )
        if sandbox.removal_reason is not None or not may_wake:
            raise SandboxUnreachableError
        timeout_s = max(record.timeout_s, self._settings.auto_resume_timeout_s)
        try:
            await self.components.tasks.finish(self.components.lifecycle.wake(sandbox, timeout_s))
        except NotFoundError as error:
            raise SandboxUnreachableError from error

    def resolve_template(self, name: str) -> Template:
        """Return a template or snapshot from which a sandbox can be created, by id, alias or name, with or without
        `:tag`. Starts the build of a template that is built on demand. Raises NotFoundError, also if it is not
        ready."""
        found = self.find_template(name)
        if not found.ready:
            raise NotFoundError(f"template '{name[:200]}' {self.make_ready(found)}")
        return found

    def choose_isolation(self, template: str, metadata: Mapping[str, str]) -> tuple[Isolation, bool]:
        """Return the isolation level that a sandbox of this template would get now, and whether it could run containers.
        Raises NotFoundError, InvalidInputError and UnsupportedError, like a create."""
        found, creation = self.find_template(template), self.components.creation
        isolation = creation.choose_isolation(found, metadata)
        return isolation, creation.choose_containers(found, isolation, metadata)

    def _has_template(self, name: str) -> bool:
        return self.is_template(name) or self.has_snapshot(name)

    def is_template(self, name: str) -> bool:
        """Return whether a template, which is not a snapshot, has this id or name."""
        return self._templates.resolve(name) is not None

    def find_template(self, name: str) -> Template:
        """Return the template, ready or not. Raises NotFoundError."""
        found = self._templates.resolve(name)
        if found is None or found.can_be_overridden:
            found = self.components.snapshots.resolve(name) or found
        if found is None:
            missing = self._explain_missing(name)
            raise NotFoundError(f"template '{name[:200]}' not found" + (f": {missing}" if missing else ""))
        return found

    def _get_default_template(self) -> Template | None:
        """Return the template whose sandboxes are pooled."""
        found = self._templates.resolve(self._settings.default_template)
        return found if found is not None and found.ready else None

    def list_mounting(self, volume_id: str, *, removing: bool = False) -> Sequence[str]:
        """Return the sandboxes that mount a volume, including paused ones; with `removing`, also those being
        removed."""
        return [
            sandbox.id
            for sandbox in self.components.list_sandboxes(removing=removing)
            if any(m["id"] == volume_id for m in sandbox.volume_mounts)
        ]

    def uses_layer(self, layer: str) -> bool:
        """Return whether a sandbox or a snapshot needs this layer; then its owner must not remove it yet."""
        return self.components.uses_layer(layer)

    async def _get_running(self, sandbox_id: str) -> LiveSandbox:
        """Return a sandbox that is running and is not being paused. Raises NotFoundError."""
        sandbox = self.components.registry.get(sandbox_id)
        if sandbox.record.running:
            # A sandbox that is being paused would not keep running, even if its record says so.
            await self._wait_until_settled(sandbox)
        if not sandbox.record.running:
            raise NotFoundError(f"Sandbox '{sandbox_id}' is paused")
        return sandbox

    def _check_timeout(self, timeout_s: float) -> None:
        limit = self._settings.max_timeout_s
        if not timeout_s >= 0:  # also rejects NaN
            raise InvalidInputError("Timeout cannot be less than 0 seconds")
        if timeout_s > limit:
            raise InvalidInputError(f"Timeout cannot be greater than {limit / 3600:g} hours")
