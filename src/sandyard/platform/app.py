"""The composition root: settings become a running platform, and a running platform ends without hurting a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import uvicorn
import uvloop
from fastapi import FastAPI

from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import SandyardError
from sandyard.kit.folder import OwnedFolder
from sandyard.kit.ids import random_id
from sandyard.kit.listen import is_loopback, listen, raise_file_limit
from sandyard.kit.logging import configure, get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.server import BoundedProtocol, Server, local_url
from sandyard.platform.api import commands as commands_api
from sandyard.platform.api import credentials as credentials_api
from sandyard.platform.api import events as events_api
from sandyard.platform.api import files as files_api
from sandyard.platform.api import git as git_api
from sandyard.platform.api import git_reading as git_reading_api
from sandyard.platform.api import pull_requests as pull_requests_api
from sandyard.platform.api import sandboxes as sandboxes_api
from sandyard.platform.api import sessions as sessions_api
from sandyard.platform.api import terminal as terminal_api
from sandyard.platform.api import webhooks as webhooks_api
from sandyard.platform.api.app import build
from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Setting
from sandyard.platform.domain.audit.service import Audit
from sandyard.platform.domain.events.feed import Feed
from sandyard.platform.domain.forge.access import Access
from sandyard.platform.domain.forge.follow import Follower
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.forge.webhooks import Webhooks
from sandyard.platform.domain.git.ground import Ground
from sandyard.platform.domain.git.host import Git, lacking
from sandyard.platform.domain.git.mirror import Mirrors
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.projects.credentials import Credentials
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.e2b import EngineConfig, SandboxEngine
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.output import OutputFiles
from sandyard.platform.domain.sandboxes.service import Sandboxes
from sandyard.platform.domain.sandboxes.terminals import Terminals
from sandyard.platform.domain.sandboxes.upkeep import Upkeep
from sandyard.platform.domain.secrets.service import Secrets
from sandyard.platform.domain.secrets.vault import Vault
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.sessions.service import Sessions
from sandyard.platform.domain.users.service import Users
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

ROUTERS = (
    sessions_api.router,
    sandboxes_api.router,
    commands_api.router,
    files_api.router,
    terminal_api.router,
    git_api.router,
    git_reading_api.router,
    pull_requests_api.router,
    credentials_api.router,
    webhooks_api.router,
    events_api.router,
)
KEEP_ALIVE_SECONDS = 75
TIDY_SECONDS = 600
SWITCH_SECONDS = 0.0005
"""SQLite works in threads of its own; what one of them has found should not wait for ten times as long as it took."""
FAREWELL_SECONDS = 5
"""How long requests under way may still take when the platform stops."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What there is to say when it serves. `admin_token` is set once in the life of a database."""

    url: str
    exposed: bool
    admin_token: Secret | None
    warnings: tuple[str, ...]


class PlatformProtocol(BoundedProtocol):
    def problem(self, status: int, message: str) -> tuple[bytes, dict[str, object]]:
        return b"application/problem+json", {"status": status, "code": "bad_request", "detail": message}


def run(settings: PlatformSettings, ready: Callable[[Ready], None]) -> None:
    """Serve until SIGTERM or SIGINT. Raises SandyardError when it cannot start."""
    configure(settings.log_level, as_json=settings.log_json)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    for chatty in ("httpx", "httpcore", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    raise_file_limit()
    os.umask(0o077)  # what it writes is nobody else's
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = listen(settings.host, settings.port)
    folder = OwnedFolder(settings.data_dir, "platform")
    try:
        folder.lock()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, listener, ready))
    finally:
        listener.close()
        folder.unlock()


