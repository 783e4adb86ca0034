"""Composition root: start a platform from settings, and stop it without affecting sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
import uvloop

from sandyard.kit import telemetry
from sandyard.kit.connections import CONNECTIONS
from sandyard.kit.endpoints import make_local_url
from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.folder import OwnedFolder
from sandyard.kit.listen import is_loopback, listen, raise_file_limit, take_inherited_socket
from sandyard.kit.logging import configure, get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.server import BoundedProtocol, Server
from sandyard.kit.tasks import end_tasks
from sandyard.kit.websockets import BoundedWebSocket
from sandyard.platform.api import agents as agents_api
from sandyard.platform.api import commands as commands_api
from sandyard.platform.api import credentials as credentials_api
from sandyard.platform.api import disk as disk_api
from sandyard.platform.api import encryption_keys as encryption_keys_api
from sandyard.platform.api import events as events_api
from sandyard.platform.api import files as files_api
from sandyard.platform.api import git as git_api
from sandyard.platform.api import git_queries as git_reading_api
from sandyard.platform.api import hosts as hosts_api
from sandyard.platform.api import mcp_servers as mcp_servers_api
from sandyard.platform.api import models as models_api
from sandyard.platform.api import preparations as preparations_api
from sandyard.platform.api import previews as previews_api
from sandyard.platform.api import pull_requests as pull_requests_api
from sandyard.platform.api import quotas as quotas_api
from sandyard.platform.api import remote as remote_api
from sandyard.platform.api import sandboxes as sandboxes_api
from sandyard.platform.api import schedules as schedules_api
from sandyard.platform.api import sessions as sessions_api
from sandyard.platform.api import tasks as tasks_api
from sandyard.platform.api import terminal as terminal_api
from sandyard.platform.api import turns as turns_api
from sandyard.platform.api import webhooks as webhooks_api
from sandyard.platform.api.app import build
from sandyard.platform.api.standby import EntryPoint
from sandyard.platform.db.database import parse_url
from sandyard.platform.db.ownership import LOOK_S
from sandyard.platform.domain.repositories.git_process import find_git_problem
from sandyard.platform.domain.services import Services
from sandyard.platform.settings import PlatformSettings
from sandyard.platform.wiring import open_services

log = get_logger(__name__)

ROUTERS = (
    sessions_api.router,
    sandboxes_api.router,
    commands_api.router,
    files_api.router,
    terminal_api.router,
    previews_api.router,
    remote_api.router,
    turns_api.router,
    agents_api.router,
    tasks_api.router,
    schedules_api.router,
    git_api.router,
    git_reading_api.router,
    pull_requests_api.router,
    preparations_api.router,
    quotas_api.router,
    disk_api.router,
    encryption_keys_api.router,
    hosts_api.router,
    credentials_api.router,
    models_api.router,
    mcp_servers_api.router,
    webhooks_api.router,
    events_api.router,
)
KEEP_ALIVE_SECONDS = 75
SWITCH_SECONDS = 0.0005
"""SQLite runs in its own threads; their results should not wait ten times as long as the work took."""
MESSAGE_LIMIT = 16 << 20
"""Maximum size of a WebSocket message of the API, in bytes."""
ACCEPTED_AT_ONCE = 16
"""How many new connections are accepted between two rounds of requests. libuv accepts one per round and listening socket."""
FAREWELL_SECONDS = 5
"""How long running requests may continue when the platform stops."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Reported when the platform is ready. `admin_token` is set only once per database."""

    url: str
    exposed: bool
    admin_token: Secret | None
    warnings: tuple[str, ...]


class PlatformProtocol(BoundedProtocol):
    def make_problem(self, status: int, message: str) -> tuple[bytes, dict[str, object]]:
        code = "unavailable" if status == 503 else "bad_request"
        return b"application/problem+json", {"status": status, "code": code, "detail": message}


class TakenOverError(SandyardError):
    """Another platform has taken over the database."""

    code, status = "taken_over", 503


def run(
    settings: PlatformSettings,
    ready: Callable[[Ready], None],
    standing_by: Callable[[str], None] = lambda reason: None,
) -> None:
    """Serve until SIGTERM or SIGINT.

    While another platform owns the database, waits and calls `standing_by` with the reason. Raises SandyardError if it
    cannot start, and TakenOverError if another platform has taken over.
    """
    configure(settings.log_level, as_json=settings.log_json)
    telemetry.configure("sandyard-platform", settings)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    for chatty in ("httpx", "httpcore", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    raise_file_limit()
    CONNECTIONS.configure(settings.max_connections, settings.max_connections_per_address)
    os.umask(0o077)  # files are private to the platform's user
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = take_inherited_socket() or listen(settings.host, settings.port)
    folder = OwnedFolder(settings.data_dir, "platform")
    try:
        if parse_url(settings.database).get_backend_name() == "sqlite":
            folder.lock()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, folder, listener, ready, standing_by))
    finally:
        listener.close()
        folder.unlock()
        telemetry.close()


