"""Endpoint that reports the isolation levels, and whether sandboxes can run containers. Not part of E2B's API."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from sandyard.engine.e2b.control.context import Context
from sandyard.engine.sandboxes import containers, isolation

TEXT = Query(max_length=300)


def make_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/isolation")
    async def check(
        template: Annotated[str, TEXT],
        level: Annotated[str | None, TEXT] = None,
        with_containers: Annotated[str | None, Query(alias="containers", max_length=300)] = None,
    ) -> dict[str, Any]:
        """Return the isolation level that a sandbox with these parameters would get now, and whether it could run
        containers; or the error that its create request would get."""
        given = {isolation.METADATA_KEY: level, containers.METADATA_KEY: with_containers}
        metadata = {key: value for key, value in given.items() if value is not None}
        chosen, can_run = context.sandboxes.choose_isolation(template, metadata)
        return {"isolation": chosen.value, "containers": can_run}

    return router
