"""Life cycle of sandboxes: create, resume, pause and destroy them on the engine.

The row is written before the engine is called, with an idempotency key under which the engine creates only one sandbox
however often it is called. A crash in between leaves a row that is provisioned again, or a sandbox whose row says that
it is not wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import select

from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import ConflictError, NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.owner_tasks import OwnerSlots
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Sandbox
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.projects.egress import Allowed, get_allowed
from sandyard.platform.domain.projects.inheritance import find_project
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.remotes import is_trusted
from sandyard.platform.domain.projects.service import owner_has_access
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.connections import UserConnections
from sandyard.platform.domain.sandboxes.e2b import (
    EngineError,
    EngineSandbox,
    EngineState,
    SandboxEngine,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.model import (
    LIVE,
    SANDBOX_LOST,
    NewSandbox,
    OwnerWithoutAccessError,
    Status,
    check_usable,
    get_sandbox_event_fields,
    utc_now,
)
from sandyard.platform.domain.sandboxes.repository import SandboxRepository, build_sandbox_row
from sandyard.platform.domain.sandboxes.running_limit import RunningLimit, get_sizes
from sandyard.platform.domain.users.quotas import UserQuotas

log = get_logger(__name__)
T = TypeVar("T")
RecordFork = Callable[[Transaction, Sandbox], Awaitable[None]]
"""Stores the row of a copied sandbox, and what belongs to it, in a transaction."""

SLOTS, SLOTS_PER_OWNER = 64, 8
"""How many sandboxes the platform changes at once on its own, in total and of one owner: a sandbox can delay calls to it."""
CREATIONS, CREATIONS_PER_OWNER = 64, 3
"""How many requests to create or fork sandboxes the engine gets at once, in total and for one owner. Its own queue knows no users, so that
a user's burst would delay everybody else's sandboxes."""
ENVS = "sandbox envs"
"""First part of the `place` of sealed environment variables."""
INSTANCE, ROW = "sandyard", "sandyard-sandbox"
"""Metadata of every sandbox that we create: the installation that owns it, and its row."""


class Sealer(Protocol):
    """Encrypts values for the database. `place` says what the value is and in which row; it opens only with the same place."""

    def seal(self, value: Secret, *place: str) -> bytes: ...
    def open(self, stored: bytes, *place: str) -> Secret: ...


Hook = Callable[[Sandbox], Awaitable[None]]
ForkHook = Callable[[Sandbox, datetime, Sandbox], Awaitable[None]]


class Lifecycle:
    """Life cycle of sandboxes, one object per process.

    The hooks `before_pause` run while the sandbox is still running, `before_destroy` while it still exists, `after_resume`
    when it runs again, and `after_end` when it is gone or has failed. A hook must not use the life cycle of the same
    sandbox. The hooks `after_fork` run before a copy is used, with the original, a time before the fork, and the copy.
    """

    def __init__(
        self,
        database: Database,
        engine: SandboxEngine,
        sealer: Sealer,
        activity: Activity,
        *,
        instance: str,
        idle_margin_s: int,
        allowed: Allowed = None,
        destinations: Destinations | None = None,
        resolve_quotas: Callable[[UserQuotas], UserQuotas] = lambda quotas: quotas,
    ) -> None:
        """Create the life cycle.

        `allowed`: what sandboxes may connect to if their project does not say. `destinations`: the private networks that
        sandboxes may connect to if their project's owner is not an administrator. None: all. `resolve_quotas`:
        returns the limits that apply to a user with these quotas.
        """
        self._database = database
        self.repository = SandboxRepository(database)
        self.engine = engine
        self.sealer = sealer
        self.activity = activity
        self.instance = instance
        self._idle_margin_s = idle_margin_s
        self._default_allowed = allowed
        self._destinations = destinations
        self.tasks = TaskSet("sandboxes")
        self.connections = UserConnections()
        self.running_limit = RunningLimit(database, resolve_quotas)
        self._network_slots = OwnerSlots(SLOTS, SLOTS_PER_OWNER)
        self._creation_slots = OwnerSlots(CREATIONS, CREATIONS_PER_OWNER)
        self._provisioning: dict[str, asyncio.Task[Sandbox]] = {}
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # run in this order; `wiring.py` registers all of them
        self.before_pause: list[Hook] = []
        self.before_destroy: list[Hook] = []
        self.after_resume: list[Hook] = []
        self.after_end: list[Hook] = []
        self.after_fork: list[ForkHook] = []

    async def close(self) -> None:
        """Stop all background tasks. Sandboxes and their processes continue."""
        await self.tasks.cancel()
        with contextlib.suppress(SandyardError):
            await self.repository.record_uses(self.activity.take_unwritten())

    # creation ---------------------------------------------------------------------------------------------------------

    def draft(self, owner_id: str, wanted: NewSandbox) -> Sandbox:
        """Return the row of a new sandbox. Add it in the caller's transaction, within `running_limit.start`, then
        call `provision`."""
        row = build_sandbox_row(
            owner_id,
            template=wanted.template,
            idle_seconds=wanted.idle_seconds,
            agent_id=wanted.agent_id,
            task_id=wanted.task_id,
            session_id=wanted.session_id,
            project_id=wanted.project_id,
            deleted_project_id=wanted.deleted_project_id,
            internal=wanted.internal,
        )
        if wanted.envs:
            row.envs = self.sealer.seal(Secret(json.dumps(dict(wanted.envs))), ENVS, row.id)
        return row

    def reseal_envs(self, old: Sandbox, new: Sandbox) -> bytes | None:
        """Return the environment variables of a sandbox, sealed for the sandbox that replaces it."""
        return None if old.envs is None else self.sealer.seal(self.sealer.open(old.envs, ENVS, old.id), ENVS, new.id)

    async def create(self, owner_id: str, wanted: NewSandbox) -> Sandbox:
        """Create a sandbox and return while it is being provisioned. Raises RunningLimitError."""
        row = self.draft(owner_id, wanted)
        async with self.running_limit.start(row), self._database.transaction() as tx:
            tx.add(row)
            tx.emit("sandbox.provisioning", **get_sandbox_event_fields(row), template=row.template)
        self.provision(row.id)
        return row

    def provision(self, sandbox_id: str) -> asyncio.Task[Sandbox]:
        """Create the sandbox on the engine in the background. Idempotent."""
        task = self._provisioning.get(sandbox_id)
        if task is None:
            task = self._provisioning[sandbox_id] = self.tasks.spawn(self._provision(sandbox_id))
            task.add_done_callback(lambda _: self._provisioning.pop(sandbox_id, None))
        return task

    async def wait_until_provisioned(self, sandbox_id: str) -> Sandbox:
        """Wait until the sandbox is provisioned. Raises the error if that failed."""
        task = self._provisioning.get(sandbox_id)
        if task is not None:
            return await asyncio.shield(task)
        row = await self.repository.get(sandbox_id)
        if row.status == Status.PROVISIONING and row.destroy_requested_at is None:
            return await asyncio.shield(self.provision(sandbox_id))
        return row

    async def _provision(self, sandbox_id: str) -> Sandbox:
        async def retry(operation: Callable[[], Awaitable[T]]) -> T:
            return await retry_while_database_unavailable(operation, "provisioning", sandbox=sandbox_id)

        row = await retry(lambda: self.repository.get(sandbox_id))
        async with self._creation_slots.slot(row.owner_id):
            row = await retry(lambda: self.repository.get(sandbox_id))  # it may have been deleted while it waited
            if row.status != Status.PROVISIONING or row.destroy_requested_at is not None:
                return row
            envs = json.loads(self.sealer.open(row.envs, ENVS, row.id).reveal()) if row.envs else {}
            allowed = await retry(lambda: self.load_allowed(row))
            settings = await retry(lambda: self._load_settings(row))
            try:
                created = await self.engine.create(
                    template=row.template,
                    timeout_s=row.idle_seconds + self._idle_margin_s,
                    metadata={INSTANCE: self.instance, ROW: row.id},
                    envs=envs,
                    idempotency_key=row.idempotency_key,
                    allowed=allowed,
                    isolation=settings.isolation,
                    containers=settings.containers,
                    host_labels=settings.host_labels,
                )
            except SandyardError as error:
                log.warning("sandbox_not_provisioned", sandbox=row.id, code=error.code, reason=error.message)
                await retry(partial(self._fail, row.id, error.message, error.code, [Status.PROVISIONING]))
                raise
        return await retry(lambda: self._record_created(row.id, created, allowed))

    async def _record_created(self, sandbox_id: str, created: EngineSandbox, allowed: Allowed) -> Sandbox:
        """Mark the row as running. Ends the created sandbox if the row no longer needs it."""
        now, engine_id = utc_now(), created.id
        try:
            row = await self.repository.change(
                sandbox_id,
                "sandbox.running",
                when=[Status.PROVISIONING],
                status=Status.RUNNING,
                engine_id=engine_id,
                network=allowed,
                isolation=created.isolation,
                **get_sizes(created),
                started_at=now,
                used_at=now,
                seen_at=now,
            )
        except ConflictError:
            row = await self.repository.get(sandbox_id)
            if row.engine_id != engine_id or row.status not in LIVE:  # it has been deleted or has failed meanwhile
                await self.engine.kill(engine_id)
            return row  # otherwise another platform process has created the same sandbox with the same key
        self.activity.touch(sandbox_id)
        log.info("sandbox_provisioned", sandbox=sandbox_id, engine_id=engine_id)
        if row.destroy_requested_at is not None:
            await self.complete_destroy(row)
        return row

    async def fork(
        self, owner_id: str, parent: Sandbox, wanted: NewSandbox, record: RecordFork | None = None
    ) -> Sandbox:
        """Copy a sandbox. See `fork_all`. Raises the error of the copy."""
        (copy,) = await self.fork_all(owner_id, parent, [wanted], record)
        if isinstance(copy, SandyardError):
            raise copy
        return copy

    async def fork_all(
        self, owner_id: str, parent: Sandbox, wanted: Sequence[NewSandbox], record: RecordFork | None = None
    ) -> list[Sandbox | SandyardError]:
        """Copy a sandbox's files, and at some isolation levels its processes, to new sandboxes, all from one instant.

        Each copy succeeds or fails independently. `record` adds a copy, and what belongs to it, to the transaction in which
        it is stored. A copy fails with ConflictError if the project's settings do not allow its isolation level or
        containers, which are those of the original, and with RunningLimitError if the owner may have no more running. If the
        process dies before a copy is recorded, the copy has no row and is ended like any other orphan.
        """
        rows = [self.draft(owner_id, new_sandbox) for new_sandbox in wanted]
        timeout_s, begun = max(row.idle_seconds for row in rows) + self._idle_margin_s, utc_now()

        async def copy_on_engine(engine_id: str) -> Sequence[EngineSandbox | SandyardError]:
            async with self._creation_slots.slot(owner_id):
                return await self.engine.fork(engine_id, timeout_s, len(rows))

        await self.running_limit.check(owner_id, rows[0].project_id, parent)
        copies = await self.call(parent, copy_on_engine)
        return list(
            await asyncio.gather(
                *(self._adopt_copy(parent, row, copy, begun, record) for row, copy in zip(rows, copies, strict=True))
            )
        )

    async def _adopt_copy(
        self,
        parent: Sandbox,
        row: Sandbox,
        copy: EngineSandbox | SandyardError,
        begun: datetime,
        record: RecordFork | None,
    ) -> Sandbox | SandyardError:
        """Record a copy of `parent` in its row. Deletes the copy if that fails."""
        if isinstance(copy, SandyardError):
            return copy
        now = utc_now()
        row.status, row.engine_id, row.isolation = Status.RUNNING, copy.id, copy.isolation
        row.started_at = row.used_at = row.seen_at = now
        row.cpu_count, row.memory_mb = parent.cpu_count, parent.memory_mb
        try:
            await self._check_settings(row, copy)
            row.network = await self.load_allowed(row)
            if row.network is not None or parent.network is not None:
                await self.engine.set_network(copy.id, row.network)
            await _run_hooks([partial(hook, parent, begun) for hook in self.after_fork], row)
            async with self.running_limit.start(row), self._database.transaction() as tx:
                if record is not None:
                    await record(tx, row)
                else:
                    tx.add(row)
                tx.emit("sandbox.running", **get_sandbox_event_fields(row), forkedFrom=parent.id)
        except BaseException as error:
            await self.engine.kill(copy.id)
            if isinstance(error, SandyardError):
                return error
            raise
        self.activity.touch(row.id)
        return row

    # use --------------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def using(self, row: Sandbox) -> AsyncIterator[str]:
        """Yield the engine's id of the sandbox, which is resumed if necessary and does not count as idle meanwhile."""
        with self.activity.using(row.id):
            yield await self.ensure_running(row)

    async def call(self, row: Sandbox, action: Callable[[str], Awaitable[T]]) -> T:
        """Run an action with the engine's id of the sandbox. Retries once if the engine had paused the sandbox on its own."""
        async with self.using(row) as engine_id:
            try:
                return await action(engine_id)
            except SandboxNotRunningError:
                await self.resume(await self.record_pause(row.id))
                return await action(engine_id)
            except SandboxNotFoundError:
                await self.mark_lost(row.id)
                raise

    async def ensure_running(self, row: Sandbox) -> str:
        """Return the engine's id of the sandbox after making sure that it is running.

        Raises OwnerWithoutAccessError if its owner was removed from its project.
        """
        row = await self.wait_until_provisioned(row.id)
        check_usable(row)
        if row.status == Status.PAUSED:
            row = await self.resume(row)
        else:
            await self.check_access(row)
        assert row.engine_id is not None
        return row.engine_id

    async def check_access(self, row: Sandbox) -> None:
        """Raise OwnerWithoutAccessError if the owner may no longer use the sandbox's project.

        `SandboxMaintenance` pauses such a sandbox, and nobody may resume, use or fork it. The platform's own sandboxes are exempt.
        """
        if row.project_id is None or row.internal:
            return
        async with self._database.reading() as session:
            if not await owner_has_access(session, row):
                raise OwnerWithoutAccessError

    async def resume(self, row: Sandbox, *, to_reconcile: bool = False) -> Sandbox:
        """Resume the sandbox. Idempotent. Its processes continue where they were.

        Raises OwnerWithoutAccessError and RunningLimitError. `to_reconcile` skips these checks: the engine runs the sandbox already,
        and only the row is outdated.
        """
        async with self._lock(row.id):
            row = await self.repository.get(row.id)
            check_usable(row)
            if not to_reconcile:
                await self.check_access(row)
            if row.status != Status.PAUSED:
                return row
            work = self._resume(row) if to_reconcile else self._resume_within_limit(row)
            return await self.tasks.finish(work)  # the caller may be cancelled, but others wait for it too

    async def _resume_within_limit(self, row: Sandbox) -> Sandbox:
        async with self.running_limit.start(row):
            return await self._resume(row)

    async def _resume(self, row: Sandbox) -> Sandbox:
        assert row.engine_id is not None
        try:
            await self.engine.resume(row.engine_id, row.idle_seconds + self._idle_margin_s)
        except SandboxNotFoundError:
            await self.mark_lost(row.id)
            raise
        allowed = await self._update_network(row)
        now = utc_now()
        try:
            row = await self.repository.change(
                row.id, "sandbox.resumed", when=[Status.PAUSED], status=Status.RUNNING, paused_at=None, used_at=now,
                seen_at=now, network=allowed,
            )  # fmt: skip
        except ConflictError:
            row = await self.repository.get(row.id)
            check_usable(row)
            if row.status != Status.RUNNING:  # otherwise another platform process was faster
                raise
        self.activity.touch(row.id)
        log.info("sandbox_resumed", sandbox=row.id)
        await _run_hooks(self.after_resume, row)
        return row

    # network ----------------------------------------------------------------------------------------------------------

    async def load_allowed(self, row: Sandbox) -> Allowed:
        """Return the egress policy for the sandbox: that of its project, also if the project was deleted."""
        async with self._database.reading() as session:
            project = await find_project(session, row)
            if project is None:
                return self._default_allowed
            destinations = None if await is_trusted(session, project) else self._destinations
        return get_allowed(project, self._default_allowed, destinations)

    async def _load_settings(self, row: Sandbox) -> ProjectSettings:
        """Return the settings of the sandbox's project, also if it was deleted, or the defaults for sandboxes without one."""
        async with self._database.reading() as session:
            project = await find_project(session, row)
        return ProjectSettings() if project is None else ProjectSettings.from_project(project)

    async def _check_settings(self, row: Sandbox, copy: EngineSandbox) -> None:
        """Raise ConflictError if the copy of a sandbox does not have the isolation level that the project requires, or may run
        containers although the project forbids it.
        """
        settings = await self._load_settings(row)
        if settings.isolation is not None and copy.isolation != settings.isolation:
            raise ConflictError(
                f"The sandbox cannot be forked: its isolation level is {copy.isolation or 'unknown'}, but the project now requires "
                f"{settings.isolation}. Create a new sandbox instead."
            )
        if settings.containers is False and copy.containers:
            raise ConflictError(
                "The sandbox cannot be forked: a copy could run containers too, but its project no longer allows that. Create a new "
                "sandbox instead."
            )

    async def _update_network(self, row: Sandbox) -> Allowed:
        """Apply network settings that changed while the sandbox was paused. If that fails, pause it again."""
        assert row.engine_id is not None
        has_project = row.project_id is not None or row.deleted_project_id is not None
        allowed = await self.load_allowed(row) if has_project else row.network
        if allowed != row.network:
            try:
                await self.engine.set_network(row.engine_id, allowed)
            except SandyardError:
                await self.engine.pause(row.engine_id)
                raise
        return allowed

    async def apply_network(self, project_id: str) -> None:
        """Apply the project's settings to its running sandboxes. `SandboxMaintenance` retries those that cannot be reached now."""

        async def update(row: Sandbox) -> None:
            async with self._network_slots.slot(row.owner_id):
                await self.update_network(row.id)

        await asyncio.gather(*(update(row) for row in await self.list_with_outdated_network(project_id)))

    async def list_with_outdated_network(self, project_id: str) -> list[Sandbox]:
        """List the project's running sandboxes to which its current settings are not applied yet."""
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.project_id == project_id, Sandbox.status == Status.RUNNING)
            rows = list((await session.execute(query)).scalars())
        allowed = await self.load_allowed(rows[0]) if rows else None
        return [row for row in rows if row.network != allowed]

    async def update_network(self, sandbox_id: str) -> None:
        """Apply the project's settings to the sandbox if it is running. A failure is only logged."""
        try:
            await self._apply_network(sandbox_id)
        except SandyardError as error:
            log.warning("sandbox_network_not_set", sandbox=sandbox_id, reason=error.message)

    async def _apply_network(self, sandbox_id: str) -> None:
        """Read the settings under the sandbox's lock, so that the newest settings are applied last."""
        async with self._lock(sandbox_id):
            row = await self.repository.get(sandbox_id)
            allowed = await self.load_allowed(row)
            if row.status != Status.RUNNING or row.network == allowed or row.engine_id is None:
                return
            await self.engine.set_network(row.engine_id, allowed)
            await self.repository.change(row.id, None, when=[Status.RUNNING], network=allowed)
        log.info("sandbox_network_set", sandbox=row.id, hosts=None if allowed is None else len(allowed))

    # pause ------------------------------------------------------------------------------------------------------------

    async def pause(self, row: Sandbox, *, only_if_idle_s: float | None = None) -> Sandbox:
        """Pause the sandbox: all processes stop where they are and memory is kept. Idempotent.

        `only_if_idle_s`: do nothing if the sandbox was used within this time.
        """
        if row.status == Status.PROVISIONING:
            row = await self.wait_until_provisioned(row.id)
        async with self._lock(row.id):
            row = await self.repository.get(row.id)
            check_usable(row)
            if row.status != Status.RUNNING:
                return row
            assert row.engine_id is not None
            await _run_hooks(self.before_pause, row)
            if only_if_idle_s is not None and self.activity.idle_for(row.id) < only_if_idle_s:
                return row  # somebody has started to use it
            try:
                await self.engine.pause(row.engine_id)
            except SandboxNotFoundError:
                await self.mark_lost(row.id)
                raise
            try:
                row = await self._mark_paused(row)
            except ConflictError:
                row = await self.record_pause(row.id)  # somebody noticed it before we could, and may have resumed it
            log.info("sandbox_paused", sandbox=row.id)
            return row

    async def record_pause(self, sandbox_id: str) -> Sandbox:
        """Record that the sandbox is paused, if the engine still says so.

        What the caller knows may be outdated: a sandbox that was resumed since must not be recorded as paused.
        """
        while True:
            row = await self.repository.get(sandbox_id)
            if row.status != Status.RUNNING or row.engine_id is None:
                return row
            try:
                box = await self.engine.get_info(row.engine_id)
            except SandboxNotFoundError:
                await self.mark_lost(sandbox_id)
                return await self.repository.get(sandbox_id)
            except EngineError:
                return row  # unknown
            if box.state is not EngineState.PAUSED:
                return row
            with contextlib.suppress(ConflictError):  # the row was changed after the engine was asked
                return await self._mark_paused(row)

    async def _mark_paused(self, row: Sandbox) -> Sandbox:
        """Mark the row as paused. Raises ConflictError if the row has changed since the engine was asked."""
        return await self.repository.change(
            row.id,
            "sandbox.paused",
            when=[Status.RUNNING],
            version=row.version,
            status=Status.PAUSED,
            paused_at=utc_now(),
            pause_count=row.pause_count + 1,
        )

    # end --------------------------------------------------------------------------------------------------------------

    async def destroy(self, row: Sandbox, *, keep_work: bool = True) -> None:
        """Delete the sandbox. Idempotent.

        If the engine is unavailable, raises its error and deletes the sandbox as soon as possible. `keep_work` False:
        its contents are no longer needed.
        """
        if row.status == Status.DESTROYED:
            return
        if row.destroy_requested_at is None:
            with contextlib.suppress(ConflictError):
                row = await self.repository.change(
                    row.id, None, when=[*LIVE, Status.ERROR], destroy_requested_at=utc_now()
                )
        task = self._provisioning.get(row.id)
        if task is not None:
            with contextlib.suppress(SandyardError):
                await asyncio.shield(task)
            row = await self.repository.get(row.id)
        await self.complete_destroy(row, keep_work=keep_work)

    async def complete_destroy(self, row: Sandbox, *, keep_work: bool = True) -> None:
        """Delete a sandbox whose deletion is recorded in its row (`destroy_requested_at`). Idempotent."""
        if row.engine_id is not None:
            if keep_work and row.status in (Status.RUNNING, Status.PAUSED):
                await _run_hooks(self.before_destroy, row)
            await self.engine.kill(row.engine_id)
        with contextlib.suppress(ConflictError):
            row = await self.repository.change(
                row.id,
                "sandbox.destroyed",
                when=[*LIVE, Status.ERROR],
                status=Status.DESTROYED,
                destroyed_at=utc_now(),
                envs=row.envs if row.session_id else None,  # its session may be provisioned again
            )
            log.info("sandbox_destroyed", sandbox=row.id)
        self.activity.forget(row.id)
        await _run_hooks(self.after_end, row)

    async def mark_lost(self, sandbox_id: str, reason: str | None = None) -> None:
        """Record that the engine no longer has the sandbox. That is not a failure if it was to be deleted."""
        reason = reason or "The sandbox has ended: it no longer exists on the engine."
        with contextlib.suppress(NotFoundError):
            if (await self.repository.get(sandbox_id)).destroy_requested_at is None:
                await self._fail(sandbox_id, reason, SANDBOX_LOST, LIVE)

    async def _fail(self, sandbox_id: str, reason: str, code: str, when: Iterable[Status]) -> None:
        try:
            row = await self.repository.change(
                sandbox_id, "sandbox.error", when=when, status=Status.ERROR, error=reason, error_code=code
            )
        except (ConflictError, NotFoundError):
            return
        self.activity.forget(sandbox_id)
        log.warning("sandbox_failed", sandbox=sandbox_id, reason=reason)
        await _run_hooks(self.after_end, row)

    def _lock(self, sandbox_id: str) -> asyncio.Lock:
        lock = self.locks.get(sandbox_id)
        if lock is None:
            lock = self.locks[sandbox_id] = asyncio.Lock()
        return lock


async def _run_hooks(hooks: Iterable[Hook], row: Sandbox) -> None:
    """Run the hooks. A failing hook is only logged: it must not prevent a sandbox from pausing, resuming or ending."""
    for hook in hooks:
        try:
            await hook(row)
        except SandyardError as error:
            log.warning("sandbox_hook_failed", sandbox=row.id, reason=error.message)
        except Exception as error:
            log.error("sandbox_hook_crashed", sandbox=row.id, exc=error)  # noqa: TRY400
