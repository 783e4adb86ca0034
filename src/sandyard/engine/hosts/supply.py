"""Turns the machines that sources list into hosts: each gets a token to join with, and its host service is started."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from sandyard.engine.drivers.cluster.model import HostRecord
from sandyard.engine.hosts.directory import Hosts
from sandyard.engine.hosts.enrollment import Enrollment
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.machines import Claim, ClaimedSource, Machine, MachineSource, NotJoinedError, TokenOffer
from sandyard.engine.store.database import Database
from sandyard.kit.errors import BusyError, NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet, end_tasks

log = get_logger(__name__)

CHECK_S = 60.0
"""How often a source is asked again to start a host service that should be running, in case the source has lost the request."""
FIRST_RETRY_S, MAX_RETRY_S = 2.0, 60.0
TOKEN_LIFETIME_S = 600.0
_REMOVED = "removed_machines"
"""Key of the engine's database: ids of the machines that are not used because an administrator has removed their hosts."""

_REMOVED_MESSAGE = (
    "An administrator has removed this host. The machine is used again after it has left the cluster and come back."
)


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source, and its machines with the reasons why they could not be started."""

    name: str
    problem: str | None  # why the list of machines may be out of date
    machines: Sequence[tuple[Machine, str | None]]


def make_unknown_source_error(source: str) -> NotFoundError:
    """Return the error for a machine whose source this engine does not follow."""
    return NotFoundError(
        f"This engine takes no hosts from the source {source[:70]!r}. Restart it with the options for that source."
    )


class HostSupply:
    """Lets the machines of all sources become hosts. A machine that is no longer listed stays a host: it may come back at any
    time, and its sandboxes may be running."""

    def __init__(
        self, sources: Sequence[MachineSource], hosts: Hosts, enrollment: Enrollment, database: Database
    ) -> None:
        self._sources = {source.name: source for source in sources}
        self._hosts = hosts
        self._enrollment = enrollment
        self._database = database
        self._problems: dict[tuple[str, str], str] = {}  # by source and machine
        self._tokens: dict[tuple[str, str], tuple[JoinToken, float]] = {}  # unused ones, and until when to send them
        self._tasks = TaskSet("hosts")

    def start(self) -> None:
        """Begin to follow the sources."""
        for source in self._sources.values():
            self._tasks.spawn(self._follow(source))

    async def close(self) -> None:
        """Stop following the sources. Host services keep running."""
        await self._tasks.cancel()

    def list(self) -> Sequence[SourceView]:
        """Return all sources with their machines."""
        return [
            SourceView(
                source.name,
                source.problem,
                [(machine, self._problems.get((source.name, machine.id))) for machine in source.list()],
            )
            for source in self._sources.values()
        ]

    def is_missing(self, source: str, record: HostRecord) -> bool:
        """Return whether a host's source has an up-to-date list of machines, without this one."""
        found = self._sources.get(source)
        if found is None or found.problem is not None:
            return False
        return all(machine.address != record.address for machine in found.list())

    def remove(self, source: str, record: HostRecord) -> None:
        """Stop using the machine of this host until it has left its source and come back."""
        found = self._sources.get(source)
        machines = [] if found is None else [item.id for item in found.list() if item.address == record.address]
        if machines:
            self._store_removed({*self._read_removed(), *machines})

    async def claim(self, source: str, claim: Claim) -> TokenOffer:
        """Return the join token that a machine of this source has claimed. Raises NotFoundError, UnauthenticatedError and BusyError."""
        found = self._sources.get(source)
        if not isinstance(found, ClaimedSource):
            raise make_unknown_source_error(source)
        offer = await found.claim(claim)
        # the source may have been given a token just before an administrator removed the host
        removed = self._read_removed()
        if offer.token is not None and any(
            machine.id in removed for machine in found.list() if machine.address == offer.address
        ):
            raise BusyError(_REMOVED_MESSAGE)
        return offer

    async def _follow(self, source: MachineSource) -> None:
        """Keep the host services of all machines of a source running."""
        following: dict[str, asyncio.Task[None]] = {}
        async for event in source.watch():
            machine = event.machine
            if (task := following.pop(machine.id, None)) is not None:
                await end_tasks(task)
            if event.is_listed:
                log.info("machine_listed", source=source.name, machine=machine.id, address=machine.address)
                following[machine.id] = self._tasks.spawn(self._keep_started(source, machine))
            else:
                log.info("machine_gone", source=source.name, machine=machine.id, address=machine.address)
                self._forget(source, machine)

    def _forget(self, source: MachineSource, machine: Machine) -> None:
        self._problems.pop((source.name, machine.id), None)
        self._tokens.pop((source.name, machine.id), None)
        if machine.id in (removed := self._read_removed()):
            self._store_removed(removed - {machine.id})

    async def _keep_started(self, source: MachineSource, machine: Machine) -> None:
        key, retry_s = (source.name, machine.id), FIRST_RETRY_S
        while True:
            # its problem is already shown, and running host services do not need it
            if source.problem is not None:
                await asyncio.sleep(FIRST_RETRY_S)
                continue
            try:
                await self._start(source, machine)
            except SandyardError as error:
                if self._problems.get(key) != error.message:
                    log.warning("host_not_started", source=source.name, machine=machine.id, reason=error.message)
                self._problems[key] = error.message
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            else:
                if self._problems.pop(key, None) is not None:
                    log.info("host_started", source=source.name, machine=machine.id)
                retry_s = FIRST_RETRY_S
                await asyncio.sleep(CHECK_S)

    async def _start(self, source: MachineSource, machine: Machine) -> None:
        """Start the host service of a machine, which gets a token if it has not joined."""
        if machine.id in self._read_removed():
            raise SandyardError(_REMOVED_MESSAGE)
        host = self._hosts.find_by_address(source.name, machine.address)
        if host is not None:
            try:
                await source.start(machine, None)
            except NotJoinedError:
                host = None
        if host is None:
            await source.start(machine, await self._get_token(source, machine))
            self._tokens.pop((source.name, machine.id), None)

    async def _get_token(self, source: MachineSource, machine: Machine) -> JoinToken:
        """Return a token that only this machine gets. It stays the same until it is used or half of its lifetime has passed."""
        key, now = (source.name, machine.id), asyncio.get_running_loop().time()
        token, send_until = self._tokens.get(key, (None, 0.0))
        if token is None or send_until < now:
            token = self._enrollment.create_token(TOKEN_LIFETIME_S, source.name).token
            self._tokens[key] = (token, now + TOKEN_LIFETIME_S / 2)
            await self._database.flush()
        return token

    def _read_removed(self) -> set[str]:
        return set(json.loads(self._database.get_meta(_REMOVED) or "[]"))

    def _store_removed(self, machines: set[str]) -> None:
        self._database.set_meta(_REMOVED, json.dumps(sorted(machines)))
