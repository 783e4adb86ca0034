"""Report and reduce the engine's disk use. Not part of E2B's API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from sandyard.engine.disk.service import DiskEntry, DiskState
from sandyard.engine.e2b.control.context import Context


def make_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/disk")
    async def read() -> JSONResponse:
        """Return the disk use by kind, and how much of it may be removed. May take seconds."""
        return JSONResponse(_render(await context.disk.read()))

    @router.post("/disk/free")
    async def free() -> JSONResponse:
        """Remove what the retention rules allow, and return what was removed: `removable` and `removableBytes`."""
        return JSONResponse(_render(await context.sandboxes.components.tasks.finish(context.disk.free())))

    return router


def _render(state: DiskState) -> dict[str, Any]:
    return {
        "entries": [_render_entry(entry) for entry in state.entries],
        "free": state.free,
        "total": state.total,
        "path": state.path,
    }


def _render_entry(entry: DiskEntry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "bytes": entry.bytes,
        "count": entry.count,
        "oldestAt": entry.oldest_at,
        "removable": entry.removable,
        "removableBytes": entry.removable_bytes,
    }