async def _serve(
    settings: PlatformSettings,
    folder: OwnedFolder,
    listener: socket.socket,
    ready: Callable[[Ready], None],
    standing_by: Callable[[str], None],
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    stop = asyncio.create_task(stopping.wait())
    entrance = EntryPoint()
    server = make_server(entrance)
    serving: list[asyncio.Task[None]] = []

    def stand_by(reason: str) -> None:
        entrance.reason = reason
        if not serving:
            serving.append(asyncio.create_task(server.serve(_duplicate(listener))))
        standing_by(reason)

    lost = None
    async with contextlib.AsyncExitStack() as stack:
        opening = asyncio.create_task(_open_services(settings, folder, stack, stand_by))
        try:
            await asyncio.wait((opening, stop), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                lost = await _serve_until(opening.result(), entrance, server, serving, listener, ready, stop)
        finally:
            await end_tasks(opening, stop)
            server.should_exit = True
            await asyncio.gather(*serving)
    log.info("platform_stopped")
    if lost is not None:
        raise TakenOverError(lost)


async def _open_services(
    settings: PlatformSettings,
    folder: OwnedFolder,
    stack: contextlib.AsyncExitStack,
    standing_by: Callable[[str], None],
) -> Services:
    """Open all services, once this process owns the data directory and the database."""
    last_reason = ""
    while not folder.locked:
        try:
            await asyncio.to_thread(folder.lock)
        except ConflictError as error:
            if error.message != last_reason:
                last_reason = error.message
                log.warning("platform_standing_by", reason=last_reason)
                standing_by(last_reason)
            await asyncio.sleep(LOOK_S)
    return await stack.enter_async_context(open_services(settings, standing_by))


async def _serve_until(  # noqa: PLR0917 - created by `_serve`
    services: Services,
    entrance: EntryPoint,
    server: Server,
    serving: list[asyncio.Task[None]],
    listener: socket.socket,
    ready: Callable[[Ready], None],
    stop: asyncio.Task[Any],
) -> str | None:
    """Serve until `stop` or until another platform owns the database. Returns the reason in that case. Afterwards no
    request is waiting."""
    settings = services.settings
    host, port = listener.getsockname()[:2]
    admin = await services.users.bootstrap()
    if admin is None and settings.new_admin_token:
        admin = await services.users.create_rescue_token()
    app = entrance.app = build(services, ROUTERS)

    async def read_metrics() -> str:
        rendered: bytes = await app.state.metrics.render(services)
        return rendered.decode()

    sending = asyncio.create_task(telemetry.send_metrics_regularly(read_metrics, settings.otlp_metrics_interval_s))
    gc.collect()
    gc.freeze()  # existing objects are permanent, so that no collection has to examine them again
    if not serving:
        serving.append(asyncio.create_task(server.serve(_duplicate(listener))))
    warnings = tuple(_list_warnings(settings))
    for warning in warnings:
        log.warning("platform_setting_missing", reason=warning)
    ready(Ready(make_local_url(host, port), not is_loopback(host), admin.value if admin else None, warnings))
    log.info("platform_started", host=host, port=port, database=services.database.url.get_backend_name())
    lost = [services.ownership.lost] if services.ownership is not None else []
    await asyncio.wait((*serving, stop, *lost), return_when=asyncio.FIRST_COMPLETED)
    log.info("platform_stopping")
    server.should_exit = True
    sending.cancel()
    services.events.end()
    services.commands.stop()
    services.turns.stop()
    await asyncio.gather(*serving)
    return lost[0].result() if lost and lost[0].done() else None


def _duplicate(listener: socket.socket) -> list[socket.socket]:
    """Return the listener ACCEPTED_AT_ONCE times. Otherwise a client that keeps reconnecting would delay all new connections by seconds."""
    return [listener, *(listener.dup() for _ in range(ACCEPTED_AT_ONCE - 1))]


def _list_warnings(settings: PlatformSettings) -> Iterator[str]:
    if settings.e2b_api_key is None:
        yield (
            "No sandbox engine is configured. Set E2B_API_KEY for E2B Cloud; for your own engine, also set E2B_API_URL and "
            "E2B_SANDBOX_URL. `sandyard up` does this automatically."
        )
    if (reason := find_git_problem()) is not None:
        yield reason


def make_server(app: EntryPoint) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=PlatformProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws=BoundedWebSocket,
            ws_max_size=MESSAGE_LIMIT,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FAREWELL_SECONDS,
        )
    )
