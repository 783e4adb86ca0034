"""Secrets: they can be written, but never read."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control import views
from sandyard.engine.e2b.control.context import Context, parse_page_limit
from sandyard.engine.e2b.control.wire import NewSecret, SecretUpdate
from sandyard.engine.secrets.service import SecretInfo
from sandyard.kit.secret import Secret


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    secrets = context.secrets

    @router.get("/secrets")
    async def list_secrets(limit: int | None = None, nextToken: str | None = None) -> JSONResponse:  # noqa: N803
        page = secrets.list(parse_page_limit(limit), nextToken or None)
        headers = {"X-Next-Token": page.next_cursor} if page.next_cursor else None
        return JSONResponse([_view(info) for info in page.items], headers=headers)

    @router.post("/secrets")
    async def create(body: NewSecret) -> JSONResponse:
        return JSONResponse(_view(await secrets.create(body.name, Secret(body.value), body.metadata)), 201)

    @router.get("/secrets/{reference:path}")
    async def get(reference: str) -> JSONResponse:
        return JSONResponse(_view(secrets.get(reference)))

    @router.post("/secrets/{reference:path}")
    async def update(reference: str, body: SecretUpdate) -> JSONResponse:
        return JSONResponse(_view(await secrets.update(reference, Secret(body.value), body.metadata)))

    @router.delete("/secrets/{reference:path}")
    async def delete(reference: str) -> Response:
        await secrets.delete(reference)
        return Response(status_code=204)

    return router


def _view(info: SecretInfo) -> views.View:
    return {
        "secretID": info.id,
        "name": info.name,
        "currentVersion": info.version,
        "metadata": dict(info.metadata),
        "createdAt": views.format_time(info.created_at),
        "updatedAt": views.format_time(info.updated_at),
    }
