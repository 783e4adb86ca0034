"""Building templates: request a build, upload its files, start it, follow it, cancel it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from sandyard.engine.builds.logs import filter_by_level
from sandyard.engine.builds.model import LogLine, Recipe, Size, Step, StepKind
from sandyard.engine.e2b.control import template_views, uploads
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.wire import NewTemplate, StartBuild, TemplateStep
from sandyard.engine.images.model import RegistryAuth
from sandyard.engine.sandboxes.model import LogLevel
from sandyard.kit.errors import InvalidInputError, UnsupportedError

MAX_LINES = 100
V1_UNSUPPORTED = (
    "This way of building sends images through E2B's own registry and is not supported. "
    "Use Template.build of an SDK from version 2.0, or `e2b template create`."
)
_KINDS = {**{kind.value: kind for kind in StepKind}, "ADD": StepKind.COPY, "ARG": StepKind.ENV}
LineLimit = Annotated[int, Query(ge=0, le=MAX_LINES)]
Offset = Annotated[int, Query(ge=0)]


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    builds = context.builds

    @router.post("/v3/templates")
    @router.post("/v2/templates")
    async def request(body: NewTemplate) -> JSONResponse:
        name = body.name or body.alias
        if not name:
            raise InvalidInputError("The template must have a name.")
        disk = body.minFreeDiskMB or 0
        size = Size(body.cpuCount, body.memoryMB, disk if disk > context.defaults.disk_mb else None)
        template, build = builds.request(name, body.tags or (), size)
        return JSONResponse(template_views.render_requested(template, build), 202)

    @router.post("/templates")
    @router.post("/templates/{name}")
    @router.post("/templates/{name}/builds/{build_id}")
    async def request_v1() -> None:
        raise UnsupportedError(V1_UNSUPPORTED)

    @router.get("/templates/{name:path}/files/{files}")
    async def upload_link(name: str, files: str, request: Request) -> JSONResponse:
        present, token = builds.prepare_upload(name, files)
        return JSONResponse({"present": present, "url": uploads.make_link(request, files, token)}, 201)

    @router.post("/v2/templates/{name:path}/builds/{build_id}")
    async def start(name: str, build_id: str, body: StartBuild) -> Response:
        await builds.start(name, build_id, parse_recipe(body))
        return Response(status_code=202)

    @router.get("/templates/{name:path}/builds/{build_id}/status")
    async def status(
        name: str,
        build_id: str,
        logsOffset: Offset = 0,  # noqa: N803 - the wire's own name
        limit: LineLimit = MAX_LINES,
        level: LogLevel | None = None,
    ) -> JSONResponse:
        _, build = builds.build(name, build_id)
        lines = builds.log(build)
        shown = filter_by_level(lines, level)[logsOffset : logsOffset + limit]
        return JSONResponse(template_views.render_status(build, shown, lines))

    @router.get("/templates/{name:path}/builds/{build_id}/logs")
    async def logs(
        *,
        name: str,
        build_id: str,
        cursor: Annotated[int | None, Query(ge=0)] = None,
        limit: LineLimit = MAX_LINES,
        direction: str = "forward",
        level: LogLevel | None = None,
    ) -> JSONResponse:
        if direction not in ("forward", "backward"):
            raise InvalidInputError("direction is not valid: use forward or backward.")
        _, build = builds.build(name, build_id)
        shown = _filter_since(filter_by_level(builds.log(build), level), cursor, backward=direction == "backward")
        return JSONResponse({"logs": [template_views.render_line(line) for line in shown[:limit]]})

    @router.delete("/templates/{name:path}/builds/{build_id}")
    async def cancel(name: str, build_id: str) -> Response:
        await builds.cancel(name, build_id)
        return Response(status_code=204)

    return router


def parse_recipe(body: StartBuild) -> Recipe:
    """Parse a build request. Raises InvalidInputError."""
    if body.fromImage and body.fromTemplate:
        raise InvalidInputError("A build needs exactly one of fromImage and fromTemplate.")
    return Recipe(
        image=body.fromImage or None,
        template=body.fromTemplate or None,
        registry=RegistryAuth.parse(body.fromImageRegistry) if body.fromImageRegistry else None,
        steps=tuple(map(_parse_step, body.steps or ())),
        start=body.startCmd or None,
        ready=body.readyCmd or None,
        force=bool(body.force),
    )


def _parse_step(step: TemplateStep) -> Step:
    kind = _KINDS.get(step.type.upper())
    if kind is None:
        raise InvalidInputError(f"Unknown step {step.type!r}: use {', '.join(StepKind)}.")
    return Step(kind, tuple(step.args or ()), step.filesHash or None, force=bool(step.force))


def _filter_since(lines: Sequence[LogLine], cursor: int | None, *, backward: bool) -> Sequence[LogLine]:
    """Return the lines from a time in milliseconds on, in reading direction."""
    ordered = lines[::-1] if backward else lines
    if cursor is None:
        return ordered
    return [line for line in ordered if (line.at * 1000 <= cursor if backward else line.at * 1000 >= cursor)]
