"""The hosts of the engine: what runs where, tokens to join, labels, draining. Not part of E2B's API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostRoom
from sandyard.engine.e2b.control import views
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.hosts.administration import HostView
from sandyard.engine.hosts.enrollment import TOKEN_LIFETIME_S
from sandyard.engine.hosts.supply import SourceView
from sandyard.kit.logging import get_logger

log = get_logger(__name__)


class JoinTokenRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    lifetime: float = TOKEN_LIFETIME_S  # in seconds


class HostChange(BaseModel):
    """Fields left out are not changed. A label with the value null is removed."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    draining: bool | None = None
    evacuating: bool | None = None  # also move its sandboxes to other hosts
    labels: Annotated[dict[str, str | None], Field(max_length=100)] | None = None


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    hosts = context.hosts

    @router.get("/hosts")
    async def list_hosts() -> JSONResponse:
        """Return the hosts, the engine's own machine first, whether others can join, and where they come from."""
        return JSONResponse(
            {
                "hosts": [render_host(host) for host in hosts.list()],
                "acceptsHosts": hosts.accepts_hosts,
                "sources": [_render_source(source) for source in hosts.list_sources()],
            }
        )

    @router.post("/hosts/tokens")
    async def create_token(request: Request, body: JoinTokenRequest) -> JSONResponse:
        """Create a token with which one machine can join. It is not shown again."""
        new = await hosts.create_token(body.lifetime)
        log.info("join_token_requested", token=new.token.id, by=request.scope["state"]["key"].id)
        answer = {
            "token": new.token.encode().reveal(),
            "expiresAt": views.format_time(new.expires_at),
            "address": new.token.address,
        }
        return JSONResponse(answer, 201)

    @router.get("/hosts/{host}")
    async def get(host: str) -> JSONResponse:
        return JSONResponse(render_host(hosts.get(host)))

    @router.patch("/hosts/{host}")
    async def change(request: Request, host: str, body: HostChange) -> JSONResponse:
        changed = await hosts.update(host, labels=body.labels, draining=body.draining, evacuating=body.evacuating)
        log.info("host_updated", host=changed.status.record.id, by=request.scope["state"]["key"].id)
        return JSONResponse(render_host(changed))

    @router.post("/hosts/{host}/recover")
    async def recover(request: Request, host: str) -> JSONResponse:
        """Let the sandboxes of a lost host continue on others from their checkpoints."""
        changed = await hosts.recover(host)
        log.info("host_lost", host=changed.status.record.id, by=request.scope["state"]["key"].id)
        return JSONResponse(render_host(changed))

    @router.delete("/hosts/{host}")
    async def forget(request: Request, host: str, *, force: bool = False) -> Response:
        record = await hosts.forget(host, force=force)
        log.info("host_removed", host=record.id, by=request.scope["state"]["key"].id)
        return Response(status_code=204)

    return router


def render_host(host: HostView) -> dict[str, Any]:
    """Return a host as JSON. What is not known is null."""
    status, record = host.status, host.status.record
    capabilities = status.capabilities
    return {
        "hostID": record.id,
        "name": record.name,
        "local": record.id == LOCAL_HOST_ID,
        "address": record.address,
        "port": record.port,
        "labels": dict(record.labels),
        "draining": record.draining,
        "evacuation": None
        if host.evacuation is None
        else {
            "moved": host.evacuation.moved,
            "total": host.evacuation.total,
            "failures": dict(host.evacuation.failures),
            "stranded": sorted(host.evacuation.stranded),
        },
        "lost": host.lost,
        "source": host.source,
        "missingFromSource": host.is_missing,
        "checkpoints": {
            "count": len(host.checkpoint_times),
            "oldest": _format_time(min(host.checkpoint_times, default=None)),
        },
        "state": status.state.value,
        "since": views.format_time(status.since),
        "seenAt": _format_time(status.seen_at),
        "reason": status.reason,
        "version": status.version,
        "sandboxes": status.sandboxes,
        "room": _render_room(status.room) if status.room is not None else None,
        "isolation": sorted(level.value for level in capabilities.isolation) if capabilities is not None else None,
        "missing": dict(capabilities.missing) if capabilities is not None else {},
        "joinedAt": _format_time(host.joined_at),
        "certificateExpiresAt": _format_time(host.expires_at),
    }


def _render_source(source: SourceView) -> dict[str, Any]:
    machines = [
        {"id": machine.id, "name": machine.name, "address": machine.address, "problem": problem}
        for machine, problem in source.machines
    ]
    return {"name": source.name, "problem": source.problem, "machines": machines}


def _render_room(room: HostRoom) -> dict[str, Any]:
    return {
        "memoryTotal": room.memory_total,
        "memoryAvailable": room.memory_available,
        "diskTotal": room.disk_total,
        "diskFree": room.disk_free,
        "cpuCount": room.cpu_count,
        "load": room.load,
        "full": room.full,
    }


def _format_time(moment: float | None) -> str | None:
    return None if moment is None else views.format_time(moment)
