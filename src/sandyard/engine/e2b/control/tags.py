"""Template tags: which build each tag refers to now, and its history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from sandyard.engine.builds.model import Assignment, BuiltTemplate
from sandyard.engine.builds.service import validate_tag
from sandyard.engine.e2b.control import template_views, views
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.wire import AssignTags, RemoveTags
from sandyard.engine.sandboxes.model import SnapshotQuery
from sandyard.kit.errors import InvalidInputError

_LATEST: Callable[[tuple[str, list[Assignment]]], Any] = lambda one: (one[1][-1].at, one[1][-1].seq)  # noqa: E731
_NAME: Callable[[tuple[str, list[Assignment]]], Any] = lambda one: one[0]  # noqa: E731
SORTS = {
    "latest_desc": (_LATEST, True),
    "latest_asc": (_LATEST, False),
    "name_asc": (_NAME, False),
    "name_desc": (_NAME, True),
}
Few = Annotated[int, Query(ge=1, le=100)]


def routes(context: Context) -> APIRouter:
    router = APIRouter()
    builds = context.builds

    @router.post("/templates/tags")
    async def assign(body: AssignTags) -> JSONResponse:
        build, tags = builds.assign(body.target, body.tags)
        return JSONResponse({"tags": list(tags), "buildID": build.id}, 201)

    @router.delete("/templates/tags")
    async def remove(body: RemoveTags) -> Response:
        builds.remove_tags(body.name, body.tags)
        return Response(status_code=204)

    @router.get("/templates/{name:path}/tags")
    async def tags(name: str) -> JSONResponse:
        template = builds.find(name)
        if template is not None:
            found = builds.tags(template).items()
            return JSONResponse([template_views.render_tag(tag, history[-1]) for tag, history in found])
        wanted = name.partition(":")[0].lower()
        snapshots = context.sandboxes.snapshots(SnapshotQuery(name=wanted)).items
        if snapshots:
            return JSONResponse([views.render_tag(record.tag, record.id, record.created_at) for record in snapshots])
        return JSONResponse([views.render_tag("default", context.sandboxes.find_template(name).id, views.UNKNOWN_TIME)])

    @router.get("/templates/{name:path}/tags/count")
    async def count(name: str) -> JSONResponse:
        return JSONResponse({"total": len(builds.tags(builds.get(name)))})

    @router.get("/templates/{name:path}/tags/exists")
    async def exists(name: str, tag: str) -> JSONResponse:
        template = builds.get(name)
        wanted = validate_tag(tag, template.name)
        return JSONResponse({"exists": wanted in builds.tags(template), "normalizedTag": wanted})

    @router.get("/templates/{name:path}/tags/groups")
    async def groups(
        *,
        name: str,
        assignmentLimit: Few = 6,  # noqa: N803 - the wire's own names
        tagsLimit: Few = 25,  # noqa: N803
        tagsCursor: str | None = None,  # noqa: N803
        search: str | None = None,
        sort: str = "latest_desc",
    ) -> JSONResponse:
        template = builds.get(name)
        if sort not in SORTS:
            raise InvalidInputError(f"sort is not valid: use {', '.join(SORTS)}.")
        key, backward = SORTS[sort]
        found = [one for one in builds.tags(template).items() if (search or "").lower() in one[0]]
        found.sort(key=key, reverse=backward)
        page, following = _page(found, tagsCursor, tagsLimit)
        shown = [
            {
                "tag": tag,
                "assignments": [_assignment(template, one) for one in history[::-1][:assignmentLimit]],
                "hasMore": len(history) > assignmentLimit,
            }
            for tag, history in page
        ]
        return JSONResponse({"tags": shown, "nextCursor": following})

    @router.get("/templates/{name:path}/tags/{tag}/assignments")
    async def assignments(name: str, tag: str, cursor: str | None = None, limit: Few = 25) -> JSONResponse:
        template = builds.get(name)
        history = builds.tags(template).get(validate_tag(tag, template.name), [])
        page, following = _page(history[::-1], cursor, limit)
        return JSONResponse({"data": [_assignment(template, one) for one in page], "nextCursor": following})

    def _assignment(template: BuiltTemplate, one: Assignment) -> views.View:
        known = next((build for build in builds.builds(template) if build.id == one.build_id), None)
        return template_views.render_assignment(one, known)

    return router


def _page(found: list[Any], cursor: str | None, limit: int) -> tuple[list[Any], str | None]:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise InvalidInputError("The cursor is not valid: use one from a previous response.")
    begin = int(cursor or 0)
    end = begin + limit
    return found[begin:end], str(end) if end < len(found) else None