async def _serve(settings: PlatformSettings, listener: socket.socket, ready: Callable[[Ready], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    host, port = listener.getsockname()[:2]
    async with opened(settings) as services:
        admin = await services.users.bootstrap()
        if admin is None and settings.new_admin_token:
            admin = await services.users.rescue()
        server = _server(build(services, ROUTERS))
        gc.collect()
        gc.freeze()  # what is there by now stays: no collection has to look at it again
        serving = asyncio.create_task(server.serve([listener]))
        warnings = tuple(_warnings(settings))
        for warning in warnings:
            log.warning("platform_setting_missing", reason=warning)
        ready(Ready(local_url(host, port), not is_loopback(host), admin.value if admin else None, warnings))
        log.info("platform_started", host=host, port=port, database=services.database.url.get_backend_name())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        log.info("platform_stopping")
        server.should_exit = True
        services.events.end()
        services.commands.stop()
        await serving
        stop.cancel()
    log.info("platform_stopped")


@contextlib.asynccontextmanager
async def opened(settings: PlatformSettings) -> AsyncIterator[Services]:
    """Everything behind the API, opened in order and closed in the opposite one. Commands and sandboxes go on without us."""
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        database = Database(settings.database)
        await database.open()
        stack.push_async_callback(database.close)
        await migrate.upgrade(database)
        instance = await _instance(database)

        engine = SandboxEngine(_engine_config(settings), clock)
        stack.push_async_callback(engine.close)
        vault = Vault(settings.data_dir / "secret.key")
        projects = Projects(database, clock)
        lifecycle = Lifecycle(
            database,
            engine,
            vault,
            Activity(clock),
            instance=instance,
            idle_margin_s=settings.idle_margin_s,
        )
        stack.push_async_callback(lifecycle.close)
        files = OutputFiles(settings.data_dir / "output")
        feed = Feed(database, backlog=settings.reader_backlog, clock=clock)
        commands = Commands(
            database,
            lifecycle,
            files,
            max_timeout_s=settings.max_command_timeout_s,
            output_kept=settings.output_kept,
        )
        credentials = Credentials(database, projects, vault, clock)
        mirrors = Mirrors(Git(settings.git_dir, timeout_s=settings.git_timeout_s), settings)
        access = Access(credentials, projects, mirrors, clock)
        stack.push_async_callback(access.close)
        git = GitService(Ground(database, lifecycle, mirrors, access.credential, settings), projects)
        stack.push_async_callback(git.close)
        pull_requests = PullRequests(database, git, access, mirrors, projects, settings, clock)
        webhooks = Webhooks(database, credentials, pull_requests, clock, on_push=git.refresh)
        stack.push_async_callback(webhooks.close)
        services = Services(
            settings=settings,
            clock=clock,
            database=database,
            events=feed,
            users=Users(settings, database, clock),
            audit=Audit(database, clock),
            secrets=Secrets(database, projects, vault, clock),
            projects=projects,
            engine=engine,
            lifecycle=lifecycle,
            upkeep=Upkeep(database, lifecycle, settings, clock),
            sandboxes=Sandboxes(database, lifecycle, projects, settings),
            commands=commands,
            sessions=Sessions(database, lifecycle, commands, projects=projects, git=git, settings=settings),
            terminals=Terminals(database, lifecycle),
            credentials=credentials,
            access=access,
            git=git,
            pull_requests=pull_requests,
            webhooks=webhooks,
        )
        stack.push_async_callback(services.users.close)
        stack.push_async_callback(services.audit.close)
        await feed.open()
        stack.push_async_callback(feed.close)
        await services.commands.recover()
        await git.recover()
        if engine.configured:
            services.upkeep.start()
        follower = Follower(database, pull_requests, access, settings, clock)
        follower.start()
        stack.push_async_callback(follower.close)
        lifecycle.tasks.spawn(_tidy(services))
        yield services


async def _tidy(services: Services) -> None:
    """Forget what is too old to be of use, now and then."""
    while True:
        try:
            await services.users.sweep()
            kept = timedelta(days=services.settings.events_kept_days)
            await services.events.trim(kept)
            await services.commands.trim(kept)
            await services.git.tidy(timedelta(days=services.settings.git_operations_kept_days))
        except SandyardError as error:
            log.warning("tidying_failed", reason=error.message)
        except Exception as error:
            log.error("tidying_crashed", exc=error)  # noqa: TRY400
        await services.clock.sleep(TIDY_SECONDS)


async def _instance(database: Database) -> str:
    """The name under which this installation's sandboxes are known to an engine that others may use too."""
    async with database.transaction() as tx:
        known = await tx.session.get(Setting, "instance")
        if known is None:
            known = Setting(name="instance", value=random_id("in-", 16))
            tx.add(known)
        return known.value


def _engine_config(settings: PlatformSettings) -> EngineConfig:
    return EngineConfig(
        api_key=settings.e2b_api_key,
        api_url=settings.e2b_api_url,
        sandbox_url=settings.e2b_sandbox_url,
        domain=settings.e2b_domain,
        create_timeout_s=settings.create_timeout_s,
    )


def _warnings(settings: PlatformSettings) -> Iterator[str]:
    if settings.e2b_api_key is None:
        yield (
            "No sandbox engine is configured: set E2B_API_KEY for E2B Cloud, and E2B_API_URL and E2B_SANDBOX_URL too for an "
            "engine of your own. `sandyard up` does that by itself."
        )
    if (reason := lacking()) is not None:
        yield reason


def _server(app: FastAPI) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=PlatformProtocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws="websockets-sansio",
            ws_max_size=1 << 20,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FAREWELL_SECONDS,
        )
    )
