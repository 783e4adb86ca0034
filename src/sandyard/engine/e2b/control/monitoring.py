"""Metrics and logs of sandboxes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control import views
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.dataplane.target import strip_client_id
from sandyard.engine.sandboxes.model import LogLevel, LogQuery
from sandyard.kit.errors import InvalidInputError

MAX_SANDBOXES = 100
DENIED_HEADER = "X-Sandyard-Egress-Denied"
Timestamp = Annotated[int | None, Query(ge=0)]
LogLimit = Annotated[int, Query(ge=0, le=1000)]


def make_router(context: Context) -> APIRouter:
    router = APIRouter()
    service = context.sandboxes

    @router.get("/sandboxes/metrics")
    async def latest(sandbox_ids: Annotated[list[str], Query()]) -> JSONResponse:
        ids = [strip_client_id(name) for value in sandbox_ids for name in value.split(",") if name]
        if len(ids) > MAX_SANDBOXES:
            raise InvalidInputError(f"Too many sandboxes requested, maximum is {MAX_SANDBOXES}")
        samples = await service.get_latest_metrics(ids)
        return JSONResponse({"sandboxes": {key: views.render_metric(sample) for key, sample in samples.items()}})

    @router.get("/sandboxes/{sandbox_id}/metrics")
    async def metrics(sandbox_id: str, start: Timestamp = None, end: Timestamp = None) -> JSONResponse:
        if start is not None and end is not None and start > end:
            raise InvalidInputError("start is after end. Use the earlier time as start.")
        # include the whole last second, because times are given in whole seconds
        until = None if end is None else end + 1.0
        samples = await service.list_metrics(strip_client_id(sandbox_id), start, until)
        return JSONResponse([views.render_metric(sample) for sample in samples])

    @router.get("/sandboxes/{sandbox_id}/logs")
    async def logs_v1(sandbox_id: str, start: Timestamp = None, limit: LogLimit = 1000) -> JSONResponse:
        query = LogQuery(start=None if start is None else start / 1000, limit=limit)
        await service.log_denied(strip_client_id(sandbox_id))
        entries = service.list_logs(strip_client_id(sandbox_id), query)
        return JSONResponse(
            {
                "logs": [views.render_log_line(entry) for entry in entries],
                "logEntries": [views.render_log_entry(entry) for entry in entries],
            }
        )

    @router.get("/v2/sandboxes/{sandbox_id}/logs")
    async def logs_v2(
        sandbox_id: str,
        *,
        cursor: Timestamp = None,
        limit: LogLimit = 1000,
        direction: str = "forward",
        level: LogLevel | None = None,
        search: Annotated[str | None, Query(max_length=256)] = None,
    ) -> JSONResponse:
        if direction not in ("forward", "backward"):
            raise InvalidInputError("direction is not valid: use forward or backward.")
        query = LogQuery(
            start=None if cursor is None else cursor / 1000,
            limit=limit,
            newest_first=direction == "backward",
            level=level,
            search=search or None,
        )
        await service.log_denied(strip_client_id(sandbox_id))
        entries = service.list_logs(strip_client_id(sandbox_id), query)
        # lets a client distinguish an engine that records nothing from a sandbox that tried nothing
        headers = {DENIED_HEADER: "recorded"} if service.can_report_denied else None
        return JSONResponse({"logs": [views.render_log_entry(entry) for entry in entries]}, headers=headers)

    return router
