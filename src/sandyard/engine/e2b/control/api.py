"""Assembly of the control application."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Response

from sandyard.engine.e2b.control import (
    builds,
    disk,
    encryption_keys,
    errors,
    hosts,
    isolation,
    layer_store,
    lifecycle,
    metrics,
    monitoring,
    sandboxes,
    secrets,
    status,
    tags,
    teams,
    templates,
    uploads,
    volume_content,
    volumes,
)
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.guard import Guard
from sandyard.engine.store.keys import ApiKeys
from sandyard.kit.telemetry import TelemetryMiddleware


def build_app(context: Context, keys: ApiKeys, find_problem: Callable[[], str | None] = lambda: None) -> Guard:
    """Return the ASGI application for all requests that are not traffic into a sandbox. `find_problem`: see `Guard`."""
    app = FastAPI(title="Sandyard engine", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(app)

    @app.get("/health", status_code=204)
    async def health() -> Response:
        return Response(status_code=204)

    @app.get("/ready", status_code=204)
    async def ready() -> Response:
        """Return whether a sandbox could be created now. `/health` only says that the engine is serving. With 200 and a
        message if it could, but snapshots are not published."""
        shortage = find_problem() or context.sandboxes.find_shortage()
        if shortage is not None:
            return errors.make_error_response(503, shortage)
        warning = context.layers.find_problem() if context.layers is not None else None
        return Response(status_code=204) if warning is None else errors.make_error_response(200, warning)

    app.include_router(teams.make_router(keys))
    for module in (
        metrics,
        status,
        monitoring,
        disk,
        encryption_keys,
        hosts,
        isolation,
        layer_store,
        sandboxes,
        lifecycle,
        secrets,
        volumes,
        tags,
        builds,
        templates,
    ):
        app.include_router(module.make_router(context))
    return Guard(
        TelemetryMiddleware(app),
        keys,
        {key: TelemetryMiddleware(create, key[1]) for key, create in sandboxes.make_create_apps(context).items()},
        {
            uploads.PREFIX: uploads.make_app(context.builds),
            volume_content.PREFIX: volume_content.make_app(context.volumes),
        },
        find_problem,
    )
