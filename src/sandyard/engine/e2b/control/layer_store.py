"""The layer store: its state, published snapshots, and fetching them. Not part of E2B's API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from sandyard.engine.e2b.control import views
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.layers.manifest import Manifest
from sandyard.engine.layers.puller import Unreadable
from sandyard.engine.layers.service import LayerService
from sandyard.kit.errors import NotFoundError


class PullRequest(BaseModel):
    snapshot: str = Field(min_length=1, max_length=300)  # an id or a name, with or without `:tag`


def make_router(context: Context) -> APIRouter:
    router = APIRouter()

    def get_layers() -> LayerService:
        if context.layers is None:
            raise NotFoundError("This engine has no layer store. Start it with --layer-store.")
        return context.layers

    @router.get("/layer-store")
    async def status() -> JSONResponse:
        """Return the state of the layer store, without contacting it."""
        status = get_layers().status
        return JSONResponse(
            {
                "location": status.location,
                "problem": status.problem,
                "sweepProblem": status.sweep_problem,
                "published": status.published,
                "pending": status.pending,
                "failures": status.failures,
            }
        )

    @router.get("/layer-store/snapshots")
    async def snapshots() -> JSONResponse:
        """Return the snapshots in the layer store, oldest first."""
        known = context.sandboxes.components.snapshots
        found = await get_layers().list_published()
        return JSONResponse(
            [_render_published(snapshot, local=known.find(snapshot.id) is not None) for snapshot in found]
        )

    @router.post("/layer-store/pull")
    async def pull(body: PullRequest) -> JSONResponse:
        """Fetch a published snapshot, so that sandboxes can be created from it without delay."""
        layers = get_layers()
        snapshot = await context.sandboxes.components.tasks.finish(layers.pull(body.snapshot))
        return JSONResponse(views.render_snapshot(snapshot, durable=context.is_durable(snapshot.id)), 201)

    return router


def _render_published(found: Manifest | Unreadable, *, local: bool) -> dict[str, Any]:
    if isinstance(found, Unreadable):
        return {"snapshotID": found.id, "problem": found.reason, "local": local}
    return {
        "snapshotID": found.ref,
        "id": found.id,
        "names": [found.ref] if found.name else [],
        "createdAt": views.format_time(found.created_at),
        "sandboxID": found.sandbox_id,
        "templateID": found.template_id,
        "layers": [{"name": layer.name, "kind": layer.kind, "digest": layer.digest} for layer in found.layers],
        "size": found.size,
        "local": local,
    }
