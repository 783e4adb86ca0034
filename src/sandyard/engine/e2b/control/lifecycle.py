"""Operations that change a sandbox: kill, pause, resume, timeouts, network, fork, snapshot."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from sandyard.engine.e2b.control import network, views
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.wire import (
    Connect,
    ConnectV2,
    Fork,
    NetworkUpdate,
    NewSnapshot,
    Pause,
    Refresh,
    Resume,
    Timeout,
)
from sandyard.engine.e2b.dataplane.target import strip_client_id
from sandyard.kit.errors import InvalidInputError

MIN_REFRESH_S = 15
NO_CONTENT = 204


def make_router(context: Context) -> APIRouter:
    router = APIRouter(prefix="/sandboxes/{sandbox_id}")
    service = context.sandboxes

    @router.delete("")
    async def kill(sandbox_id: str) -> Response:
        await service.kill(strip_client_id(sandbox_id))
        return Response(status_code=NO_CONTENT)

    @router.post("/pause")
    async def pause(sandbox_id: str, body: Pause | None = None) -> Response:
        await service.pause(strip_client_id(sandbox_id), memory=body is None or body.memory is not False)
        return Response(status_code=NO_CONTENT)

    @router.post("/resume")
    async def resume(sandbox_id: str, body: Resume | None = None) -> JSONResponse:
        body = body or Resume()
        _require_timeout(body.timeout)
        sandbox = await service.resume(
            strip_client_id(sandbox_id), body.timeout, auto_pause=body.autoPause, memory=body.memory is not False
        )
        return JSONResponse(views.render_created(sandbox, context.domain), 201)

    @router.post("/connect")
    async def connect(sandbox_id: str, body: Connect) -> JSONResponse:
        return await connect_with(sandbox_id, body)

    async def connect_with(sandbox_id: str, body: Connect | ConnectV2) -> JSONResponse:
        memory = body.memory is not False
        sandbox, resumed = await service.connect(strip_client_id(sandbox_id), body.timeout, memory=memory)
        return JSONResponse(views.render_created(sandbox, context.domain), 201 if resumed else 200)

    @router.post("/timeout")
    async def set_timeout(sandbox_id: str, body: Timeout) -> Response:
        await service.set_timeout(strip_client_id(sandbox_id), body.timeout)
        return Response(status_code=NO_CONTENT)

    @router.post("/refreshes")
    async def refresh(sandbox_id: str, body: Refresh | None = None) -> Response:
        duration = body.duration if body is not None and body.duration is not None else 0
        await service.refresh(strip_client_id(sandbox_id), max(duration, MIN_REFRESH_S))
        return Response(status_code=NO_CONTENT)

    @router.put("/network")
    async def set_network(sandbox_id: str, body: NetworkUpdate) -> Response:
        before = service.get(strip_client_id(sandbox_id)).network
        await service.set_network(strip_client_id(sandbox_id), network.update_network(body, before))
        return Response(status_code=NO_CONTENT)

    @router.post("/fork")
    async def fork(sandbox_id: str, body: Fork | None = None) -> JSONResponse:
        body = body or Fork()
        _require_timeout(body.timeout)
        if body.count < 1:
            raise InvalidInputError("Count must be at least 1")
        results = await service.fork(strip_client_id(sandbox_id), body.count, body.timeout, body.memory)
        return JSONResponse([views.render_fork(result, context.domain) for result in results], 201)

    @router.post("/snapshots")
    async def snapshot(sandbox_id: str, body: NewSnapshot | None = None) -> JSONResponse:
        record = await service.snapshot(strip_client_id(sandbox_id), body.name if body is not None else None)
        return JSONResponse(views.render_snapshot(record, durable=False), 201)

    combined = APIRouter()

    @combined.post("/v2/sandboxes/{sandbox_id}/connect")
    async def connect_v2(sandbox_id: str, body: ConnectV2 | None = None) -> JSONResponse:
        return await connect_with(sandbox_id, body or ConnectV2())

    combined.include_router(router)
    return combined


def _require_timeout(timeout: int) -> None:
    if timeout <= 0:
        raise InvalidInputError("Timeout must be greater than 0")
