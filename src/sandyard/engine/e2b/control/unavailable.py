"""Routes that E2B has and this engine has not yet: a sentence instead of a riddle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request

from sandyard.engine.e2b.control.context import Context
from sandyard.kit.errors import UnsupportedError

BUILDS = (
    "Building templates through the API is not available on this engine yet. "
    "`sandyard template build` builds those it comes with; a snapshot of a prepared sandbox serves as a template too."
)
TAGS = "Moving tags of templates is not available on this engine yet. Take a snapshot under `name:tag` instead."
VOLUMES = "Volumes are not available on this engine yet. Files live in sandboxes and their snapshots."
SECRETS = "Secrets are not available on this engine yet. Pass environment variables to the commands that need them."

_ROUTES = (
    (BUILDS, ("POST",), "/templates"),
    (BUILDS, ("POST",), "/v2/templates"),
    (BUILDS, ("POST",), "/v3/templates"),
    (BUILDS, ("PATCH",), "/v2/templates/{template_id}"),
    (BUILDS, ("POST", "PATCH"), "/templates/{template_id}"),
    (BUILDS, ("GET",), "/templates/{template_id}/files/{hash}"),
    (BUILDS, ("POST",), "/templates/{template_id}/builds/{build_id}"),
    (BUILDS, ("POST",), "/v2/templates/{template_id}/builds/{build_id}"),
    (BUILDS, ("GET",), "/templates/{template_id}/builds/{build_id}/status"),
    (BUILDS, ("GET",), "/templates/{template_id}/builds/{build_id}/logs"),
    (TAGS, ("POST", "DELETE"), "/templates/tags"),
    (VOLUMES, ("GET", "POST"), "/volumes"),
    (VOLUMES, ("GET", "DELETE"), "/volumes/{volume_id}"),
    (VOLUMES, ("GET", "POST", "PUT", "PATCH", "DELETE"), "/volumecontent/{rest:path}"),
    (SECRETS, ("GET", "POST"), "/secrets"),
    (SECRETS, ("GET", "POST", "DELETE"), "/secrets/{secret_id}"),
)


def routes(context: Context) -> APIRouter:
    router = APIRouter()
    for sentence, methods, path in _ROUTES:
        router.add_api_route(path, _saying(sentence), methods=list(methods))
    return router


def _saying(sentence: str) -> Callable[[Request], Awaitable[None]]:
    async def unavailable(request: Request) -> None:
        raise UnsupportedError(sentence)

    return unavailable
