"""Creation of sandboxes: from a template, from a snapshot, or as a copy of another sandbox.

The row is written last: a crash before that leaves a sandbox without a record, which the next `driver.open` removes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sandyard.engine.contract import Handle, Isolation, Layers, Limits, Mount, NetworkPolicy, Room, Spec
from sandyard.engine.drivers.cluster.model import DRIVER_NAME as CLUSTER_DRIVER
from sandyard.engine.sandboxes.agent import send_identity
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.capacity import Capacity
from sandyard.engine.sandboxes.containers import check_allowed, check_gvisor_containers, choose_containers, is_requested
from sandyard.engine.sandboxes.host_labels import NO_LABELS, choose_host_labels
from sandyard.engine.sandboxes.isolation import check_minimum, choose_isolation, find_requested_level
from sandyard.engine.sandboxes.ledger import Ledger
from sandyard.engine.sandboxes.lifecycle import Lifecycle
from sandyard.engine.sandboxes.model import CreateSandbox, ForkResult, Sandbox, Snapshot, State, Template, make_mounts
from sandyard.engine.sandboxes.pool import Pool, make_sandbox_id
from sandyard.engine.sandboxes.registry import LiveSandbox
from sandyard.engine.sandboxes.remover import SandboxRemover
from sandyard.engine.sandboxes.sampler import Sampler
from sandyard.engine.sandboxes.snapshots import DEFAULT_TAG, Snapshots, make_snapshot_id
from sandyard.engine.sandboxes.start_command import run_start_command
from sandyard.engine.sandboxes.trust import EgressTrust
from sandyard.engine.settings import EngineSettings
from sandyard.kit.errors import ConflictError, FullError, SandyardError, UnsupportedError
from sandyard.kit.ids import make_random_secret
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret

log = get_logger(__name__)

_DEFAULT_POLICY = NetworkPolicy()
_NO_METADATA: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class UnrecordedSandbox:
    """A sandbox of the driver without a record. `ready` means that its agent has the template's settings and the start
    command is running."""

    handle: Handle
    ready: bool


class Creation:
    """Creates sandboxes, forks and snapshots, within the machine's capacity."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        calls: DriverCalls,
        capacity: Capacity,
        sampler: Sampler,
        remover: SandboxRemover,
        lifecycle: Lifecycle,
        pool: Pool,
        snapshots: Snapshots,
        trust: EgressTrust,
        settings: EngineSettings,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._capacity = capacity
        self._sampler = sampler
        self._remover = remover
        self._lifecycle = lifecycle
        self._pool = pool
        self._snapshots = snapshots
        self._trust = trust
        self._settings = settings
        self._concurrency = asyncio.Semaphore(settings.create_concurrency)
        self._promised_memory = 0  # bytes that forks in progress will take at once

    def get_limits(self, template: Template) -> Limits:
        """Return the limits of sandboxes of this template: its own, otherwise the engine's defaults."""
        default = self._settings.default_limits
        return replace(
            default,
            cpu_count=template.cpu_count or default.cpu_count,
            memory_mb=template.memory_mb or default.memory_mb,
            disk_mb=template.disk_mb or default.disk_mb,
        )

    def choose_isolation(self, template: Template, metadata: Mapping[str, str] = _NO_METADATA) -> Isolation:
        """Return the isolation level of a new sandbox. Raises InvalidInputError and UnsupportedError."""
        capabilities, minimum = self._calls.driver.capabilities, self._settings.min_isolation
        if find_requested_level(metadata, template) is None and self._needs_gvisor(template, metadata):
            check_gvisor_containers(capabilities)
            return Isolation.GVISOR
        return choose_isolation(metadata, template, minimum, capabilities)

    def _needs_gvisor(self, template: Template, metadata: Mapping[str, str]) -> bool:
        return self._settings.allow_containers == "gvisor" and is_requested(metadata, template)

    def choose_containers(
        self, template: Template, isolation: Isolation, metadata: Mapping[str, str] = _NO_METADATA
    ) -> bool:
        """Return whether a new sandbox may run containers. Raises InvalidInputError and UnsupportedError."""
        capabilities, allowed = self._calls.driver.capabilities, self._settings.allow_containers
        return choose_containers(metadata, template, isolation, capabilities, allowed=allowed)

    def choose_host_labels(self, template: Template, metadata: Mapping[str, str] = _NO_METADATA) -> Mapping[str, str]:
        """Return the labels that the host of a new sandbox must have. Raises InvalidInputError."""
        return choose_host_labels(metadata, template, has_hosts=self._calls.driver.name == CLUSTER_DRIVER)

    def claim_pooled(self, request: CreateSandbox, template: Template) -> Sandbox | None:
        """Claim a matching sandbox from the pool, or return None. Fast: it needs only one write."""
        if request.env or request.volume_mounts or request.network.policy != _DEFAULT_POLICY:
            return None
        template_limits = self.get_limits(template)
        if request.limits is not None and request.limits != template_limits:
            return None
        isolation = self.choose_isolation(template, request.metadata)
        containers = self.choose_containers(template, isolation, request.metadata)
        if isolation is Isolation.GVISOR:
            return None  # it must be thawed first
        if self.choose_host_labels(template, request.metadata):
            return None  # pooled ones are on any host
        self._capacity.check(self._count_running())
        handle = self._pool.claim(template, template_limits, isolation, containers=containers)
        if handle is None:
            return None
        record = self._make_record(
            request, template, template_limits, isolation, handle, containers=containers, host_labels=NO_LABELS
        )
        self._calls.counters.creates.labels("pool").inc()
        return self._insert_record(record, "The sandbox was created")

    async def create(
        self, request: CreateSandbox, template: Template, key: tuple[str, str, bytes] | None = None
    ) -> Sandbox:
        """Create a running sandbox and its record. Raises FullError, which names the exhausted resource."""
        template_limits = self.get_limits(template)
        limits = request.limits or template_limits
        isolation = self.choose_isolation(template, request.metadata)
        containers = self.choose_containers(template, isolation, request.metadata)
        host_labels = self.choose_host_labels(template, request.metadata)
        with self._reserve_capacity(template.snapshots):
            mounts = make_mounts(request.volume_mounts)
            created = await self._claim_or_create(
                template,
                limits,
                isolation,
                request.network.policy,
                mounts,
                containers=containers,
                host_labels=host_labels,
                poolable=limits == template_limits,
            )
            record = self._make_record(
                request, template, limits, isolation, created.handle, containers=containers, host_labels=host_labels
            )
            self._calls.counters.creates.labels("pool" if created.ready else "new").inc()
            settings_sent = created.ready and not request.env
            return await self._finish(
                record, "The sandbox was created", settings_sent=settings_sent, start_command_ran=created.ready, key=key
            )

    def _make_record(
        self,
        request: CreateSandbox,
        template: Template,
        limits: Limits,
        isolation: Isolation,
        handle: Handle,
        *,
        containers: bool,
        host_labels: Mapping[str, str],
    ) -> Sandbox:
        now = self._ledger.clock.now()
        return Sandbox(
            id=handle.id,
            template_id=template.id,
            alias=template.aliases[0] if template.aliases else None,
            name=request.template,
            state=State.RUNNING,
            handle=handle,
            layers=template.layers,
            snapshots=template.snapshots,
            limits=limits,
            isolation=isolation,
            containers=containers,
            host_labels=host_labels,
            network=request.network,
            created_at=now,
            started_at=now,
            ends_at=now + request.timeout_s,
            timeout_s=request.timeout_s,
            metadata=request.metadata,
            env={**template.env, **request.env},
            defaults=template.defaults,
            start=template.start,
            secure=request.secure,
            access_token=make_random_secret() if request.secure else None,
            traffic_token=None if request.public_traffic else make_random_secret(),
            on_timeout=request.on_timeout,
            auto_pause_memory=request.auto_pause_memory,
            auto_resume=request.auto_resume,
            volume_mounts=request.volume_mounts,
            extra=request.extra,
        )

    async def fork(self, sandbox: LiveSandbox, count: int, timeout_s: float, memory: bool | None) -> list[ForkResult]:
        """Create copies of a running sandbox, all from the same instant. `memory`: with its processes; None: if possible."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._lifecycle.hold(sandbox))
            parent = sandbox.record
            if not parent.running:
                raise ConflictError(f"Sandbox '{sandbox.id}' is paused and cannot be forked; resume it first")
            check_minimum(parent.isolation, self._settings.min_isolation)
            check_allowed(parent.containers, parent.isolation, allowed=self._settings.allow_containers)
            if memory or (memory is None and parent.isolation in self._calls.driver.capabilities.memory_fork):
                try:
                    return await self._fork_with_memory(parent, count, timeout_s)
                except UnsupportedError as error:
                    if memory:
                        raise
                    log.warning("fork_without_memory", sandbox=parent.id, reason=error.message)
            if count == 1:
                return [await self._make_fork_result(self._fork(parent, timeout_s))]
            # The copies use a hidden snapshot, which is deleted with the last of them.
            snapshot_id = make_snapshot_id()
            with self._hold_snapshots((*parent.snapshots, snapshot_id)):
                snapshot = await self.capture(sandbox, snapshot_id, hidden=True)
                await stack.aclose()  # unlock the parent
                forks = (
                    self._make_fork_result(self._fork_from_snapshot(parent, snapshot, timeout_s)) for _ in range(count)
                )
                return list(await asyncio.gather(*forks))

    async def snapshot(self, sandbox: LiveSandbox, name: str | None, tag: str) -> Snapshot:
        """Save the current file system of a sandbox under a new id."""
        async with self._lifecycle.hold(sandbox):
            with self._hold_snapshots(sandbox.record.snapshots):
                return await self.capture(sandbox, make_snapshot_id(), name=name, tag=tag)

    async def capture(
        self,
        sandbox: LiveSandbox,
        snapshot_id: str,
        *,
        name: str | None = None,
        tag: str = DEFAULT_TAG,
        hidden: bool = False,
    ) -> Snapshot:
        """Let the driver take a snapshot, and record it. The caller must hold the sandbox and the snapshots it is based
        on."""
        parent = sandbox.record
        self._capacity.check(0, check_count=False)
        driver = self._calls.driver

        async def delete_late(_: Any) -> None:
            await driver.delete_snapshot(snapshot_id)

        try:
            call = driver.snapshot(parent.handle, snapshot_id)
            layers = await self._calls.run("snapshot", sandbox.id, call, if_late=delete_late)
            return self._snapshots.add(self._make_snapshot(parent, snapshot_id, layers, name, tag), hidden=hidden)
        except BaseException:
            self._snapshots.discard(snapshot_id)
            raise

    def _make_snapshot(self, parent: Sandbox, snapshot_id: str, layers: Layers, name: str | None, tag: str) -> Snapshot:
        return Snapshot(
            id=snapshot_id,
            sandbox_id=parent.id,
            template_id=parent.template_id,
            layers=layers,
            limits=parent.limits,
            created_at=self._ledger.clock.now(),
            name=name,
            tag=tag,
            env=parent.env,
            defaults=parent.defaults,
            start=parent.start,
            isolation=parent.isolation,
            containers=parent.containers,
            snapshots=parent.snapshots,
        )

    async def _fork(self, parent: Sandbox, timeout_s: float) -> Sandbox:
        with self._reserve_capacity(parent.snapshots):
            child = self._make_child_record(parent, timeout_s)
            handle = await self._call_driver(
                "fork", parent.id, lambda: self._calls.driver.fork(parent.handle, child.spec)
            )
            return await self._finish(replace(child, handle=handle), f"The sandbox was forked from {parent.id}")

    async def _fork_with_memory(self, parent: Sandbox, count: int, timeout_s: float) -> list[ForkResult]:
        stats = await self._calls.run("stats", parent.id, self._calls.driver.get_stats(parent.handle))
        # Each fork gets a copy of it at once. Memory of gVisor's programs counts as cache.
        memory = stats.memory_used + stats.memory_cache
        room = self._calls.driver.get_room(parent.handle)
        with ExitStack() as reserved:
            children, refused = list[Sandbox](), list[ForkResult]()
            try:
                reserved.enter_context(self._capacity.reserve_disk(memory, room))  # all forks are started from one file
            except FullError as error:
                return [ForkResult(error=error)] * count
            for _ in range(count):
                try:
                    reserved.enter_context(self._reserve_capacity(parent.snapshots, memory, room))
                except FullError as error:
                    refused.append(ForkResult(error=error))
                else:
                    children.append(self._make_child_record(parent, timeout_s))
            if not children:  # a checkpoint would close the connections of the original for nothing
                return refused
            async with self._concurrency:
                call = self._calls.driver.fork_with_memory(parent.handle, [child.spec for child in children])
                results = await self._calls.run("fork_with_memory", parent.id, call, if_late=self._discard_all)
            finished = (
                self._make_fork_result(self._finish_fork(parent, child, result))
                for child, result in zip(children, results, strict=True)
            )
            return [*await asyncio.gather(*finished), *refused]

    async def _discard_all(self, results: Sequence[Handle | SandyardError]) -> None:
        for result in results:
            if isinstance(result, Handle):
                self._remover.discard(result)

    async def _finish_fork(self, parent: Sandbox, child: Sandbox, result: Handle | SandyardError) -> Sandbox:
        if isinstance(result, SandyardError):
            raise result
        event = f"The sandbox was forked from {parent.id} with its memory"
        return await self._finish(replace(child, handle=result), event, start_command_ran=True)

    async def _fork_from_snapshot(self, parent: Sandbox, snapshot: Snapshot, timeout_s: float) -> Sandbox:
        used = (*snapshot.snapshots, snapshot.id)
        with self._reserve_capacity(used):
            child = replace(self._make_child_record(parent, timeout_s), layers=snapshot.layers, snapshots=used)
            handle = await self._call_driver("create", child.id, lambda: self._calls.driver.create(child.spec))
            return await self._finish(replace(child, handle=handle), f"The sandbox was forked from {parent.id}")

    def _make_child_record(self, parent: Sandbox, timeout_s: float) -> Sandbox:
        now = self._ledger.clock.now()
        child_id = make_sandbox_id()
        return replace(
            parent,
            id=child_id,
            handle=Handle(child_id, parent.handle.driver),
            created_at=now,
            started_at=now,
            ends_at=now + timeout_s,
            timeout_s=timeout_s,
            access_token=_renew_token(parent.access_token),
            traffic_token=_renew_token(parent.traffic_token),
            memory_lost=None,
            intent=None,
        )

    async def _claim_or_create(
        self,
        template: Template,
        limits: Limits,
        isolation: Isolation,
        policy: NetworkPolicy,
        mounts: tuple[Mount, ...] = (),
        *,
        containers: bool,
        host_labels: Mapping[str, str],
        poolable: bool,
    ) -> UnrecordedSandbox:
        """Claim a sandbox from the pool if `poolable` and it has one like this, otherwise let the driver create it. If the
        machine is full, empties the pool and tries again."""
        if poolable and policy == _DEFAULT_POLICY and not mounts and not host_labels:
            handle = self._pool.claim(template, limits, isolation, containers=containers)
            if handle is not None:
                if isolation is Isolation.GVISOR:
                    await self._thaw(handle)
                return UnrecordedSandbox(handle, ready=True)

        async def call_create() -> Handle:
            spec = Spec(make_sandbox_id(), template.layers, limits, policy, mounts, isolation, containers, host_labels)
            return await self._call_driver("create", spec.id, lambda: self._calls.driver.create(spec))

        try:
            return UnrecordedSandbox(await self._pool.run_client_create(call_create), ready=False)
        except FullError:
            if not await self._pool.drain_and_wait():
                raise
            # Removing the pooled sandboxes has freed resources.
            return UnrecordedSandbox(await self._pool.run_client_create(call_create), ready=False)

    async def _thaw(self, handle: Handle) -> None:
        try:
            await self._calls.run("thaw", handle.id, self._calls.driver.thaw(handle))
        except BaseException:
            self._remover.discard(handle)
            raise

    async def _call_driver(
        self, operation: str, subject: str, call: Callable[[], Coroutine[Any, Any, Handle]]
    ) -> Handle:
        """Call the driver, limited to `create_concurrency` calls at a time. A sandbox that it creates too late is
        removed."""

        async def discard(handle: Handle) -> None:
            self._remover.discard(handle)

        async with self._concurrency:
            return await self._calls.run(operation, subject, call(), if_late=discard)

    async def _finish(
        self,
        record: Sandbox,
        event: str,
        *,
        settings_sent: bool = False,
        start_command_ran: bool = False,
        key: tuple[str, str, bytes] | None = None,
    ) -> Sandbox:
        """Run the final steps common to all ways of creation: send settings to the agent, run the start command, write
        the record."""
        try:
            if not settings_sent:
                env = self._trust.make_env(record)
                await send_identity(self._calls, record.handle, record.template_id, env, record.defaults)
                await self._trust.install(record)
                if record.start is not None and not start_command_ran:
                    await run_start_command(self._calls, record.handle, record.start, self._settings.start_patience_s)
                now = self._ledger.clock.now()
                record = replace(record, created_at=now, started_at=now, ends_at=now + record.timeout_s)
        except BaseException:
            self._remover.discard(record.handle)
            raise
        return self._insert_record(record, event, key)

    def _insert_record(self, record: Sandbox, event: str, key: tuple[str, str, bytes] | None = None) -> Sandbox:
        """Insert the row and set up everything that belongs to a live sandbox."""
        try:
            sandbox = self._ledger.insert(record, event, key=key)
        except BaseException:
            self._remover.discard(record.handle)
            raise
        self._remover.watch(sandbox)
        self._sampler.schedule_sample(sandbox)
        return sandbox.record

    @asynccontextmanager
    async def create_unrecorded(self, template: Template, limits: Limits) -> AsyncIterator[Handle]:
        """Yield a running sandbox without a record. It is removed when the context ends."""
        isolation = self.choose_isolation(template)
        containers = self.choose_containers(template, isolation)
        host_labels = self.choose_host_labels(template)
        with self._reserve_capacity(template.snapshots):
            created = await self._claim_or_create(
                template,
                limits,
                isolation,
                _DEFAULT_POLICY,
                containers=containers,
                host_labels=host_labels,
                poolable=False,
            )
            handle = created.handle
            try:
                await send_identity(self._calls, handle, template.id, template.env, template.defaults)
                yield handle
            finally:
                await asyncio.shield(asyncio.ensure_future(self._remover.remove_unrecorded(handle)))

    async def _make_fork_result(self, call: Coroutine[Any, Any, Sandbox]) -> ForkResult:
        try:
            return ForkResult(sandbox=await call)
        except SandyardError as error:
            return ForkResult(error=error)

    def _count_running(self) -> int:
        """Count the sandboxes that use capacity. One that was killed uses it until its processes have ended."""
        return self._ledger.registry.started_count + len(self._remover.removing)

    @contextmanager
    def _reserve_capacity(
        self, snapshots: tuple[str, ...], memory: int = 0, room: Room | None = None
    ) -> Iterator[None]:
        """Reserve capacity for one more sandbox on these snapshots while it is being created. `memory` is what it takes
        at once, in bytes, in this `room` if it cannot be on any host."""
        self._capacity.check(self._count_running(), promised=self._promised_memory + memory, room=room)
        self._ledger.registry.creating_count += 1
        self._promised_memory += memory
        try:
            with self._hold_snapshots(snapshots):
                yield
        finally:
            self._ledger.registry.creating_count -= 1
            self._promised_memory -= memory

    def _hold_snapshots(self, snapshots: tuple[str, ...]) -> AbstractContextManager[None]:
        """Keep these snapshots' files while something without a record is being created from them."""
        return self._snapshots.hold(snapshots)


def _renew_token(token: Secret | None) -> Secret | None:
    return None if token is None else make_random_secret()
