"""Templates and snapshots, as far as looking at them and deleting snapshots goes; builds come later.

Names may hold a slash and a colon, so their routes take the rest of the path.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control import views
from sandyard.engine.e2b.control.context import Context, page_limit, short_id
from sandyard.engine.sandboxes.model import SnapshotQuery
from sandyard.kit.errors import ForbiddenError, InvalidInputError


def routes(context: Context) -> APIRouter:
    router = APIRouter()
    service = context.sandboxes

    @router.get("/snapshots")
    async def snapshots(
        sandboxID: str | None = None,  # noqa: N803 - the wire's own names
        name: str | None = None,
        limit: int | None = None,
        nextToken: str | None = None,  # noqa: N803
    ) -> JSONResponse:
        sandbox_id = short_id(sandboxID) if sandboxID else None
        page = service.snapshots(SnapshotQuery(sandbox_id, name or None, page_limit(limit), nextToken or None))
        headers = {"X-Next-Token": page.next_cursor} if page.next_cursor else None
        return JSONResponse([views.snapshot(record) for record in page.items], headers=headers)

    @router.get("/templates")
    @router.get("/default-templates")
    async def list_v1() -> JSONResponse:
        return JSONResponse([views.template(record, context.defaults) for record in context.templates.list()])

    @router.get("/v2/templates")
    async def list_v2(limit: int | None = None, nextToken: str | None = None) -> JSONResponse:  # noqa: N803
        records = sorted(context.templates.list(), key=lambda record: record.id)
        if nextToken:
            records = [record for record in records if record.id > nextToken]
        size = page_limit(limit)
        headers = {"X-Next-Token": records[size - 1].id} if len(records) > size else None
        return JSONResponse([views.template(record, context.defaults) for record in records[:size]], headers=headers)

    @router.get("/templates/aliases/{alias:path}")
    async def alias(alias: str) -> JSONResponse:
        return JSONResponse({"templateID": service.resolve_template(alias).id, "public": True})

    @router.get("/templates/{name:path}/tags")
    async def tags(name: str) -> JSONResponse:
        wanted = name.partition(":")[0].lower()
        found = [s for s in service.snapshots(SnapshotQuery(name=wanted)).items if wanted in (s.name, s.id)]
        if not found:
            template = service.resolve_template(name)
            return JSONResponse([views.tag("default", template.id, views.UNKNOWN_TIME)])
        return JSONResponse([views.tag(record.tag, record.id, record.created_at) for record in found])

    @router.get("/templates/{name:path}")
    async def get(name: str) -> JSONResponse:
        record = service.resolve_template(name)
        build = views.template_build(record, context.defaults)
        return JSONResponse({**views.template(record, context.defaults), "builds": [build]})

    @router.delete("/templates/{name:path}")
    async def delete(name: str) -> Response:
        if context.templates.resolve(name) is not None:
            raise ForbiddenError(f"The template {name} belongs to the machine: it can't be deleted through the API.")
        if not name:
            raise InvalidInputError("The template's id is missing.")
        await service.delete_snapshot(name)
        return Response(status_code=204)

    return router
