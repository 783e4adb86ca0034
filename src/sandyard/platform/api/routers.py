"""Create the API's routers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

PREFIX = "/api/v1"


def api_router(tag: str, *, prefix: str = PREFIX) -> APIRouter:
    """Create a router. Its routes are added to the application directly, because `include_router` would build each of them again."""
    return APIRouter(prefix=prefix, tags=[tag], generate_unique_id_function=_make_operation_id)


def _make_operation_id(route: APIRoute) -> Any:
    return route.name.replace(".", "_").replace("-", "_")
