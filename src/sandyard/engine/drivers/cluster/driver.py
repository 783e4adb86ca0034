"""The driver for several hosts: the machine of the engine, and host services on other machines.

The driver of the engine's own machine stays in the engine's process, and its sandboxes have its own handles: without
registered hosts, nothing is different. Sandboxes of other hosts have handles with the driver `cluster` and the id of
their host. Everything that this driver knows about a host comes from the host, so that nothing has to be stored.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandyard import __version__
from sandyard.engine.contract import (
    Capabilities,
    Condition,
    DeniedAttempt,
    DiskReport,
    Driver,
    Hairpin,
    Handle,
    Layers,
    NetworkPolicy,
    OnDoubt,
    Room,
    Spec,
    Stats,
    VolumeFiles,
    ignore_doubt,
)
from sandyard.engine.drivers.cluster import codec, reports
from sandyard.engine.drivers.cluster.connections import relay
from sandyard.engine.drivers.cluster.egress import Egress, EgressAnswers
from sandyard.engine.drivers.cluster.layers import LayerCopies
from sandyard.engine.drivers.cluster.link import EngineIdentity, HostLink
from sandyard.engine.drivers.cluster.model import (
    DRIVER_NAME,
    ELSEWHERE,
    LOCAL_HOST_ID,
    HostDirectory,
    HostRecord,
    HostState,
    HostStatus,
    Origins,
    PlacementRequest,
)
from sandyard.engine.drivers.cluster.placement import Candidate, Reserves, explain_refusals, place
from sandyard.engine.drivers.cluster.transfers import LayerTransfers
from sandyard.engine.drivers.cluster.volumes import ClusterVolumes
from sandyard.engine.drivers.layer_names import SHARED, SNAPSHOT, get_original_name, make_layer_name
from sandyard.kit.errors import (
    BusyError,
    ConflictError,
    FullError,
    InvalidInputError,
    NoSpaceError,
    NotFoundError,
    SandyardError,
    UnreachableError,
)
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

OPEN_WAIT_S = 60.0  # for the first attempt to open a host when the engine starts
TRANSFER_WAIT_S = 20.0
"""How long a create waits for layers that are copied to a host. It must be less than the deadline for creates."""
SLOW_TRANSFER_S = 300.0
"""If a host still lacks its copy after this time, other hosts get one too."""
_TRANSFER_ROUNDS = 3
MAX_LAYERS = 1000
_SHARED = re.compile(re.escape(SHARED) + ":[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """`epoch` is greater each time the engine starts. `use_local`: sandboxes are placed on the engine's own machine too.
    `stats_interval_s`: how often hosts send measurements; 0: only when they are asked."""

    epoch: int
    reserves: Reserves
    use_local: bool = True
    stats_interval_s: float = 0.0


class ClusterDriver:
    """Implements `contract.Driver` over the driver of this machine and all registered hosts. `copies` are the layers of this
    machine, `origins` where all others are from, `egress` what hosts get from the engine for network rules."""

    def __init__(
        self,
        local: Driver,
        copies: LayerCopies,
        directory: HostDirectory,
        options: ClusterOptions,
        *,
        origins: Origins,
        egress: Egress | None = None,
    ) -> None:
        self.local = local
        self._copies = copies
        self._origins = origins
        self._directory = directory
        self._options = options
        self._identity = EngineIdentity(options.epoch, uuid.uuid4().hex, options.stats_interval_s)
        self._links: dict[str, HostLink] = {}
        self._local_ids: set[str] = set()
        self._creating_here = 0
        self._snapshots: set[str] = set()
        self._started_at = time.time()
        self._combined: Capabilities | None = None
        self._combined_from: tuple[object, ...] = ()  # what `_combined` was computed from
        self.list_common_layers: Callable[[], Sequence[Layers]] = tuple
        """Returns the root file systems that every host should have before it is asked for a sandbox with them."""
        self._on_doubt: OnDoubt = ignore_doubt
        self._tasks = TaskSet("cluster")
        self._is_open = False
        self._egress = EgressAnswers(egress)
        self._transfers = LayerTransfers(copies, self._links, origins)
        self._volumes = ClusterVolumes(local, self._links, origins, options.reserves, use_local=options.use_local)

    # The hosts --------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return DRIVER_NAME if self._links else self.local.name

    @property
    def on_doubt(self) -> OnDoubt:
        return self._on_doubt

    @on_doubt.setter
    def on_doubt(self, value: OnDoubt) -> None:
        self._on_doubt = self.local.on_doubt = value

    @property
    def find_policy(self) -> Callable[[str], NetworkPolicy | None]:
        """Return the current network policy of a sandbox by its id. Hosts get secrets and certificates only for the rules
        of their sandboxes."""
        return self._egress.find_policy

    @find_policy.setter
    def find_policy(self, value: Callable[[str], NetworkPolicy | None]) -> None:
        self._egress.find_policy = value

    @property
    def capabilities(self) -> Capabilities:
        if not self._links:
            return self.local.capabilities
        local = self.local.capabilities if self._options.use_local else None
        parts = (local, *((link.record.name, link.capabilities) for link in self._links.values()))
        if parts != self._combined_from or self._combined is None:
            self._combined_from = parts
            self._combined = reports.combine_capabilities(local, self._links.values())
        return self._combined

    @property
    def hairpin(self) -> Hairpin | None:
        return self.local.hairpin

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        self._snapshots = set(snapshots)
        by_host: dict[str, dict[str, Handle]] = {}
        for handle in keep:
            if handle.driver == ELSEWHERE:
                continue
            host_id, inner = split_handle(handle)
            by_host.setdefault(host_id, {})[handle.id] = inner
        local = by_host.pop(LOCAL_HOST_ID, {})
        self._local_ids = set(local)
        found = dict(await self.local.open(tuple(local.values()), snapshots))
        if not self._is_open:
            self._is_open = True
            await asyncio.to_thread(self._copies.prepare)
            self._directory.on_change(self._update_hosts)
        await self._copies.keep_snapshots(snapshots)
        for record in self._directory.list_records():
            if record.id not in self._links:
                self._links[record.id] = self._make_link(record)
        opening = [link.open(by_host.pop(link.record.id, {}), OPEN_WAIT_S) for link in self._links.values()]
        for conditions in await asyncio.gather(*opening):
            found |= conditions
        for handles in by_host.values():  # of hosts that an administrator has removed
            found |= dict.fromkeys(handles, Condition.ABSENT)
        return found

    async def close(self) -> None:
        await self._tasks.cancel()
        await self._transfers.close()
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()
        await self._copies.close()
        await self.local.close()

    def _make_link(self, record: HostRecord) -> HostLink:
        async def handle(verb: str, arguments: Mapping[str, Any]) -> Any:
            link = self._links.get(record.id)
            try:
                return await self._egress.answer(verb, arguments, link.list_entitled() if link is not None else ())
            except codec.MALFORMED:
                raise InvalidInputError(f"The engine does not understand the question {verb[:100]!r}.") from None

        return HostLink(
            record,
            self._directory,
            self._identity,
            handle=handle,
            on_doubt=self._report_doubt,
            list_snapshots=lambda: self._snapshots,
            on_ready=self._prefetch,
        )

    def _prefetch(self, link: HostLink) -> None:
        """Copy what most sandboxes need to a host that was opened."""
        try:
            common = self.list_common_layers()
        except SandyardError as error:
            log.warning("layers_not_prefetched", host=link.record.id, reason=error.message)
            return
        for layers in common:
            self._transfers.prefetch(layers, link)

    def _report_doubt(self, sandbox_ids: Collection[str], reason: str) -> None:
        self._on_doubt(sandbox_ids, reason)

    def _update_hosts(self) -> None:
        """Use the changed list of hosts."""
        records = {record.id: record for record in self._directory.list_records()}
        for host_id in set(self._links) - set(records):
            link = self._links.pop(host_id)
            log.info("host_removed", host=host_id, sandboxes=len(link.handles))
            self._tasks.spawn(link.close())
            if link.handles:
                self._on_doubt(list(link.handles), f"Its host {link.record.name} was removed from this engine")
        for record in records.values():
            known = self._links.get(record.id)
            if known is not None:
                known.update(record)
            else:
                link = self._links[record.id] = self._make_link(record)
                link.start()

    def list_statuses(self) -> Sequence[HostStatus]:
        """Return the engine's own machine and all registered hosts, as they are now."""
        return [self._describe_local(), *(link.status for link in self._links.values())]

    def find_host(self, handle: Handle) -> str:
        """Return the id of the host of a sandbox."""
        return split_handle(handle)[0]

    def list_sandboxes(self, host_id: str) -> Collection[str]:
        """Return the ids of the sandboxes on a host, in every condition."""
        if host_id == LOCAL_HOST_ID:
            return frozenset(self._local_ids)
        link = self._links.get(host_id)
        return frozenset(link.handles) if link is not None else frozenset()

    def is_ready(self, host_id: str) -> bool:
        """Return whether a host can be reached."""
        link = self._links.get(host_id)
        return host_id == LOCAL_HOST_ID or (link is not None and link.state is HostState.READY)

    def find_last_seen(self, host_id: str) -> float | None:
        """Return when a host last answered, or None if this engine has not reached it yet."""
        link = self._links.get(host_id)
        return link.seen_at if link is not None else None

    def abandon(self, handle: Handle) -> None:
        """Forget a sandbox of a lost host, because it continues elsewhere. If the host returns, it removes the sandbox."""
        try:
            link, inner = self._get_link(handle)
        except NotFoundError:
            return  # with its host
        if link is not None:
            self._tasks.spawn(link.abandon(inner))

    def _describe_local(self) -> HostStatus:
        record = HostRecord(LOCAL_HOST_ID, LOCAL_HOST_ID, "127.0.0.1", 0, draining=not self._options.use_local)
        room = reports.describe_room(self.local.get_room())
        count = len(self._local_ids)
        return HostStatus(
            record, HostState.READY, self._started_at, None, __version__, room, self.local.capabilities, count
        )

    def find_layers(self, layers: Layers) -> Layers:
        return self.local.find_layers(self._copies.resolve(layers))

    async def fetch_layers(self, layers: Layers) -> None:
        """Make sure that these layers are on this machine, where `find_layers` finds them. Raises NotFoundError or
        UnreachableError."""
        for layer in layers:
            if not self._copies.has(layer):
                await self._transfers.copy(layer, None)

    def get_room(self, handle: Handle | None = None) -> Room:
        local = self.local.get_room()
        if handle is not None:
            link, _ = self._get_link(handle)
            return local if link is None else reports.get_room(link)
        return reports.combine_room(local if self._options.use_local else None, self._links.values()) or local

    async def measure_disk(self) -> DiskReport:
        return await self.local.measure_disk()

    async def wait_for_failure(self) -> str:
        return await self.local.wait_for_failure()

    def _get_link(self, handle: Handle) -> tuple[HostLink | None, Handle]:
        """Return the link to the host of a sandbox, None for this machine, and the handle of the host's own driver. Raises
        NotFoundError if the host is not registered, and UnreachableError if the sandbox is on another engine's machine."""
        if handle.driver == ELSEWHERE:
            raise UnreachableError(
                f"The sandbox {handle.id} is on the machine of another engine, and out of reach until that engine is active again."
            )
        if handle.driver != DRIVER_NAME:
            return None, handle
        host_id, inner = split_handle(handle)
        link = self._links.get(host_id)
        if link is None:
            raise NotFoundError(f"The host of the sandbox {handle.id} is no longer registered with this engine.")
        return link, inner

    # Creation ---------------------------------------------------------------------------------------------------------

    async def create(self, spec: Spec) -> Handle:
        if not self._links:
            return await self._create_here(spec)
        host_id = await self._volumes.find_host([mount.volume for mount in spec.mounts])
        if host_id is None and self._options.use_local and any(layer.startswith("/") for layer in spec.layers):
            host_id = LOCAL_HOST_ID  # layers of earlier versions have paths on this machine instead of names
        request = PlacementRequest(
            spec.limits.memory_mb, spec.isolation, spec.containers, spec.layers, spec.host_labels, host_id
        )
        placement = place(request, self._list_candidates(spec.layers), self._options.reserves)
        for host_id in placement.lacking:
            if host_id in self._links:
                self._transfers.prefetch(spec.layers, self._links[host_id])
        refused: dict[str, SandyardError] = {}
        patience = asyncio.get_running_loop().time() + TRANSFER_WAIT_S
        for position, host_id in enumerate(placement.hosts):
            link = self._links.get(host_id)
            others = placement.hosts[position + 1 :]
            try:
                if link is not None:
                    may_wait = not any(self._has_layers(other, spec.layers) for other in others)
                    with link.count_create():
                        return await self._create_there(spec, link, patience, may_wait=may_wait)
                await self._wait_for_transfers(spec.layers, None, patience)
                return await self._create_here(spec)
            except _TransferPendingError:
                raise  # the other hosts lack the layers too, and each would get a copy
            except SandyardError as error:
                if link is None and not isinstance(error, (FullError, NoSpaceError, UnreachableError, BusyError)):
                    raise  # something is wrong with the sandbox, and not only on one host that says so
                name = link.record.name if link is not None else LOCAL_HOST_ID
                log.warning("host_refused_sandbox", host=host_id, sandbox=spec.id, reason=error.message)
                refused[name] = FullError(error.message) if isinstance(error, NoSpaceError) else error
                last = error
        raise last if len(refused) == 1 else explain_refusals(refused)

    def _has_layers(self, host_id: str, layers: Layers) -> bool:
        """Return whether a host has these layers, as far as the engine knows."""
        if (link := self._links.get(host_id)) is not None:
            return not link.is_stuck and link.layers.issuperset(layers)
        return host_id == LOCAL_HOST_ID and all(map(self._copies.has, layers))

    def _list_candidates(self, layers: Layers) -> list[Candidate]:
        """Return the hosts on which a sandbox could be placed."""
        found = []
        for link in self._links.values():
            found.append(
                Candidate(
                    link.record,
                    link.state,
                    link.reason,
                    link.room,
                    link.capabilities,
                    link.layers,
                    len(link.handles) + link.creating,
                    link.arriving,
                    link.is_stuck,
                )
            )
        if self._options.use_local:
            status = self._describe_local()
            present = [layer for layer in layers if self._copies.has(layer)]
            found.append(
                Candidate(
                    status.record,
                    status.state,
                    None,
                    status.room,
                    status.capabilities,
                    present,
                    status.sandboxes + self._creating_here,
                    0,
                )
            )
        return found

    async def _wait_for_transfers(self, layers: Sequence[str], target: HostLink | None, until: float) -> None:
        """Copy layers to a host, None for this machine. Raises BusyError if that takes longer; it then goes on in the
        background."""
        name = target.record.name if target is not None else LOCAL_HOST_ID
        for layer in layers:
            if target is None and self._copies.has(layer):
                continue
            try:
                async with asyncio.timeout_at(until):
                    await self._transfers.copy(layer, target)
            except TimeoutError:
                is_slow = self._transfers.get_age(layer, target) > SLOW_TRANSFER_S
                raise (BusyError if is_slow else _TransferPendingError)(
                    f"The layer {layer}, which the sandbox needs, is still being copied to the host {name}. Try again in a minute."
                ) from None

    async def _create_here(self, spec: Spec) -> Handle:
        self._creating_here += 1
        try:
            return self._add_local(await self.local.create(self._localize(spec)))
        finally:
            self._creating_here -= 1

    def _localize(self, spec: Spec) -> Spec:
        layers = self._copies.resolve(spec.layers)
        return spec if layers is spec.layers else replace(spec, layers=layers)

    def _add_local(self, handle: Handle) -> Handle:
        self._local_ids.add(handle.id)
        return handle

    async def _create_there(self, spec: Spec, link: HostLink, patience: float, *, may_wait: bool) -> Handle:
        """Create a sandbox on another host, which gets the layers that it lacks, in the background unless this may wait. Raises BusyError
        then, among others."""
        self._egress.check_rules(spec.network)
        plain = codec.encode_spec(spec)
        for _ in range(_TRANSFER_ROUNDS):
            with link.watch_create():
                result = await link.call("create", undo=link.undo_start, spec=plain)
            with link.translate_parse_errors():
                missing = [str(layer) for layer in result.get("missing", ())]
                if not set(missing) <= set(spec.layers):  # it gets no other layers, and no other directories
                    raise ValueError("it asks for layers that the sandbox does not have")
            if not missing:
                started = link.add_started(result, spec.id)
                link.layers.update(spec.layers)
                return join_handle(link, started, spec.layers)
            was_claimed = not link.layers.isdisjoint(missing)
            link.layers.difference_update(missing)
            if not may_wait:
                self._transfers.prefetch(spec.layers, link)
                raise BusyError(f"The host {link.record.name} does not have the layers yet.")
            try:
                await self._wait_for_transfers(missing, link, patience)
            except BusyError as error:
                if was_claimed or not isinstance(error, _TransferPendingError):  # it is not just slow
                    link.avoid()
                raise
        raise UnreachableError(f"The host {link.record.name} does not keep the layers that it was sent. See its log.")

    async def boot(self, handle: Handle, spec: Spec) -> Handle:
        link, inner = self._get_link(handle)
        if link is None:
            return await self.local.boot(handle, self._localize(spec))
        self._egress.check_rules(spec.network)
        return join_handle(link, await link.boot(inner, codec.encode_spec(spec)), spec.layers)

    async def fork(self, handle: Handle, spec: Spec) -> Handle:
        link, inner = self._get_link(handle)
        if link is None:
            return self._add_local(await self.local.fork(handle, self._localize(spec)))
        self._egress.check_rules(spec.network)
        plain = codec.encode_spec(spec)
        started = await link.call("fork", undo=link.undo_start, handle=codec.encode_handle(inner), spec=plain)
        return join_handle(link, link.add_started(started, spec.id), spec.layers)

    async def fork_with_memory(self, handle: Handle, specs: Sequence[Spec]) -> Sequence[Handle | SandyardError]:
        link, inner = self._get_link(handle)
        if link is None:
            forks = await self.local.fork_with_memory(handle, [self._localize(spec) for spec in specs])
            return [self._add_local(fork) if isinstance(fork, Handle) else fork for fork in forks]
        results = await link.call(
            "fork_with_memory",
            undo=link.undo_start,
            handle=codec.encode_handle(inner),
            specs=[codec.encode_spec(spec) for spec in specs],
        )
        with link.translate_parse_errors():
            return [
                codec.decode_error(result["error"])
                if "error" in result
                else join_handle(link, link.add_started(result, spec.id), spec.layers)
                for spec, result in zip(specs, results, strict=True)
            ]

    # State ------------------------------------------------------------------------------------------------------------

    async def get_condition(self, handle: Handle) -> Condition:
        try:
            link, inner = self._get_link(handle)
        except NotFoundError:
            return Condition.ABSENT
        if link is None:
            return await self.local.get_condition(handle)
        answer = await link.call("condition", handle=codec.encode_handle(inner))
        with link.translate_parse_errors():
            return Condition(answer)

    def wait_for_exit(self, handle: Handle) -> Coroutine[Any, Any, str]:
        # not a coroutine itself: it would take memory for each sandbox as long as that runs
        link, _ = self._get_link(handle)
        return self.local.wait_for_exit(handle) if link is None else link.wait_for_exit(handle.id)

    async def connect(self, handle: Handle, port: int) -> socket.socket:
        link, inner = self._get_link(handle)
        if link is None:
            return await self.local.connect(handle, port)
        connection, _ = await link.open_stream("connect", handle=codec.encode_handle(inner), port=port)
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        try:
            await relay(connection, far)
        except BaseException:
            near.close()
            raise
        return near

    async def freeze(self, handle: Handle) -> None:
        await self._call("freeze", handle)

    async def thaw(self, handle: Handle) -> None:
        await self._call("thaw", handle)

    async def _call(self, verb: str, handle: Handle) -> Any:
        """Call an operation that has no arguments and no result."""
        link, inner = self._get_link(handle)
        if link is None:
            return await getattr(self.local, verb)(handle)
        return await link.call(verb, handle=codec.encode_handle(inner))

    async def suspend(self, handle: Handle) -> Handle:
        link, inner = self._get_link(handle)
        if link is None:
            return await self.local.suspend(handle)
        return join_handle(link, await link.end_sandbox("suspend", inner), get_base_layers(handle))

    async def restore(self, handle: Handle) -> Handle:
        link, inner = self._get_link(handle)
        if link is None:
            return await self.local.restore(handle)
        started = await link.call("restore", handle=codec.encode_handle(inner))
        return join_handle(link, link.add_started(started, handle.id), get_base_layers(handle))

    async def stop(self, handle: Handle) -> Handle:
        link, inner = self._get_link(handle)
        if link is None:
            return await self.local.stop(handle)
        return join_handle(link, await link.end_sandbox("stop", inner), get_base_layers(handle))

    async def kill(self, handle: Handle) -> None:
        if handle.driver == ELSEWHERE:
            return  # its own engine removes what has no record when it is active again
        try:
            link, inner = self._get_link(handle)
        except NotFoundError:
            return  # with its host
        if link is None:
            await self.local.kill(handle)
            self._local_ids.discard(handle.id)
        else:
            await link.kill(inner)

    async def get_stats(self, handle: Handle) -> Stats:
        link, inner = self._get_link(handle)
        return await (self.local.get_stats(handle) if link is None else link.get_stats(inner))

    async def set_network(self, handle: Handle, policy: NetworkPolicy) -> None:
        link, inner = self._get_link(handle)
        if link is None:
            await self.local.set_network(handle, policy)
        else:
            self._egress.check_rules(policy)
            await link.call("set_network", handle=codec.encode_handle(inner), policy=policy.to_dict())

    async def take_denied(self, handle: Handle) -> Collection[DeniedAttempt]:
        link, inner = self._get_link(handle)
        if link is None:
            return await self.local.take_denied(handle)
        attempts = await link.call("take_denied", handle=codec.encode_handle(inner))
        with link.translate_parse_errors():
            return codec.decode_denied(attempts)

    # Snapshots and volumes --------------------------------------------------------------------------------------------

    async def snapshot(self, handle: Handle, snapshot_id: str) -> Layers:
        link, inner = self._get_link(handle)
        self._snapshots.add(snapshot_id)
        try:
            if link is None:
                return tuple(get_original_name(layer) for layer in await self.local.snapshot(handle, snapshot_id))

            async def undo(_: Any) -> None:
                await link.call("delete_snapshot", snapshot=snapshot_id)

            answer = await link.call("snapshot", undo=undo, handle=codec.encode_handle(inner), snapshot=snapshot_id)
            with link.translate_parse_errors():
                layers = tuple(map(str, answer))
                made = find_made_layers(layers, get_base_layers(handle), snapshot_id)
            self._record_made_layers(made, link)
        except BaseException:
            self._snapshots.discard(snapshot_id)
            raise
        link.layers.update(layers)
        return layers

    def _record_made_layers(self, layers: Layers, link: HostLink) -> None:
        """Remember that a host has made these layers. Raises ConflictError if they are those of another one."""
        for layer in layers:
            if self._origins.find_host(layer) is None and self._copies.has(layer):
                raise ConflictError(f"The host {link.record.name} claims the layer {layer} of this machine.")
            self._origins.record(layer, link.record.id)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete it on the host that made it, and in the background its copies on others. Unreachable hosts do it when they
        are opened again."""
        self._snapshots.discard(snapshot_id)
        layer = make_layer_name(SNAPSHOT, snapshot_id)
        made_by = self._origins.find_host(layer)
        await self.local.delete_snapshot(snapshot_id)
        await self._copies.remove_snapshot(snapshot_id)

        async def delete(link: HostLink) -> None:
            try:
                await link.call("delete_snapshot", snapshot=snapshot_id)
            except UnreachableError:
                return
            self._transfers.forget_snapshot(link, snapshot_id)

        async def delete_copy(link: HostLink) -> None:
            try:
                await delete(link)
            except SandyardError as error:
                log.warning("copy_not_deleted", host=link.record.id, snapshot=snapshot_id, reason=error.message)

        for link in self._links.values():
            if link.record.id != made_by:
                self._tasks.spawn(delete_copy(link))
        if made_by in self._links:
            await delete(self._links[made_by])
        self._origins.forget(layer)

    async def create_volume(self, volume_id: str, size_mb: int) -> None:
        await self._volumes.create(volume_id, size_mb)

    async def delete_volume(self, volume_id: str) -> None:
        await self._volumes.delete(volume_id)

    def get_volume_files(self, volume_id: str) -> VolumeFiles:
        return self._volumes.get_files(volume_id)


class _TransferPendingError(BusyError):
    """Layers of a new sandbox are still being copied to its host."""


def join_handle(link: HostLink, inner: Handle, layers: Layers) -> Handle:
    """Return the handle of a sandbox on another host, which was created from these layers."""
    data = {"host": link.record.id, "driver": inner.driver, "data": inner.data, "layers": list(layers)}
    return Handle(inner.id, DRIVER_NAME, data)


def get_base_layers(handle: Handle) -> Layers:
    """Return the layers that a sandbox on another host was created from. The engine has recorded them, not the host."""
    return tuple(map(str, handle.data.get("layers", ())))


def find_made_layers(layers: Layers, base: Layers, snapshot_id: str) -> Layers:
    """Return those layers of a new snapshot that its host has made. Raises ValueError if there are others that the sandbox
    did not have: its owner could read with them what belongs to others."""
    made = tuple(layer for layer in layers if layer not in base)
    own = make_layer_name(SNAPSHOT, snapshot_id)
    if not layers or len(layers) > MAX_LAYERS or any(layer != own and not _SHARED.fullmatch(layer) for layer in made):
        raise ValueError("the snapshot has layers that its sandbox did not have")
    return made


def split_handle(handle: Handle) -> tuple[str, Handle]:
    """Return the id of the sandbox's host, and the handle of that host's own driver. Raises NotFoundError."""
    if handle.driver != DRIVER_NAME:
        return LOCAL_HOST_ID, handle
    try:
        return str(handle.data["host"]), Handle(handle.id, str(handle.data["driver"]), handle.data["data"])
    except KeyError:
        raise NotFoundError(f"The handle of the sandbox {handle.id} does not say where it is.") from None
