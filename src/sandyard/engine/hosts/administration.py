"""Operations of administrators on hosts, and the view of hosts that they get."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sandyard import __version__
from sandyard.engine.contract import Driver
from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostRecord, HostState, HostStatus
from sandyard.engine.drivers.cluster.reports import describe_room
from sandyard.engine.hosts.directory import Hosts
from sandyard.engine.hosts.enrollment import TOKEN_LIFETIME_S, Enrollment, IssuedJoinToken
from sandyard.engine.hosts.machines import Claim, TokenOffer
from sandyard.engine.hosts.supply import HostSupply, SourceView, make_unknown_source_error
from sandyard.engine.store.database import Database
from sandyard.kit.errors import ConflictError, InvalidInputError

_HOSTS_DISABLED = "This engine does not use hosts. Restart it with --join-address."


class EvacuationProgress(Protocol):
    """The progress of moving sandboxes away from a host: how many were moved, and by sandbox id why others could not be."""

    @property
    def moved(self) -> int: ...

    @property
    def total(self) -> int: ...

    @property
    def failures(self) -> Mapping[str, str]: ...

    @property
    def stranded(self) -> Collection[str]:
        """The sandboxes of a lost host that have no checkpoint."""
        ...


class Evacuations(Protocol):
    """The progress of moving sandboxes away from hosts, and the checkpoints that would be left if a host was lost."""

    def find_progress(self, host_id: str) -> EvacuationProgress | None:
        """Return the progress of emptying a host, or None if it is not being emptied."""
        ...

    def list_checkpoint_times(self, host_id: str) -> Sequence[float]:
        """Return when the checkpoints of the sandboxes on a host were taken, for those that have one."""
        ...


GetStatuses = Callable[[], Sequence[HostStatus]]


@dataclass(frozen=True, slots=True)
class HostView:
    """A host with everything that the engine knows about it. The local machine has no certificate."""

    status: HostStatus
    joined_at: float | None = None
    expires_at: float | None = None  # of its certificate
    evacuation: EvacuationProgress | None = None  # None: its sandboxes are not being moved away
    lost: bool = False  # its sandboxes are being recovered on other hosts
    checkpoint_times: Sequence[float] = ()  # of its sandboxes that have one
    source: str | None = None  # that lists its machine; None: it is the engine's own
    is_missing: bool = False  # its source no longer lists it


class HostAdministration:
    """The operations on hosts. Hosts can only join if there is an `enrollment`."""

    def __init__(
        self,
        database: Database,
        hosts: Hosts,
        get_statuses: GetStatuses,
        enrollment: Enrollment | None = None,
        evacuations: Evacuations | None = None,
        *,
        supply: HostSupply | None = None,
    ) -> None:
        self._database = database
        self._hosts = hosts
        self._get_statuses = get_statuses
        self._enrollment = enrollment
        self._evacuations = evacuations
        self._supply = supply

    @property
    def accepts_hosts(self) -> bool:
        """Whether machines can join."""
        return self._enrollment is not None

    def list(self) -> Sequence[HostView]:
        """Return all hosts, the local machine first."""
        found = {status.record.id: status for status in self._get_statuses()}
        views = [HostView(status) for host_id, status in found.items() if host_id == LOCAL_HOST_ID]
        for record in self._hosts.list_records():
            registration = self._hosts.get(record.id)
            status = found.get(record.id) or HostStatus(
                record, HostState.UNREACHABLE, registration.joined_at, reason=_HOSTS_DISABLED
            )
            view = HostView(
                status,
                registration.joined_at,
                registration.expires_at,
                lost=registration.lost,
                source=registration.source,
                is_missing=self._supply is not None and self._supply.is_missing(registration.source, record),
            )
            if self._evacuations is not None:
                view = replace(
                    view,
                    evacuation=self._evacuations.find_progress(record.id),
                    checkpoint_times=self._evacuations.list_checkpoint_times(record.id),
                )
            views.append(view)
        return views

    def list_sources(self) -> Sequence[SourceView]:
        """Return the sources of hosts, with their machines."""
        return self._supply.list() if self._supply is not None else ()

    async def claim_token(self, source: str, claim: Claim) -> TokenOffer:
        """Return the join token for a machine of a source. Raises what `HostSupply.claim` raises."""
        if self._supply is None:
            raise make_unknown_source_error(source)
        return await self._supply.claim(source, claim)

    def get(self, id_or_name: str) -> HostView:
        """Return a host. Raises NotFoundError."""
        views = self.list()
        for view in views:
            if id_or_name in {view.status.record.id, view.status.record.name}:
                return view
        raise self._hosts.make_not_found(id_or_name)

    async def create_token(self, lifetime_s: float = TOKEN_LIFETIME_S) -> IssuedJoinToken:
        """Create a token that lets one machine join. Raises InvalidInputError, and ConflictError if the engine accepts no hosts."""
        if self._enrollment is None:
            raise ConflictError(
                "This engine accepts no hosts. Restart it with --join-address ADDRESS, the address at which other machines can "
                "reach this one."
            )
        token = self._enrollment.create_token(lifetime_s)
        await self.flush()
        return token

    async def update(
        self,
        id_or_name: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        draining: bool | None = None,
        evacuating: bool | None = None,
    ) -> HostView:
        """Change the labels of a host, whether it gets new sandboxes (`draining`), and whether its sandboxes are moved to other
        hosts (`evacuating`). Raises NotFoundError and InvalidInputError."""
        record = self.get(id_or_name).status.record
        if record.id == LOCAL_HOST_ID:
            raise InvalidInputError("The engine's own machine has no labels and cannot be drained.")
        self._hosts.update(record.id, labels=labels, draining=draining, evacuating=evacuating)
        await self.flush()
        return self.get(record.id)

    async def recover(self, id_or_name: str) -> HostView:
        """Declare a host lost. Its sandboxes continue on other hosts from their checkpoints; those without a checkpoint are kept in
        case the host returns. A host that returns removes its copies of recovered sandboxes, and stays drained. Raises
        NotFoundError, and ConflictError if the host can be reached."""
        status = self.get(id_or_name).status
        if status.record.id == LOCAL_HOST_ID or status.state is HostState.READY:
            raise ConflictError(
                f"The host {status.record.name} can be reached. Move its sandboxes with `sandyard host drain`, so that "
                "no files are lost."
            )
        if self._evacuations is None:
            raise ConflictError(_HOSTS_DISABLED)
        if status.state is HostState.CONNECTING:
            raise ConflictError(f"The engine has not tried to reach the host {status.record.name} yet. Try again.")
        self._hosts.update(status.record.id, lost=True)
        await self.flush()
        return self.get(status.record.id)

    async def forget(self, id_or_name: str, *, force: bool = False) -> HostRecord:
        """Remove a host, so that its certificate is no longer accepted. Raises NotFoundError, and ConflictError if the host has
        sandboxes; with `force`, these are lost instead."""
        status = self.get(id_or_name).status
        if status.record.id == LOCAL_HOST_ID:
            raise InvalidInputError("The engine's own machine cannot be removed.")
        if status.sandboxes and not force:
            if status.state is HostState.READY:
                remedy = "Move them with `sandyard host drain`, or delete them."
            else:
                remedy = "If the host does not return, recover them with `sandyard host recover`."
            raise ConflictError(
                f"The host {status.record.name} still has {_format_count(status.sandboxes)}, which would be lost. {remedy} "
                "To lose them, use --force."
            )
        if self._supply is not None:
            self._supply.remove(self._hosts.get(status.record.id).source, status.record)
        record = self._hosts.forget(status.record.id)
        await self.flush()
        return record

    async def flush(self) -> None:
        """Wait until all changes are stored durably."""
        await self._database.flush()


class LocalStatus:
    """Reports the status of the engine's own machine, for engines that run sandboxes only there."""

    def __init__(self, driver: Driver, count_sandboxes: Callable[[], int]) -> None:
        self._driver = driver
        self._count_sandboxes = count_sandboxes
        self._since = time.time()
        self._record = HostRecord(LOCAL_HOST_ID, "local", "127.0.0.1", 0)

    def __call__(self) -> Sequence[HostStatus]:
        return [
            HostStatus(
                self._record,
                HostState.READY,
                self._since,
                version=__version__,
                room=describe_room(self._driver.get_room()),
                capabilities=self._driver.capabilities,
                sandboxes=self._count_sandboxes(),
            )
        ]


def _format_count(number: int) -> str:
    return "1 sandbox" if number == 1 else f"{number} sandboxes"
