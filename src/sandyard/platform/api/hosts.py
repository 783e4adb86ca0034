"""The machines that run the sandboxes of this server's engine, for administrators."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import AdminCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine

router = api_router("hosts")
Engine = Annotated[SandboxEngine, inject("engine")]
HostId = Annotated[str, id_in_path("host", "host-0mh3k7a1x2ab")]
_EXAMPLE: dict[str, Any] = {
    "id": "host-0mh3k7a1x2ab",
    "name": "build-2",
    "local": False,
    "address": "10.0.0.2",
    "port": 3011,
    "labels": {"disk": "fast"},
    "draining": False,
    "evacuation": None,
    "lost": False,
    "source": "static",
    "missingFromSource": False,
    "checkpoints": {"count": 11, "oldest": "2026-01-31T09:50:00.000Z"},
    "state": "ready",
    "since": "2026-01-31T10:00:00.000Z",
    "seenAt": "2026-01-31T10:30:00.000Z",
    "reason": None,
    "version": "1.0.0",
    "sandboxes": 12,
    "room": {
        "memoryTotal": 25_769_803_776,
        "memoryAvailable": 17_179_869_184,
        "diskTotal": 214_748_364_800,
        "diskFree": 107_374_182_400,
        "cpuCount": 8,
        "load": 1.5,
        "full": None,
    },
    "isolation": ["gvisor", "namespace"],
    "missing": {},
    "joinedAt": "2026-01-30T10:00:00.000Z",
    "certificateExpiresAt": "2026-03-01T10:00:00.000Z",
}


class HostRoomView(Model):
    memory_total: int | None = Field(description="Bytes. Null if unknown.")
    memory_available: int | None = Field(description="Bytes available without swapping.")
    disk_total: int | None = Field(description="Bytes of the disk that stores the sandboxes.")
    disk_free: int | None
    cpu_count: int
    load: float = Field(description="The load average of the last minute.")
    full: str | None = Field(
        description="Why the host refuses new sandboxes even if it has memory and disk space left."
    )


class EvacuationView(Model):
    moved: int = Field(description="Sandboxes moved to other hosts since the engine was started.")
    total: int = Field(description="Moved sandboxes, and those that are still on the host.")
    failures: dict[str, str] = Field(
        description="Why sandboxes could not be moved, by the engine's sandbox ids. Moves are retried."
    )


class CheckpointsView(Model):
    count: int = Field(description="Sandboxes that can be recovered if the host is lost.")
    oldest: Instant | None = Field(description="The time of the oldest checkpoint.")


class HostView(Model):
    model_config = example(**_EXAMPLE)

    id: str
    name: str
    local: bool = Field(description="Whether it is the engine's own machine, which cannot be changed or removed.")
    address: str
    port: int
    labels: dict[str, str]
    draining: bool = Field(description="True if the host gets no new sandboxes.")
    evacuation: EvacuationView | None = Field(description="Null if its sandboxes are not being moved to other hosts.")
    lost: bool = Field(description="True if its sandboxes are being recovered on other hosts.")
    source: str | None = Field(
        description="The source of the host: `static` if an administrator let it join, `ray` or `kubernetes`. Null for the engine's own "
        "machine."
    )
    missing_from_source: bool = Field(
        description="True if the source no longer lists the machine. The host and its sandboxes may still run."
    )
    checkpoints: CheckpointsView = Field(description="Copies of the files of its sandboxes on the engine's machine.")
    state: str = Field(description="`ready`, `connecting` or `unreachable`. Sandboxes of an unreachable host are kept.")
    since: Instant = Field(description="When `state` last changed.")
    seen_at: Instant | None = Field(description="When the host last responded.")
    reason: str | None = Field(description="Why the host is not ready.")
    version: str | None
    sandboxes: int = Field(description="Number of sandboxes that the engine has placed on the host, in any state.")
    room: HostRoomView | None
    isolation: list[str] | None = Field(description="The isolation levels that the host supports.")
    missing: dict[str, str] = Field(description="Features that the host does not support, with the reasons.")
    joined_at: Instant | None
    certificate_expires_at: Instant | None


class MachineView(Model):
    id: str = Field(description="The source's id of the machine.")
    name: str
    address: str
    problem: str | None = Field(description="Why the machine could not be made a host. This is retried.")


class HostSourceView(Model):
    name: str = Field(description="`static`, `ray` or `kubernetes`.")
    problem: str | None = Field(description="Why the list of machines may be out of date.")
    machines: list[MachineView]


class HostList(Model):
    items: list[HostView]
    sources: list[HostSourceView] = Field(description="What lists machines that can be hosts.")
    accepts_hosts: bool = Field(
        description="Whether more machines can join, because the engine was started with --join-address."
    )


class HostChange(Input):
    """Fields left out are not changed."""

    model_config = example(draining=True, evacuating=True, labels={"disk": "fast", "zone": None})

    draining: bool | None = Field(
        default=None, description="Place no new sandboxes on the host. False also ends an evacuation."
    )
    evacuating: bool | None = Field(
        default=None,
        description="Also move its sandboxes to other hosts. They keep their files; running ones are booted there.",
    )
    labels: dict[str, str | None] | None = Field(
        default=None, max_length=100, description="Labels to set. Null removes a label; all others are kept."
    )


class JoinTokenView(Model):
    model_config = example(
        token="syj_WyIxMC4wLjAuMTozMDEwIl0",  # noqa: S106 - an example
        address="10.0.0.1:3010",
        expiresAt="2026-01-31T11:00:00.000Z",
    )

    token: str = Field(description="For `sandyard host join` on the new machine. Valid once. It is not shown again.")
    address: str = Field(description="The engine's address, to which the new machine must be able to connect.")
    expires_at: Instant


@router.get("/hosts", name="host.list")
async def list_hosts(caller: AdminCaller, engine: Engine) -> HostList:
    """List the machines that run sandboxes, the engine's own first. 501 `hosts_not_available` with E2B Cloud."""
    found = await engine.hosts.list()
    return HostList(
        items=[HostView.model_validate(host) for host in found.hosts],
        sources=[HostSourceView.model_validate(source) for source in found.sources],
        accepts_hosts=found.accepts_hosts,
    )


@router.patch("/hosts/{host_id}", name="host.update", dependencies=[limit_rate("execute")])
async def update_host(
    caller: AdminCaller, host_id: HostId, body: HostChange, request: Request, engine: Engine
) -> HostView:
    """Change the labels of a host, or whether it gets new sandboxes."""
    add_audit_detail(request, changed=sorted(body.model_fields_set), draining=body.draining)
    changed = await engine.hosts.update(host_id, draining=body.draining, evacuating=body.evacuating, labels=body.labels)
    return HostView.model_validate(changed)


@router.post("/hosts/{host_id}/recover", name="host.recover", dependencies=[limit_rate("execute")])
async def recover_host(caller: AdminCaller, host_id: HostId, engine: Engine) -> HostView:
    """Recover the sandboxes of a lost host on other hosts, from their checkpoints. 409 `conflict` if the host can be reached."""
    return HostView.model_validate(await engine.hosts.recover(host_id))


@router.post("/hosts/tokens", name="host.create_token", status_code=201, dependencies=[limit_rate("create")])
async def create_join_token(caller: AdminCaller, engine: Engine) -> JoinTokenView:
    """Create a token that lets one machine join as a host. Valid for an hour."""
    return JoinTokenView.model_validate(await engine.hosts.create_token())
