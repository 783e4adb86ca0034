"""The sandboxes of this engine: every verb a protocol may call.

Rules of every verb
- What it changed is in the database before it returns. A caller that is cancelled (its client went away) leaves no
  half state: the verb runs on by itself to its end.
- Verbs on one sandbox are serialised; `kill` waits for nobody.
- A driver that does not answer in time gives an error that says so, never a hang.
- Raises only `sandyard.kit.errors`: NotFoundError (no such sandbox), ConflictError (wrong state), FullError (what is
  full), InvalidInputError, BusyError, UnreachableError.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sandyard.engine.contract import Driver
from sandyard.engine.sandboxes.errors import PortClosedError, SandboxUnreachableError, StuckError, no_such_sandbox
from sandyard.engine.sandboxes.model import (
    CreateSandbox,
    Forked,
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
from sandyard.engine.sandboxes.parts import Parts
from sandyard.engine.sandboxes.registry import Entry
from sandyard.engine.sandboxes.repository import digest
from sandyard.engine.sandboxes.snapshots import DEFAULT_TAG, split_name
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, UnreachableError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_ALL, _ALL_SNAPSHOTS, _ALL_LOGS = SandboxQuery(), SnapshotQuery(), LogQuery()
CLOSING_S = 10.0  # how long verbs under way may go on when the engine stops


class Sandboxes:
    def __init__(
        self,
        database: Database,
        driver: Driver,
        templates: Templates,
        settings: EngineSettings,
        *,
        clock: Clock | None = None,
        disks: Sequence[Path] | None = None,
        boot_id: str | None = None,
        egress_authority: bytes = b"",
        lacking: Callable[[str], str | None] = lambda name: None,
        make_ready: Callable[[Template], str] = lambda template: "is not ready.",
    ) -> None:
        """`database` is open and stays its owner's. `disks` are the paths whose free space counts (the data
        directory). `egress_authority` is the certificate (PEM) that sandboxes with network rules have to trust.
        `lacking` says of a name that does not resolve what it lacks. `make_ready` begins to build a template that is
        not ready, unless that was begun already, and says what becomes of it."""
        self._templates = templates
        self._lacking = lacking
        self._make_ready = make_ready
        self._settings = settings
        self._parts = Parts(
            database,
            driver,
            settings,
            clock=clock,
            disks=disks,
            boot_id=boot_id,
            egress_authority=egress_authority,
        )
        self.workshop = self._parts.workshop
        self._creating: dict[tuple[str, str], tuple[bytes, asyncio.Task[Sandbox]]] = {}

    async def open(self) -> None:
        """Take over the driver and its sandboxes, finish or undo what a crash interrupted, start timers and pool."""
        await self._parts.open(self._default_template)

    async def close(self) -> None:
        """Let go; sandboxes live on. Idempotent."""
        await self._parts.close(CLOSING_S)

    async def create(self, request: CreateSandbox) -> Sandbox:
        """A running sandbox. The same idempotency key with the same request gives the same sandbox, with another one
        ConflictError. A caller that goes away before the answer leaves a sandbox that lives until its timeout."""
        self._check_timeout(request.timeout_s)
        if request.auto_resume and request.on_timeout is OnTimeout.PAUSE and not request.auto_pause_memory:
            raise InvalidInputError(
                "A sandbox that pauses without its memory cannot be resumed by traffic: choose one of the two."
            )
        if request.idempotency_key is not None:
            return await self._create_once(request, (request.owner, request.idempotency_key))
        template = self.resolve_template(request.template)
        ready = self._parts.creation.claim(request, template)
        if ready is not None:
            return ready
        return await self._parts.tasks.finish(self._make(request, template))

    def _make(
        self, request: CreateSandbox, template: Template, key: tuple[str, str, bytes] | None = None
    ) -> Coroutine[Any, Any, Sandbox]:
        """Hold the template's snapshots from this very moment: a delete may come before the first step of the work."""
        held = ExitStack()
        held.enter_context(self._parts.snapshots.holding(template.snapshots))

        async def work() -> Sandbox:
            with held:
                return await self._parts.creation.create(request, template, key)

        return work()

    async def _create_once(self, request: CreateSandbox, key: tuple[str, str]) -> Sandbox:
        asked = digest(request)
        under_way = self._creating.get(key)
        if under_way is not None:
            before, task = under_way
        else:
            use = self._parts.repository.key_use(*key)
            if use is not None:
                self._same_request(use.digest, asked)
                entry = self._parts.registry.find(use.sandbox_id)
                if entry is None:
                    raise ConflictError(
                        f"The idempotency key was used for sandbox '{use.sandbox_id}', which has ended."
                    )
                return entry.record
            template = self.resolve_template(request.template)
            before = asked
            task = self._parts.tasks.spawn(self._make(request, template, (*key, asked)))
            self._creating[key] = (asked, task)
            task.add_done_callback(lambda _: self._creating.pop(key, None))
        self._same_request(before, asked)
        return await asyncio.shield(task)

    def _same_request(self, before: bytes, asked: bytes) -> None:
        if before != asked:
            raise ConflictError("The idempotency key was already used with another request.")

    def trouble(self) -> str | None:
        """Why no new sandbox could be made now, for want of memory or disk; None when one could."""
        return self._parts.capacity.trouble()

    def get(self, sandbox_id: str) -> Sandbox:
        """From memory, in microseconds; never wakes. NotFoundError."""
        return self._parts.registry.get(sandbox_id).record

    def find(self, sandbox_id: str) -> Sandbox | None:
        """`get` without the error."""
        entry = self._parts.registry.find(sandbox_id)
        return None if entry is None else entry.record

    def list(self, query: SandboxQuery = _ALL) -> Page[Sandbox]:
        """Newest first. A sandbox that exists during the whole walk over the pages is seen exactly once.
        InvalidInputError on a bad cursor."""
        return self._parts.registry.page(query)

    def count(self, query: SandboxQuery = _ALL) -> int:
        """How many there are on all pages."""
        return self._parts.registry.count(query)

    async def kill(self, sandbox_id: str) -> None:
        """Running or paused. NotFoundError when there is none (also when another kill was first)."""
        entry = self._parts.registry.get(sandbox_id)
        await self._parts.tasks.finish(self._parts.undertaker.kill(entry, "The sandbox was killed on request"))

    async def pause(self, sandbox_id: str, *, memory: bool = True) -> Sandbox:
        """ConflictError when it is paused already. `memory=False` keeps the file system only."""
        entry = self._parts.registry.get(sandbox_id)
        return await self._parts.tasks.finish(self._parts.lifecycle.pause(entry, memory=memory))

    async def connect(self, sandbox_id: str, timeout_s: float, *, memory: bool = True) -> tuple[Sandbox, bool]:
        """Running: extend its life to `timeout_s` from now, never shorten it, (sandbox, False). Paused: resume it,
        (sandbox, True). `memory=False` boots a paused one anew, dropping its memory."""
        self._check_timeout(timeout_s)
        entry = self._parts.registry.get(sandbox_id)
        return await self._parts.tasks.finish(self._parts.lifecycle.connect(entry, timeout_s, memory=memory))

    async def resume(
        self, sandbox_id: str, timeout_s: float, *, auto_pause: bool | None = None, memory: bool = True
    ) -> Sandbox:
        """ConflictError when it is running."""
        self._check_timeout(timeout_s)
        entry = self._parts.registry.get(sandbox_id)
        work = self._parts.lifecycle.resume(entry, timeout_s, auto_pause=auto_pause, memory=memory)
        return await self._parts.tasks.finish(work)

    async def set_timeout(self, sandbox_id: str, timeout_s: float) -> Sandbox:
        """From now; may shorten. 0 or less expires at once. A paused sandbox: NotFoundError, as at E2B."""
        self._check_timeout(max(0.0, timeout_s))
        entry = await self._running(sandbox_id)
        record = self._parts.lifecycle.extend(entry, max(0.0, timeout_s), may_shorten=True)
        if timeout_s > 0:
            return record
        await self._parts.tasks.finish(self._parts.lifecycle.due(entry))
        return entry.record

    async def refresh(self, sandbox_id: str, duration_s: float) -> Sandbox:
        """Like set_timeout, but never shortens."""
        self._check_timeout(duration_s)
        return self._parts.lifecycle.extend(await self._running(sandbox_id), duration_s)

    async def fork(self, sandbox_id: str, count: int = 1, timeout_s: float = 15) -> Sequence[Forked]:
        """`count` new running sandboxes with the file system of this one at one instant; each succeeds or fails by
        itself. ConflictError when it is paused."""
        if not 1 <= count <= self._settings.max_forks:
            raise InvalidInputError(f"Count must be at least 1 and cannot be greater than {self._settings.max_forks}")
        self._check_timeout(timeout_s)
        entry = self._parts.registry.get(sandbox_id)
        return await self._parts.tasks.finish(self._parts.creation.fork(entry, count, timeout_s))

    async def snapshot(self, sandbox_id: str, name: str | None = None) -> Snapshot:
        """Keep the file system as of now under a new id. `name` may carry `:tag`; an existing name and tag is moved
        to the new one."""
        chosen, tag = (None, None) if name is None else split_name(name)
        taken = self._templates.resolve(chosen) if chosen is not None else None
        if taken is not None and not taken.yields:
            raise ConflictError(f"There is a template with the name {chosen!r}.")
        entry = self._parts.registry.get(sandbox_id)
        return await self._parts.tasks.finish(self._snapshot(entry, chosen, tag or DEFAULT_TAG))

    async def _snapshot(self, entry: Entry, name: str | None, tag: str) -> Snapshot:
        snapshot = await self._parts.creation.snapshot(entry, name, tag)
        await self._parts.database.flush()
        return snapshot

    def snapshots(self, query: SnapshotQuery = _ALL_SNAPSHOTS) -> Page[Snapshot]:
        """Newest first."""
        return self._parts.snapshots.page(query)

    def has_snapshot(self, name: str) -> bool:
        """By id, name or ref."""
        return self._parts.snapshots.resolve(name) is not None

    async def delete_snapshot(self, snapshot: str) -> None:
        """By id, name or ref. It is gone for everybody at once; its directory goes when no sandbox stands on it.
        NotFoundError."""
        self._parts.snapshots.delete(snapshot)

    async def set_network(self, sandbox_id: str, network: Network) -> Sandbox:
        """Replace the egress policy, live. ConflictError when it is paused."""
        entry = self._parts.registry.get(sandbox_id)
        return await self._parts.tasks.finish(self._parts.lifecycle.set_network(entry, network))

    async def metrics(self, sandbox_id: str, start: float | None = None, end: float | None = None) -> Sequence[Metric]:
        """Oldest first. A running sandbox without a sample yet is sampled at once."""
        entry = self._parts.registry.get(sandbox_id)
        if not entry.series:
            await self._parts.sampler.sample(entry)
        return entry.series.between(start, end) if entry.series is not None else []

    async def latest_metrics(self, sandbox_ids: Sequence[str]) -> dict[str, Metric]:
        """The newest sample of each that exists."""
        found: dict[str, Metric] = {}
        for entry in filter(None, map(self._parts.registry.find, sandbox_ids)):
            if not entry.series:
                await self._parts.sampler.sample(entry)
            last = entry.series.last() if entry.series is not None else None
            if last is not None:
                found[entry.id] = last
        return found

    @property
    def records_denied(self) -> bool:
        """Whether what an egress policy refuses can be told."""
        return self._parts.calls.driver.capabilities.egress

    async def note_denied(self, sandbox_id: str) -> None:
        """Bring the log up to date with what the sandbox's egress policy has refused."""
        entry = self._parts.registry.find(sandbox_id)
        if entry is not None:
            await self._parts.lifecycle.note_denied(entry)

    def logs(self, sandbox_id: str, query: LogQuery = _ALL_LOGS) -> Sequence[LogEntry]:
        """Also of a sandbox that has ended, for as long as its logs are kept. NotFoundError."""
        if self._parts.registry.find(sandbox_id) is None and not self._parts.logs.known(sandbox_id):
            raise no_such_sandbox(sandbox_id)
        return self._parts.logs.query(sandbox_id, query)

    def log(self, sandbox_id: str, level: LogLevel, message: str, **fields: str) -> None:
        """Add an entry to a sandbox's own log (a protocol says what a client did). Nothing happens when there is no
        such sandbox."""
        if self._parts.registry.find(sandbox_id) is not None:
            self._parts.logs.append(sandbox_id, level, message, **fields)

    def on_interrupted(self, listener: Callable[[str, str], None]) -> None:
        """`listener(sandbox_id, reason)` is called, in the loop, when a sandbox was paused, killed or died: whoever
        holds connections to it should close them now (a frozen agent never answers). `reason` is "paused", "killed"
        or "died"."""
        self._parts.ledger.listen(listener)

    async def dial(self, sandbox_id: str, port: int) -> socket.socket:
        """A connected non-blocking socket to a port of the sandbox. A paused sandbox that allows it is resumed first.
        UnreachableError: SandboxUnreachableError "… was not found" (no such one, or paused) or PortClosedError "…
        port is not open"."""
        entry = self._parts.registry.find(sandbox_id)
        if entry is None:
            raise SandboxUnreachableError
        if entry.changing is not None:
            await self._settled(entry)
        if not entry.record.running or entry.gone is not None:
            await self._wake(entry)
        driver = self._parts.calls.driver
        try:
            return await self._parts.calls.run("connect", sandbox_id, driver.connect(entry.record.handle, port))
        except StuckError:
            raise
        except (UnreachableError, NotFoundError) as error:
            raise (
                PortClosedError() if entry.gone is None and entry.record.running else SandboxUnreachableError()
            ) from error

    async def _settled(self, entry: Entry) -> None:
        if entry.changing is not None:
            done, _ = await asyncio.wait({entry.changing}, timeout=self._settings.deadline("boot"))
            if not done:
                raise StuckError(f"Sandbox '{entry.id}' is changing its state and does not come to an end.")

    async def _wake(self, entry: Entry) -> None:
        record = entry.record
        # without its memory a sandbox is booted only on request, except where it lost it through no decision of its
        # user
        wakes = record.auto_resume and (record.pause_kind is not PauseKind.FILESYSTEM or record.memory_lost is not None)
        if entry.gone is not None or not wakes:
            raise SandboxUnreachableError
        timeout_s = max(record.timeout_s, self._settings.auto_resume_timeout_s)
        try:
            await self._parts.tasks.finish(self._parts.lifecycle.wake(entry, timeout_s))
        except NotFoundError as error:
            raise SandboxUnreachableError from error

    def resolve_template(self, name: str) -> Template:
        """A template or a snapshot of which a sandbox can be made, by id, alias or name, with or without `:tag`. One that
        is built when it is asked for is begun to be built. NotFoundError, also for one that is not ready."""
        found = self.find_template(name)
        if not found.ready:
            raise NotFoundError(f"template '{name[:200]}' {self._make_ready(found)}")
        return found

    def find_template(self, name: str) -> Template:
        """The same, ready or not. NotFoundError."""
        found = self._templates.resolve(name)
        if found is None or found.yields:
            found = self._parts.snapshots.resolve(name) or found
        if found is None:
            lacking = self._lacking(name)
            raise NotFoundError(f"template '{name[:200]}' not found" + (f": {lacking}" if lacking else ""))
        return found

    def _default_template(self) -> Template | None:
        """Of which sandboxes are kept ready."""
        found = self._templates.resolve(self._settings.default_template)
        return found if found is not None and found.ready else None

    def who_mounts(self, volume_id: str, *, dying: bool = False) -> Sequence[str]:
        """The sandboxes that have a volume mounted, paused ones too; with `dying`, also those that are being removed."""
        return [
            one.id for one in self._parts.users(dying=dying) if any(m["id"] == volume_id for m in one.volume_mounts)
        ]

    def stands_on(self, layer: str) -> bool:
        """True when a sandbox or a snapshot needs this layer: whoever owns it must not remove it yet."""
        return self._parts.stands_on(layer)

    async def _running(self, sandbox_id: str) -> Entry:
        entry = self._parts.registry.get(sandbox_id)
        if entry.record.running:
            await self._settled(entry)  # one that is just being paused would not live on, whatever its record says
        if not entry.record.running:
            raise NotFoundError(f"Sandbox '{sandbox_id}' is paused")
        return entry

    def _check_timeout(self, timeout_s: float) -> None:
        limit = self._settings.max_timeout_s
        if not timeout_s >= 0:  # also refuses what is not a number
            raise InvalidInputError("Timeout cannot be less than 0 seconds")
        if timeout_s > limit:
            raise InvalidInputError(f"Timeout cannot be greater than {limit / 3600:g} hours")
