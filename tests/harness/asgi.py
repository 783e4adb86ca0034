"""An ASGI application on a loopback port, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn


@contextlib.asynccontextmanager
async def serve_app(app: Any, **options: Any) -> AsyncIterator[int]:
    """Serve the application and yield its port. `options` are those of `uvicorn.Config`."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, **options))
    server.config.timeout_graceful_shutdown = 1
    task = asyncio.create_task(server._serve([listener]))  # `serve` would take over the signals of the test run
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task
