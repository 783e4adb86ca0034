"""The machines that run the engine's sandboxes. Only Sandyard's own engine has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from pydantic import Field

from sandyard.kit.errors import NotFoundError, UnsupportedError
from sandyard.platform.domain.sandboxes.e2b.own_routes import A, EngineAnswer, request_own_route
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport


class HostsNotAvailableError(UnsupportedError):
    """The sandboxes of this server do not run on a Sandyard engine, so it has no hosts to manage. E2B Cloud manages its own machines."""

    code = "hosts_not_available"


class HostNotFoundError(NotFoundError):
    """There is no such host."""

    code = "host_not_found"


class EngineHostRoom(EngineAnswer):
    """The total and free resources of a host. Memory and disk are in bytes; None if unknown."""

    memory_total: int | None
    memory_available: int | None
    disk_total: int | None
    disk_free: int | None
    cpu_count: int
    load: float
    full: str | None


class EngineEvacuation(EngineAnswer):
    """The progress of moving sandboxes away from a host. Reasons for failures are by the engine's sandbox ids. `stranded`:
    those of a lost host that have no checkpoint."""

    moved: int
    total: int
    failures: Mapping[str, str]
    stranded: tuple[str, ...] = ()


class EngineCheckpoints(EngineAnswer):
    """The number of a host's sandboxes that have a checkpoint, and the time of the oldest checkpoint."""

    count: int
    oldest: datetime | None


class EngineHost(EngineAnswer):
    """A host as the engine sees it. What the host has not reported is None."""

    id: str = Field(alias="hostID")
    name: str
    local: bool
    address: str
    port: int
    labels: Mapping[str, str]
    draining: bool
    evacuation: EngineEvacuation | None = None
    lost: bool = False
    source: str | None = None
    missing_from_source: bool = False
    checkpoints: EngineCheckpoints
    state: str
    since: datetime
    seen_at: datetime | None
    reason: str | None
    version: str | None
    sandboxes: int
    room: EngineHostRoom | None
    isolation: list[str] | None
    missing: Mapping[str, str]
    joined_at: datetime | None
    certificate_expires_at: datetime | None


class EngineMachine(EngineAnswer):
    """A machine that a source lists, and why it could not become a host."""

    id: str
    name: str
    address: str
    problem: str | None


class EngineHostSource(EngineAnswer):
    """A source of hosts, and why its list of machines may be out of date."""

    name: str
    problem: str | None
    machines: list[EngineMachine]


class EngineHosts(EngineAnswer):
    """All hosts. `accepts_hosts`: whether more machines can join."""

    hosts: list[EngineHost]
    accepts_hosts: bool
    sources: Sequence[EngineHostSource] = ()


class JoinToken(EngineAnswer):
    """A token with which one machine can join, and where."""

    token: str = Field(repr=False)
    expires_at: datetime
    address: str


class Hosts:
    """The hosts of the engine. Every method raises HostsNotAvailableError if the endpoint is not a Sandyard engine."""

    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport

    async def list(self) -> EngineHosts:
        """Return the hosts, the engine's own machine first."""
        return await self._request(EngineHosts, "GET", "/hosts", missing=HostsNotAvailableError())

    async def list_stranded(self) -> frozenset[str]:
        """Return the engine's ids of sandboxes that cannot continue, because their host is lost with all their files."""
        try:
            found = await self.list()
        except HostsNotAvailableError:
            return frozenset()
        return frozenset(
            sandbox_id
            for host in found.hosts
            if host.lost and host.evacuation
            for sandbox_id in host.evacuation.stranded
        )

    async def update(
        self,
        host_id: str,
        *,
        draining: bool | None = None,
        evacuating: bool | None = None,
        labels: Mapping[str, str | None] | None = None,
    ) -> EngineHost:
        """Change whether a host gets new sandboxes, whether those that it has are moved away, and its labels. Labels with the
        value None are removed. Raises HostNotFoundError, and EngineInvalidError if a label is not valid."""
        given = {"draining": draining, "evacuating": evacuating, "labels": None if labels is None else dict(labels)}
        body = {name: value for name, value in given.items() if value is not None}
        return await self._request(
            EngineHost, "PATCH", f"/hosts/{quote(host_id, safe='')}", body, missing=HostNotFoundError()
        )

    async def recover(self, host_id: str) -> EngineHost:
        """Let the sandboxes of a lost host continue on others from their checkpoints. Raises HostNotFoundError, and
        ConflictError if the host can be reached."""
        path = f"/hosts/{quote(host_id, safe='')}/recover"
        return await self._request(EngineHost, "POST", path, missing=HostNotFoundError())

    async def create_token(self) -> JoinToken:
        """Create a token with which one machine can join. Raises ConflictError if the engine accepts no hosts."""
        return await self._request(JoinToken, "POST", "/hosts/tokens", {}, missing=HostsNotAvailableError())

    async def _request(
        self, kind: type[A], method: str, path: str, body: Mapping[str, Any] | None = None, *, missing: Exception
    ) -> A:
        return await request_own_route(
            self._transport, kind, method, path, body, missing=missing, unsupported=HostsNotAvailableError()
        )
