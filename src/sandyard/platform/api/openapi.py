"""The OpenAPI document: FastAPI's, with the errors as they really are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sandyard.platform.api.problems import MEDIA_TYPE, Problem

TAGS = {
    "login": "Signing in, and tickets for streams.",
    "users": "People and their roles.",
    "tokens": "API tokens.",
    "projects": "Repositories, what opens them, and how to work on them.",
    "tasks": "Cards on a project's board, the attempts at them, and the queue.",
    "schedules": "Tasks that are made again and again.",
    "sessions": "One agent working, with its sandbox.",
    "turns": "What an agent is told, what it does, and what it asks.",
    "preparations": "Checkouts in which a project's setup has run, kept for sessions to start from.",
    "agents": "Which there are, those of people's own, and whether one works.",
    "models": "Where agents find their models, and what was spent there.",
    "sandboxes": "Computers for agents: commands, files, pause and resume.",
    "commands": "What was run, and its output.",
    "files": "Files in a sandbox.",
    "terminals": "Shells one can come back to.",
    "previews": "Ports of sandboxes, and the way for a browser to see what listens there.",
    "remote": "SSH and editors, of people's own machines and in the browser.",
    "git": "Checkouts in sandboxes: commits, branches, pushes, checkpoints.",
    "pull requests": "What becomes of a branch on its forge.",
    "webhooks": "What a forge tells by itself.",
    "events": "What happens, live and afterwards.",
    "audit": "Who did what.",
    "secrets": "Values that go in and are never shown.",
    "service": "The platform itself.",
}
_MEANING = {
    "400": "The request is not valid.",
    "401": "Nobody is signed in, or the token is not valid.",
    "403": "The caller may not do this.",
    "404": "There is no such thing, or the caller may not see it.",
    "409": "It is not in a state in which this can be done.",
    "413": "The body is too large.",
    "429": "Too many requests; Retry-After says how long to wait.",
    "500": "The platform failed; its log says why.",
    "503": "Something the platform needs does not answer; try again.",
}
_REF = {"$ref": "#/components/schemas/Problem"}
_CONTENT = {MEDIA_TYPE: {"schema": _REF}}
_DESCRIPTION = """Sandboxes for coding agents.

Times are RFC 3339 in UTC. Lists are newest first and come in pages: `nextCursor` of one is `cursor` of the next. Errors
are `application/problem+json` with a `code` for programs. Every answer
has an `X-Request-Id`, which the platform's log and the audit name too."""


def document(app: FastAPI) -> dict[str, Any]:
    """Made once; the same for everybody."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=_DESCRIPTION,
            routes=app.routes,
            tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= problem.pop("$defs", {})
        schemas["Problem"] = problem
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                _add_problems(path, method, operation)
        app.openapi_schema = made
    return app.openapi_schema


def _add_problems(path: str, method: str, operation: dict[str, Any]) -> None:
    responses: dict[str, Any] = operation["responses"]
    responses.pop("422", None)
    codes = {"400", "429", "500", "503"}
    if operation.get("security"):
        codes |= {"401", "403"}
    if "{" in path:
        codes |= {"404"}
    if method in ("post", "put", "patch", "delete"):
        codes |= {"409", "413"}
    for code in sorted(codes):
        responses.setdefault(code, {"description": _MEANING[code], "content": _CONTENT})
    responses.setdefault("default", {"description": "Another error.", "content": _CONTENT})
