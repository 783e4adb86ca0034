"""The state of the engine, for the people who operate it. Not part of E2B's API."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from sandyard import __version__
from sandyard.engine.contract import Isolation
from sandyard.engine.e2b.control.context import Context

_STARTED_AT = time.time()


def make_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/status")
    async def status() -> JSONResponse:
        """Return the engine's resources, activity and problems, without waiting for anything."""
        return JSONResponse(_describe(context))

    return router


def _describe(context: Context) -> dict[str, Any]:
    components = context.sandboxes.components
    driver, registry = components.calls.driver, components.registry
    room = driver.get_room()
    return {
        "version": __version__,
        "driver": driver.name,
        "startedAt": _STARTED_AT,
        "shortage": components.capacity.find_shortage(),
        "memoryAvailable": room.memory_available,
        "diskFree": room.disk_free,
        "disk": room.disk,
        "sandboxes": {
            "running": registry.running_count,
            "paused": len(registry) - registry.running_count,
            "creating": registry.creating_count,
            "removing": len(components.remover.removing),
        },
        "pools": [asdict(pool) for pool in components.pool.list_status()],
        "builds": {status.value: count for status, count in context.builds.count_unfinished().items()},
        "isolation": [level.value for level in Isolation if level in driver.capabilities.isolation],
        "missing": dict(driver.capabilities.missing),
        "layerStore": _describe_layer_store(context),
        "slowOperations": [
            {
                "operation": slow.operation,
                "sandbox": slow.sandbox,
                "seconds": round(slow.seconds, 1),
                "endedAt": slow.ended_at,
                "error": slow.error,
            }
            for slow in components.counters.slow_operations
        ],
    }


def _describe_layer_store(context: Context) -> dict[str, Any] | None:
    if context.layers is None:
        return None
    status = context.layers.status
    return {"problem": status.problem, "published": status.published, "pending": status.pending}
