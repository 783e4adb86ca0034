"""The OpenAPI document: FastAPI's, with the platform's actual error responses."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sandyard.platform.api.problems import MEDIA_TYPE, Problem

TAGS = {
    "login": "Sign in, and create tickets for streams.",
    "users": "Users and their roles.",
    "tokens": "API tokens.",
    "projects": "Repositories, their credentials and settings.",
    "tasks": "Tasks on a project's board, their attempts, and the queue.",
    "schedules": "Tasks that are created on a schedule.",
    "sessions": "An agent at work, with its sandbox.",
    "turns": "Messages to an agent, its work, and its questions.",
    "preparations": "Checkouts in which a project's setup has run, saved as a starting point for sessions.",
    "agents": "Built-in and custom agents, and tests of them.",
    "models": "Model providers and usage.",
    "sandboxes": "Isolated machines for agents: commands, files, pause and resume.",
    "commands": "Commands and their output.",
    "files": "Files in a sandbox.",
    "terminals": "Shells that you can reconnect to.",
    "previews": "Ports of sandboxes, and URLs to open them in a browser.",
    "remote": "SSH, desktop editors and editors in the browser.",
    "git": "Checkouts in sandboxes: commits, branches, pushes, checkpoints.",
    "pull requests": "Pull requests of branches on the forge.",
    "webhooks": "Webhooks from the forge.",
    "events": "Events, live and past.",
    "audit": "The audit log.",
    "secrets": "Write-only values for sandboxes.",
    "service": "Health, readiness and metrics.",
}
_MEANING = {
    "400": "The request is invalid.",
    "401": "Not signed in, or the token is invalid.",
    "403": "You may not do this.",
    "404": "The object does not exist, or you may not see it.",
    "409": "Not possible in the current state.",
    "413": "The request body is too large.",
    "429": "Too many requests. Retry after the time in Retry-After.",
    "500": "Internal error. See the platform's log.",
    "503": "Something the platform needs is not responding. Try again.",
}
_REF = {"$ref": "#/components/schemas/Problem"}
_CONTENT = {MEDIA_TYPE: {"schema": _REF}}
_DESCRIPTION = """Sandboxes for coding agents.

Times are RFC 3339 in UTC. Lists are sorted newest first and paginated: send `nextCursor` of a page as `cursor` to get the next one. Errors
are `application/problem+json` with a `code` for programs. Every response has an `X-Request-Id`, which also appears in the platform's log and
the audit log."""


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document. It is built once and is the same for everyone."""
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
