"""Volumes: create, list, get and delete. `volume_content` handles their files."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.views import View
from sandyard.engine.e2b.control.wire import NewVolume
from sandyard.engine.volumes.model import Volume


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    volumes = context.volumes

    @router.get("/volumes")
    async def list_all() -> JSONResponse:
        return JSONResponse([{"volumeID": volume.id, "name": volume.name} for volume in volumes.list()])

    @router.post("/volumes")
    async def create(body: NewVolume) -> JSONResponse:
        return JSONResponse(_view(await volumes.create(body.name), context.domain), 201)

    @router.get("/volumes/{volume_id}")
    async def get(volume_id: str) -> JSONResponse:
        return JSONResponse(_view(volumes.get(volume_id), context.domain))

    @router.delete("/volumes/{volume_id}")
    async def delete(volume_id: str) -> Response:
        await volumes.delete(volume_id)
        return Response(status_code=204)

    return router


def _view(volume: Volume, domain: str | None) -> View:
    """Return a volume. Without E2B_VOLUME_API_URL, clients look for the content at `https://api.{domain}`; if the
    response has no domain, at E2B's own servers, which must not get this token."""
    view = {"volumeID": volume.id, "name": volume.name, "token": volume.token.reveal()}
    return {**view, "domain": domain} if domain else view
