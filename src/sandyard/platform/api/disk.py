"""Show and free disk use, for administrators."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import AdminCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.domain.instance.disk import DiskKeeper, DiskState, Place

router = api_router("service")
Keeper = Annotated[DiskKeeper, inject("disk")]
_EXAMPLE: dict[str, Any] = {
    "place": "engine",
    "kind": "images",
    "bytes": 4_294_967_296,
    "count": 12,
    "oldestAt": "2026-01-01T10:00:00.000Z",
    "removable": 3,
    "removableBytes": 1_073_741_824,
}


class DiskEntryView(Model):
    model_config = example(**_EXAMPLE)

    place: Place
    kind: str = Field(
        description="On the engine: `sandboxes`, `memory`, `snapshots`, `shared`, `volumes`, `removing`, `reserved`, `images`, "
        "`layers`, `uploads`, `templates`, `database`, `other`. On the platform: `database`, `output`, `repositories`, "
        "`preparations`, `agents`, `other`."
    )
    bytes: int | None = Field(
        description="Bytes on the disk. Nothing is counted in two entries. Null: counted in the engine's snapshots."
    )
    count: int | None
    oldest_at: Instant | None
    removable: int = Field(description="Number of items that the retention rules allow to remove.")
    removable_bytes: int | None


class DiskRoomView(Model):
    place: Place
    path: str = Field(description="A directory on the disk.", examples=["/var/lib/sandyard/engine"])
    free: int
    total: int


class DiskStateView(Model):
    entries: list[DiskEntryView] = Field(description="Largest first.")
    rooms: list[DiskRoomView] = Field(description="The disks of the platform and the engine, which may be the same.")
    engine_error: str | None = Field(description="Why the engine's data is not included.")


@router.get("/disk", name="service.disk", response_model=DiskStateView, dependencies=[limit_rate("execute")])
async def read_disk(_: AdminCaller, keeper: Keeper) -> DiskState:
    """Get the disk use by kind, and what can be removed. Measures all files, which can take a minute."""
    return await keeper.read()


@router.post("/disk/free", name="service.free_disk", response_model=DiskStateView, dependencies=[limit_rate("execute")])
async def free_disk(_: AdminCaller, request: Request, keeper: Keeper) -> DiskState:
    """Remove what the retention rules allow, and nothing that is in use. In the result, `removable` is what was removed."""
    removed = await keeper.free()
    add_audit_detail(request, bytes=sum(entry.removable_bytes or 0 for entry in removed.entries))
    return removed
