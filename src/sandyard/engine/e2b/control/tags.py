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

TagHistory = tuple[str, list[Assignment]]


def _get_latest(tag: TagHistory) -> tuple[float, int]:
    latest = tag[1][-1]
    return latest.at, latest.seq


def _get_name(tag: TagHistory) -> str:
    return tag[0]


SORTS: dict[str, tuple[Callable[[TagHistory], Any], bool]] = {
    "latest_desc": (_get_latest, True),
    "latest_asc": (_get_latest, False),
    "name_asc": (_get_name, False),
    "name_desc": (_get_name, True),
}
PageLimit = Annotated[int, Query(ge=1, le=100)]


def make_router(context: Context) -> APIRouter:
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
            histories = builds.list_tags(template).items()
            return JSONResponse([template_views.render_tag(tag, history[-1]) for tag, history in histories])
        plain = name.partition(":")[0].lower()
        snapshots = context.sandboxes.list_snapshots(SnapshotQuery(name=plain)).items
        if snapshots:
            return JSONResponse([views.render_tag(record.tag, record.id, record.created_at) for record in snapshots])
        return JSONResponse([views.render_tag("default", context.sandboxes.find_template(name).id, views.UNKNOWN_TIME)])

    @router.get("/templates/{name:path}/tags/count")
    async def count(name: str) -> JSONResponse:
        return JSONResponse({"total": len(builds.list_tags(builds.get(name)))})

    @router.get("/templates/{name:path}/tags/exists")
    async def exists(name: str, tag: str) -> JSONResponse:
        template = builds.get(name)
        normalized = validate_tag(tag, template.name)
        return JSONResponse({"exists": normalized in builds.list_tags(template), "normalizedTag": normalized})

    @router.get("/templates/{name:path}/tags/groups")
    async def groups(
        *,
        name: str,
        assignmentLimit: PageLimit = 6,  # noqa: N803 - the wire's own names
        tagsLimit: PageLimit = 25,  # noqa: N803
        tagsCursor: str | None = None,  # noqa: N803
        search: str | None = None,
        sort: str = "latest_desc",
    ) -> JSONResponse:
        template = builds.get(name)
        if sort not in SORTS:
            raise InvalidInputError(f"sort is not valid: use {', '.join(SORTS)}.")
        key, descending = SORTS[sort]
        matches = [tag for tag in builds.list_tags(template).items() if (search or "").lower() in tag[0]]
        matches.sort(key=key, reverse=descending)
        page, next_cursor = _paginate(matches, tagsCursor, tagsLimit)
        shown = [
            {
                "tag": tag,
                "assignments": [
                    _render_assignment(template, assignment) for assignment in history[::-1][:assignmentLimit]
                ],
                "hasMore": len(history) > assignmentLimit,
            }
            for tag, history in page
        ]
        return JSONResponse({"tags": shown, "nextCursor": next_cursor})

    @router.get("/templates/{name:path}/tags/{tag}/assignments")
    async def assignments(name: str, tag: str, cursor: str | None = None, limit: PageLimit = 25) -> JSONResponse:
        template = builds.get(name)
        history = builds.list_tags(template).get(validate_tag(tag, template.name), [])
        page, next_cursor = _paginate(history[::-1], cursor, limit)
        shown = [_render_assignment(template, assignment) for assignment in page]
        return JSONResponse({"data": shown, "nextCursor": next_cursor})

    def _render_assignment(template: BuiltTemplate, assignment: Assignment) -> views.View:
        build = next((build for build in builds.list_builds(template) if build.id == assignment.build_id), None)
        return template_views.render_assignment(assignment, build)

    return router


def _paginate(items: list[Any], cursor: str | None, limit: int) -> tuple[list[Any], str | None]:
    """Return the page at the cursor and the cursor of the next page, or None. Raises InvalidInputError."""
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise InvalidInputError("The cursor is not valid: use one from a previous response.")
    begin = int(cursor or 0)
    end = begin + limit
    return items[begin:end], str(end) if end < len(items) else None
