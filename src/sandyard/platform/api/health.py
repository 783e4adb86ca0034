"""Health and readiness endpoints."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field

from sandyard import __version__
from sandyard.kit.errors import SandyardError
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Model
from sandyard.platform.db import migrate

router = api_router("service", prefix="")
_TIMEOUT_SECONDS = 2.0
MIN_FREE_BYTES = 64 << 20
_STARTED_AT = time.monotonic()


class PartHealth(Model):
    ok: bool
    reason: str | None = None


class EngineHealth(Model):
    configured: bool
    breaker: str = Field(examples=["closed"], description="closed (working), open (failing) or half_open (retrying).")
    reason: str | None = None


class Health(Model):
    status: str = Field(
        examples=["ok"], description="`ok`, or `degraded` if the database or the engine does not respond."
    )
    version: str
    uptime_seconds: float
    database: PartHealth
    engine: EngineHealth


class Readiness(Model):
    ready: bool
    reasons: list[str]
    engine: EngineHealth


@router.get("/health", name="service.health", response_model=Health)
async def health(request: Request) -> Health:
    """Report health. Always 200 while the process is serving requests."""
    services = request.app.state.services
    database, engine = await _check_database(services), _get_engine_health(services)
    healthy = database.ok and engine.breaker != "open"
    return Health(
        status="ok" if healthy else "degraded",
        version=__version__,
        uptime_seconds=round(time.monotonic() - _STARTED_AT, 1),
        database=database,
        engine=engine,
    )


@router.get(
    "/ready",
    name="service.ready",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Not ready; `reasons` says why."}},
)
async def ready(request: Request) -> JSONResponse:
    """Return 200 if the database is reachable and migrated, the disk has space and an engine is configured.

    An unreachable engine is reported but does not make the platform unready, because another replica could not reach it either.
    """
    services = request.app.state.services
    reasons = []
    database, engine = await _check_database(services), _get_engine_health(services)
    if not database.ok:
        reasons.append(f"The database is not responding: {database.reason}")
    else:
        reasons += await _check_schema(services)
    if not engine.configured:
        reasons.append("No engine is configured. Set E2B_API_KEY, and E2B_API_URL unless you use E2B Cloud.")
    reasons += await asyncio.to_thread(_check_disk, services.settings.data_dir)
    answer = Readiness(ready=not reasons, reasons=reasons, engine=engine)
    return JSONResponse(answer.model_dump(mode="json", by_alias=True), 503 if reasons else 200)


def _check_disk(folder: Path) -> list[str]:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free >= MIN_FREE_BYTES:
        return []
    return [f"The disk is full: {free >> 20} MiB are free at {folder}. Free up disk space."]


async def _check_database(services: Any) -> PartHealth:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await services.database.check()
    except TimeoutError:
        return PartHealth(ok=False, reason=f"no response within {_TIMEOUT_SECONDS:.0f} s")
    except SandyardError as error:
        return PartHealth(ok=False, reason=error.message)
    return PartHealth(ok=True)


async def _check_schema(services: Any) -> list[str]:
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            current = await migrate.get_current_revision(services.database)
    except TimeoutError:
        return ["The database did not report its schema version in time."]
    except SandyardError as error:
        return [error.message]
    if current == await asyncio.to_thread(_get_newest_revision):
        return []
    return ["The database schema does not match this version. It is migrated when the platform starts."]


@functools.cache
def _get_newest_revision() -> str | None:
    return ScriptDirectory(str(migrate.FOLDER)).get_current_head()


def _get_engine_health(services: Any) -> EngineHealth:
    breaker = services.engine.breaker
    return EngineHealth(configured=services.engine.configured, breaker=breaker.state, reason=breaker.reason)
