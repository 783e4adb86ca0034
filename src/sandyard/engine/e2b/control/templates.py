"""Templates and snapshots of all kinds: list, get, publish, delete.

Names may contain a slash and a colon, so their routes match the rest of the path.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control import template_views, views
from sandyard.engine.e2b.control.context import Context, parse_page_limit
from sandyard.engine.e2b.control.wire import TemplateUpdate
from sandyard.engine.e2b.dataplane.target import strip_client_id
from sandyard.engine.sandboxes.model import SnapshotQuery
from sandyard.kit.errors import ForbiddenError, InvalidInputError


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    service, builds = context.sandboxes, context.builds

    def render_machine_templates() -> list[views.View]:
        return [
            {**views.render_template(template, context.defaults), "isDefault": True}
            for template in context.templates.list()
        ]

    def render_all_templates() -> list[views.View]:
        built = [
            template_views.render_template(template, builds.list_builds(template), context.defaults)
            for template in builds.list_templates()
        ]
        return [*built, *render_machine_templates()]

    @router.get("/snapshots")
    async def snapshots(
        sandboxID: str | None = None,  # noqa: N803 - the wire's own names
        name: str | None = None,
        limit: int | None = None,
        nextToken: str | None = None,  # noqa: N803
    ) -> JSONResponse:
        sandbox_id = strip_client_id(sandboxID) if sandboxID else None
        page = service.list_snapshots(
            SnapshotQuery(sandbox_id, name or None, parse_page_limit(limit), nextToken or None)
        )
        headers = {"X-Next-Token": page.next_cursor} if page.next_cursor else None
        shown = [views.render_snapshot(record, durable=context.is_durable(record.id)) for record in page.items]
        return JSONResponse(shown, headers=headers)

    @router.get("/templates")
    async def list_v1() -> JSONResponse:
        return JSONResponse(render_all_templates())

    @router.get("/default-templates")
    async def defaults() -> JSONResponse:
        return JSONResponse(render_machine_templates())

    @router.get("/v2/templates")
    async def list_v2(limit: int | None = None, nextToken: str | None = None) -> JSONResponse:  # noqa: N803
        shown = sorted(render_all_templates(), key=lambda view: str(view["templateID"]))
        if nextToken:
            shown = [view for view in shown if view["templateID"] > nextToken]
        size = parse_page_limit(limit)
        headers = {"X-Next-Token": shown[size - 1]["templateID"]} if len(shown) > size else None
        return JSONResponse(shown[:size], headers=headers)

    @router.get("/templates/aliases/{alias:path}")
    async def alias(alias: str) -> JSONResponse:
        built = builds.find(alias) if ":" not in alias else None  # also if it is not ready yet
        if built is not None:
            return JSONResponse({"templateID": built.id, "public": built.public})
        template = service.find_template(alias)
        record = builds.find(template.id)
        return JSONResponse({"templateID": template.id, "public": record is None or record.public})

    @router.get("/templates/{name:path}")
    async def get(name: str, limit: int | None = None, nextToken: str | None = None) -> JSONResponse:  # noqa: N803
        template = builds.find(name)
        if template is None:
            record = service.find_template(name)
            build = views.render_template_build(record, context.defaults)
            return JSONResponse(
                {**views.render_template(record, context.defaults), "builds": [build] if record.ready else []}
            )
        all_builds = builds.list_builds(template)
        if nextToken and not (nextToken.isascii() and nextToken.isdigit() and len(nextToken) < 10):
            raise InvalidInputError("nextToken is not valid: use one from a previous response.")
        begin, size = int(nextToken or 0), parse_page_limit(limit)
        shown = [template_views.render_build(build, context.defaults) for build in all_builds[begin : begin + size]]
        headers = {"X-Next-Token": str(begin + size)} if len(all_builds) > begin + size else None
        view = template_views.render_template(template, all_builds, context.defaults)
        return JSONResponse({**view, "builds": shown}, headers=headers)

    @router.patch("/templates/{name:path}")
    async def update_v1(name: str, body: TemplateUpdate) -> JSONResponse:
        if body.public is not None:
            builds.set_public(name, body.public)
        return JSONResponse({})

    @router.patch("/v2/templates/{name:path}")
    async def update(name: str, body: TemplateUpdate) -> JSONResponse:
        template = builds.get(name) if body.public is None else builds.set_public(name, body.public)
        return JSONResponse({"names": [template.name]})

    @router.delete("/templates/{name:path}")
    async def delete(name: str) -> Response:
        if not name:
            raise InvalidInputError("The template's id is missing.")
        if builds.find(name) is not None:
            await builds.delete(name)
            return Response(status_code=204)
        machine_template = context.templates.resolve(name)
        if machine_template is None or (machine_template.can_be_overridden and service.has_snapshot(name)):
            await service.delete_snapshot(name)
        else:
            raise ForbiddenError(
                f"The template {name} is managed on the engine's machine (`sandyard template`) and can't be deleted through the API."
            )
        return Response(status_code=204)

    return router
