"""An ASGI application on a loopback port, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from sandyard.kit.listen import listen
from sandyard.kit.server import Server

GRACE_SECONDS = 0.1
"""How long requests in progress may still take when a test ends."""


@contextlib.asynccontextmanager
async def serve_app(app: Any, **options: Any) -> AsyncIterator[int]:
    """Serve the application and yield its port. `options` are those of `uvicorn.Config`."""
    listener = listen("127.0.0.1", 0)
    server = Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, **options))
    server.config.timeout_graceful_shutdown = GRACE_SECONDS  # type: ignore[assignment] # uvicorn means seconds
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
