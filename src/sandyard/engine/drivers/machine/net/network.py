"""The network of all sandboxes of one instance. See the package's docstring for what it guarantees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandyard.engine.contract import DeniedAttempt, Hairpin, NetworkPolicy, Outbound
from sandyard.engine.drivers.machine.net.names import Names
from sandyard.engine.drivers.machine.net.namespaces import Namespaces, VethConfig
from sandyard.engine.drivers.machine.net.nft import NftError
from sandyard.engine.drivers.machine.net.policy import Egress, parse_policy
from sandyard.engine.drivers.machine.net.pool import Pool
from sandyard.engine.drivers.machine.net.settings import NetworkSettings
from sandyard.engine.drivers.machine.net.uplink import Uplink
from sandyard.kit.errors import FullError, NotFoundError, SandyardError, UnsupportedError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_MAX_WITHOUT_SUBNET = 4093  # limit for namespaces without a subnet


@dataclass(frozen=True, slots=True)
class NetSlot:
    """One sandbox's network. Without egress (see `Network.missing`) it has only a loopback, and no addresses."""

    slot: int
    netns_path: Path
    address: str | None
    gateway: str | None
    dns: str | None


@dataclass(slots=True)
class _SlotState:
    index: int  # of its namespace
    net: NetSlot


class Network:
    """Gives each slot a namespace, an address and a policy. All methods belong to one event loop and none blocks it.
    Calls for one slot must not overlap."""

    def __init__(
        self,
        instance: str,
        state_dir: Path,
        settings: NetworkSettings | None = None,
        outbound: Outbound | None = None,
    ) -> None:
        """Without `outbound` no policy may have rules."""
        self._settings = settings or NetworkSettings()
        self._outbound = outbound
        self._state = state_dir
        self._names = Names.for_instance(instance)
        self._namespaces = Namespaces(state_dir / "netns", self._names)
        self._uplink: Uplink | None = None
        self._pool: Pool | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._slots: dict[int, _SlotState] = {}
        self._used: set[int] = set()
        self._next = 0
        self._missing: dict[str, str] = {}

    @property
    def missing(self) -> Mapping[str, str]:
        """The features that do not work here, each with the reason and the remedy. Available after `open`."""
        return {**self._missing, **(self._uplink.missing if self._uplink else {})}

    @property
    def hairpin(self) -> Hairpin | None:
        """Available after `open`."""
        return self._uplink.hairpin if self._uplink is not None else None

    @property
    def proxy_port(self) -> int | None:
        """The port of the egress proxy, or None if there is none."""
        return self._uplink.proxy_port if self._uplink is not None else None

    @property
    def pins(self) -> Path:
        """The mount point of all pins (see `namespaces`). A process that creates many mount namespaces should detach it from its own."""
        return self._namespaces.pins

    async def open(self, keep_slots: Collection[int]) -> None:
        """Take over what an earlier engine left: kept slots continue unchanged, everything else of this instance is
        removed. In a kept slot connections work all the time, and names again as soon as `set_policy` was called for
        it.

        Idempotent. Does not fail because of the host: missing parts are in `missing`.
        """
        if self._pool is not None:
            for slot in set(self._slots) - set(keep_slots):
                await self.release(slot)
            return
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sandyard-netns")
        try:
            await self._run_in_thread(self._namespaces.open)
        except OSError as error:
            self._executor.shutdown()
            self._executor = None
            self._missing["network"] = f"no network namespaces: {error.strerror}. Run the engine as root"
            return
        kept = await self._run_in_thread(self._find_existing, keep_slots)
        swept = await self._run_in_thread(self._sweep, set(kept.values()))
        self._uplink = Uplink(self._names, self._state, self._settings, self._namespaces.get_pin_path, self._outbound)
        await self._uplink.open(set(kept.values()), swept)
        connected = await self._run_in_thread(self._namespaces.list_connected)
        for slot, index in kept.items():
            self._used.add(index)
            self._slots[slot] = _SlotState(index, self._make_net_slot(slot, index, index in connected))
        self._next = max(kept.values(), default=-1) + 1
        self._pool = Pool(self._settings.pool, self._create_namespace)
        await self._test_dns()
        for feature, reason in self.missing.items():
            log.warning("network_feature_missing feature=%s reason=%s", feature, reason)
        self._pool.fill()

    async def close(self, remove: bool = False) -> None:
        """Stop serving. Sandboxes keep their network, but names do not resolve until the next `open`. With `remove`
        everything of this instance is removed from the host. Idempotent."""
        if self._pool is None or self._uplink is None or self._executor is None:
            return
        idle = await self._pool.close()
        self._pool = None
        if remove:
            for slot in list(self._slots):
                await self.release(slot)
            await self._run_in_thread(self._sweep, set())
        else:
            await self._run_in_thread(self._namespaces.remove, idle)
        await self._uplink.close(remove)
        await self._run_in_thread(self._namespaces.close, remove)
        if remove:
            with suppress(OSError):
                self._state.rmdir()
        self._executor.shutdown()
        self._executor = self._uplink = None
        self._slots.clear()
        self._used.clear()

    async def acquire(self, slot: int) -> NetSlot:
        """Return a network for the slot with the default policy, or its existing one. Raises FullError."""
        state = self._slots.get(slot)
        if state is not None:
            return state.net
        if self._pool is None or self._uplink is None:
            reason = self._missing.get("network", "it is not open")
            raise UnsupportedError(f"The network of sandboxes cannot be used: {reason}.")
        index = await self._pool.take()
        self._namespaces.add_label(index, slot)
        state = self._slots[slot] = _SlotState(index, self._make_net_slot(slot, index, self._uplink.subnet is not None))
        self._uplink.answer_dns(index, Egress())
        return state.net

    async def release(self, slot: int) -> None:
        """Release the slot's network: the namespace ends with the last process in it. Idempotent."""
        state = self._slots.pop(slot, None)
        if state is None or self._uplink is None:
            return
        self._namespaces.remove_label(slot)
        try:
            await self._uplink.remove_namespace(state.index)
        except NftError:
            log.exception("network_forget_failed slot=%d", slot)
        await self._run_in_thread(self._namespaces.release, state.index)
        self._used.discard(state.index)
        if self._pool is not None:
            self._pool.fill()

    async def set_policy(self, slot: int, policy: NetworkPolicy) -> None:
        """Replace the slot's policy, also for existing connections. Raises InvalidInputError and then changes
        nothing."""
        egress = parse_policy(policy)
        if egress.rules and self._outbound is None:
            raise UnsupportedError("This engine does not support network rules. Leave out network.rules.")
        state = self._slots.get(slot)
        if state is None or self._uplink is None:
            raise NotFoundError(f"The network slot {slot} does not exist.")
        try:
            await self._uplink.apply(state.index, egress)
        except NftError as error:
            raise SandyardError(f"Could not set the network policy: {error}") from error

    async def take_denied(self, slot: int) -> list[DeniedAttempt]:
        """Return the connections that the slot's policy has blocked since the last call."""
        state = self._slots.get(slot)
        if state is None or self._uplink is None:
            return []
        try:
            return await self._uplink.take_denied(state.index)
        except NftError as error:
            raise SandyardError(f"Could not read the blocked connections: {error}") from error

    async def _run_in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        assert self._executor is not None
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)

    async def _create_namespace(self) -> int:
        """Create a namespace under the least recently used index."""
        veth, capacity = None, _MAX_WITHOUT_SUBNET
        if self._uplink is not None and self._uplink.subnet is not None:
            capacity = self._uplink.subnet.capacity
        if len(self._used) >= capacity:
            raise FullError(
                f"The machine is full (network): all {capacity} networks of this engine are in use. Kill a sandbox."
            )
        while self._next % capacity in self._used:
            self._next += 1
        index = self._next % capacity
        self._next += 1
        self._used.add(index)
        if self._uplink is not None and self._uplink.subnet is not None:
            subnet = self._uplink.subnet
            veth = VethConfig(subnet.get_address(index), subnet.gateway, self._uplink.mtu)
        try:
            await self._run_in_thread(self._namespaces.create, index, veth)
        except OSError as error:
            self._used.discard(index)
            raise SandyardError(f"Could not create a network namespace: {error}") from error
        return index

    async def _test_dns(self) -> None:
        """Query our own name server from inside a namespace: nothing else shows what the host's firewall really
        does."""
        if self._pool is None or self._uplink is None or self._uplink.subnet is None:
            return
        try:
            index = await self._create_namespace()
        except SandyardError as error:
            self._missing["network"] = error.message
            return
        await self._uplink.test_dns(index, self._namespaces.get_pin_path(index))
        self._pool.put(index)

    def _make_net_slot(self, slot: int, index: int, connected: bool) -> NetSlot:
        subnet = self._uplink.subnet if self._uplink else None
        if subnet is None or not connected:
            return NetSlot(slot, self._namespaces.get_pin_path(index), None, None, None)
        address, gateway = str(subnet.get_address(index)), str(subnet.gateway)
        return NetSlot(slot, self._namespaces.get_pin_path(index), address, gateway, gateway)

    def _find_existing(self, slots: Collection[int]) -> dict[int, int]:
        """Return the index of the namespace of each slot that still has one."""
        labelled = self._namespaces.list_labels()
        return {
            slot: labelled[slot] for slot in slots if slot in labelled and self._namespaces.is_alive(labelled[slot])
        }

    def _sweep(self, keep: Collection[int]) -> set[int]:
        """Remove every namespace except these, and its label. Return which ones were removed."""
        garbage = self._namespaces.list_existing() - set(keep)
        if garbage:
            log.info("network_swept namespaces=%d", len(garbage))
        self._namespaces.remove(garbage)
        for slot, index in self._namespaces.list_labels().items():
            if index not in keep:
                self._namespaces.remove_label(slot)
        return garbage
