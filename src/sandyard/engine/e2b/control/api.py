"""The control application, put together."""

from __future__ import annotations

from fastapi import FastAPI, Response

from sandyard.engine.e2b.control import errors, lifecycle, monitoring, sandboxes, templates, unavailable
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.control.guard import Guard
from sandyard.engine.store.keys import ApiKeys


def build(context: Context, keys: ApiKeys) -> Guard:
    """The ASGI application for everything that is not traffic into a sandbox."""
    app = FastAPI(title="Sandyard engine", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    errors.install(app)

    @app.get("/health", status_code=204)
    async def health() -> Response:
        return Response(status_code=204)

    for module in (monitoring, sandboxes, lifecycle, unavailable, templates):
        app.include_router(module.routes(context))
    return Guard(app, keys, sandboxes.direct(context))
