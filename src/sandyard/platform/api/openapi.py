"""The OpenAPI document: FastAPI's, with the platform's actual error responses."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from sandyard.platform.api.problems import MEDIA_TYPE, Problem

TAGS = {
    "login": "Sign in, and create tickets for streams.",
    "users": "Users and their roles.",
    "quotas": "What users and projects use, and their limits.",
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
    "hosts": "The machines that run sandboxes, for administrators.",
    "service": "Health, readiness and metrics.",
}
_STATUS_DESCRIPTIONS = {
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
_NOUNS = {"mcp_server": "MCP server", "ask": "agent request"}
_SUMMARIES = {
    "ask.allow": "Allow denied request",
    "audit.export": "Export audit log",
    "audit.list": "List audit log",
    "command.output": "Get command output",
    "command.stream": "Stream command output",
    "credential.put": "Set credentials",
    "editor.open": "Open browser editor",
    "file.info": "Get file info",
    "git.branch": "Create branch",
    "git.checkout": "Get checkout",
    "git.checkpoint": "Create checkpoint",
    "git.clone": "Clone repository",
    "git.commit": "Commit changes",
    "git.diff": "Get diff",
    "git.discard": "Discard changes",
    "git.history": "List commits",
    "git.operation": "Get Git operation",
    "git.operations": "List Git operations",
    "git.push": "Push branch",
    "git.restore": "Restore checkpoint",
    "git.stage": "Stage or unstage files",
    "git.status": "Get Git status",
    "git.tag": "Create tag",
    "git.update": "Update branch",
    "host.create_token": "Create join token",
    "login.create": "Sign in",
    "login.delete": "Sign out",
    "login.get": "Get current user",
    "login.password": "Change password",
    "project.add_member": "Add member",
    "project.compare": "Compare revisions",
    "project.members": "List members",
    "project.remove_member": "Remove member",
    "project.sample": "Create sample project",
    "project.test": "Test connection",
    "pull_request.get_by_id": "Get pull request by id",
    "pull_request.merge_by_id": "Merge pull request by id",
    "pull_request.ready": "Mark pull request as ready",
    "pull_request.refresh_by_id": "Refresh pull request by id",
    "sandbox.denied": "List denied connections",
    "sandbox.destroy": "Delete sandbox",
    "sandbox.execute": "Run command",
    "sandbox.list": "List sandboxes",
    "sandbox.metrics": "Get resource usage",
    "schedule.run": "Run schedule now",
    "secret.put": "Set secret",
    "service.health": "Get health",
    "service.metrics": "Get metrics",
    "service.ready": "Get readiness",
    "service.status": "Get status of the installation",
    "session.agent": "Get agent state",
    "session.checkpoint": "Checkpoint session",
    "session.provision": "Replace sandbox",
    "session.pull_request": "Get pull request of session",
    "session.remote": "Get SSH and editor details",
    "session.sandbox": "Get sandbox of session",
    "task.attempts": "List attempts",
    "task.board": "Get board",
    "task.counts": "Count tasks",
    "task.pick": "Pick attempt",
    "task.pull_request": "Get pull request of task",
    "task.queue": "List queue",
    "token.delete": "Revoke token",
    "turn.create": "Send prompt",
    "usage.days": "Get usage by day",
    "usage.get": "Get usage",
    "user.delete": "Disable user",
    "webhook.github": "Receive GitHub webhook",
}
"""Summaries of routes whose name is not simply `noun.verb`."""
_REF = {"$ref": "#/components/schemas/Problem"}
_CONTENT = {MEDIA_TYPE: {"schema": _REF}}
_DESCRIPTION = """Sandboxes for coding agents.

Times are RFC 3339 in UTC. Lists are sorted newest first and paginated: send `nextCursor` of a page as `cursor` to get the next one. Errors
are `application/problem+json` with a `code` for programs. Every response has an `X-Request-Id`, which also appears in the platform's log and
the audit log."""


def make_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document. It is built once and is the same for everyone."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=_DESCRIPTION,
            routes=app.routes,
            tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= problem.pop("$defs", {})
        schemas["Problem"] = problem
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                operation["summary"] = _make_summary(operation["summary"])
                _add_problems(path, method, operation)
        app.openapi_schema = document
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
        responses.setdefault(code, {"description": _STATUS_DESCRIPTIONS[code], "content": _CONTENT})
    responses.setdefault("default", {"description": "Another error.", "content": _CONTENT})


def _make_summary(default: str) -> str:
    """Return a readable summary in place of FastAPI's default, which is the route's name in title case: `Mcp Server.Create`."""
    name = default.lower().replace(" ", "_")
    if "." not in name:
        return default
    if name in _SUMMARIES:
        return _SUMMARIES[name]
    noun, _, verb = name.partition(".")
    words = _NOUNS.get(noun, noun.replace("_", " "))
    return f"{verb.capitalize()} {words}s" if verb == "list" else f"{verb.capitalize()} {words}"
