"""The interface of sources of hosts. A source lists machines, reports changes, and starts host services on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol, runtime_checkable

from sandyard.engine.hosts.directory import STATIC, Hosts
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.kit.errors import NotFoundError
from sandyard.kit.secret import Secret

EFFECT_OF_AWAY_CLUSTER = "Hosts and sandboxes keep running, but nodes that join or leave are not noticed."
"""For the problem of a source that follows a cluster and cannot reach it."""


class NotJoinedError(NotFoundError):
    """The machine has not joined this engine, or has lost its identity, and needs a token."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that can run sandboxes. If it leaves its source and comes back, it may have another id."""

    id: str
    name: str
    address: str  # at which the engine can reach it


@dataclass(frozen=True, slots=True)
class MachineEvent:
    """A machine is listed from now on, or no longer. The latter does not mean that its sandboxes have ended."""

    machine: Machine
    is_listed: bool


class MachineSource(Protocol):
    """Lists machines and starts host services on them. The engine decides which of them become hosts."""

    @property
    def name(self) -> str:
        """The name that is stored with its hosts."""
        ...

    @property
    def problem(self) -> str | None:
        """Why the list may be out of date, or None."""
        ...

    def list(self) -> Sequence[Machine]:
        """Return the machines that were listed last."""
        ...

    def watch(self) -> AsyncIterator[MachineEvent]:
        """Yield an event for each machine that is listed now, then for each change. Never ends."""
        ...

    async def start(self, machine: Machine, token: JoinToken | None) -> None:
        """Start the host service of a machine, and keep it running. If there is a token, the machine joins with it first.
        Idempotent. Raises NotJoinedError if the machine needs a token, and other SandyardErrors: the caller tries again."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The request of a machine for its join token, with a credential of its source. `host_id` is the host that the machine says it is,
    and `problem` why it could not join before."""

    credential: Secret
    host_id: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TokenOffer:
    """The name and address with which a machine has to join. Without a token, it has joined already."""

    name: str
    address: str
    token: JoinToken | None = None


@runtime_checkable
class ClaimedSource(MachineSource, Protocol):
    """A source that cannot send anything to its machines. They ask the engine for the token that `start` has set aside."""

    async def claim(self, claim: Claim) -> TokenOffer:
        """Return the token of the machine that this credential belongs to. Raises UnauthenticatedError, and BusyError if the machine
        has no token yet."""
        ...


class MachineList:
    """The machines of a source. Replacing them creates the events."""

    def __init__(self) -> None:
        self._machines: dict[str, Machine] = {}
        self._changed = asyncio.Event()

    def list(self) -> Sequence[Machine]:
        return list(self._machines.values())

    def replace(self, machines: Sequence[Machine]) -> None:
        """Set the machines that are listed from now on."""
        found = {machine.id: machine for machine in machines}
        if found != self._machines:
            self._machines = found
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def watch(self) -> AsyncIterator[MachineEvent]:
        known: dict[str, Machine] = {}
        while True:
            changed, current = self._changed, self._machines
            for machine_id, machine in known.items():
                if machine_id not in current:
                    yield MachineEvent(machine, is_listed=False)
            for machine_id, machine in current.items():
                if known.get(machine_id) != machine:
                    yield MachineEvent(machine, is_listed=True)
            known = current
            await changed.wait()


class ListedSource:
    """Base of the sources: the part of `MachineSource` that needs only the list of machines and the problem with it. While a cluster is
    away, its last list remains."""

    def __init__(self, problem: str | None = None) -> None:
        self._machines = MachineList()
        self._problem = problem

    @property
    def problem(self) -> str | None:
        return self._problem

    def list(self) -> Sequence[Machine]:
        return self._machines.list()

    def watch(self) -> AsyncIterator[MachineEvent]:
        return self._machines.watch()

    def _set_problem(self, problem: str | None) -> bool:
        """Set the problem. Return whether it has changed, and should be logged."""
        has_changed = problem != self._problem
        self._problem = problem
        return has_changed


class StaticMachines(ListedSource):
    """The machines on which administrators have run `sandyard host join`. They run their own host services, for example under systemd."""

    name = STATIC

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()
        self._hosts = hosts
        self._update()
        hosts.on_change(self._update)

    def _update(self) -> None:
        records = [host.record for host in self._hosts.list() if host.source == STATIC]
        self._machines.replace([Machine(record.id, record.name, record.address) for record in records])

    async def start(self, machine: Machine, token: JoinToken | None) -> None:
        """Do nothing: the machine has joined, and starts its host service itself."""


def normalize_address(address: str) -> str | None:
    """Return an IP address in the format in which the addresses of hosts are stored, by which machines are recognized. Return None if it
    is not an IP address."""
    try:
        return str(ip_address(address))
    except ValueError:
        return None
