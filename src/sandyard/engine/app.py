"""The composition root: settings become a running engine, and a running engine ends without hurting a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from sandyard.engine.contract import Capabilities, Driver
from sandyard.engine.drivers import load
from sandyard.engine.e2b.control import api
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.dataplane.gateway import Gateway
from sandyard.engine.e2b.dataplane.tunnel import Tunnel
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.engine.sandboxes.model import Template
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.store.keys import ApiKeys
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.kit.listen import is_loopback, listen, raise_file_limit
from sandyard.kit.logging import configure, get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.server import Server, local_url

log = get_logger(__name__)

KEEP_ALIVE_SECONDS = 620
"""Longer than any client keeps an idle connection (SDKs: 300 s), so that it is never the engine that closes one under
a request."""
SWITCH_SECONDS = 0.0005
"""How long a thread that tidies up may keep a request waiting for the interpreter. Python's own default is ten times
that, more than a whole create takes."""
FAREWELL_SECONDS = 5
"""How long requests under way may still take when the engine stops."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What there is to say when the engine serves. `new_key` is set once in the life of a data directory."""

    url: str
    exposed: bool
    new_key: Secret | None
    driver: str


def run(settings: EngineSettings, ready: Callable[[Ready], None], *, access_log: bool = False) -> None:
    """Serve until SIGTERM or SIGINT. Raises SandyardError when it cannot start."""
    configure(settings.log_level, as_json=settings.log_json)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    raise_file_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = listen(settings.host, settings.port)
    data = DataDir(settings.data_dir)
    try:
        data.lock()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, data, listener, ready, access_log))
    finally:
        listener.close()
        data.unlock()


async def _serve(
    settings: EngineSettings,
    data: DataDir,
    listener: socket.socket,
    ready: Callable[[Ready], None],
    access_log: bool,
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    host, port = listener.getsockname()[:2]
    async with _opened(settings, data, port) as engine:
        server = _server(engine.gateway, access_log)
        gc.collect()
        gc.freeze()  # what is there by now stays: no collection has to look at it again
        serving = asyncio.create_task(server.serve([listener]))
        ready(Ready(local_url(host, port), not is_loopback(host), engine.new_key, engine.driver.name))
        log.info("engine_started", host=host, port=port, driver=engine.driver.name, data=str(data.path))
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        log.info("engine_stopping")
        server.should_exit = True
        engine.gateway.close()
        await serving
        stop.cancel()
    log.info("engine_stopped")


@dataclass(frozen=True, slots=True)
class _Engine:
    driver: Driver
    gateway: Gateway
    new_key: Secret | None


@contextlib.asynccontextmanager
async def _opened(settings: EngineSettings, data: DataDir, port: int) -> AsyncIterator[_Engine]:
    """Everything behind the socket, opened in order and closed in the opposite one."""
    async with contextlib.AsyncExitStack() as stack:
        database = Database(data.database)
        database.open()
        stack.callback(database.close)
        keys = ApiKeys(database, settings.api_keys)
        new_key = None if settings.api_keys or keys.list() else keys.create("first")[1]
        catalogue = (
            None
            if settings.driver == "fake"
            else Catalogue(settings.templates_dir, carry_host_trust=settings.carry_host_trust)
        )
        if catalogue is not None:
            await asyncio.to_thread(catalogue.open)
        templates = catalogue or BareTemplates()
        driver = load(settings, data.path)
        sandboxes = Sandboxes(database, driver, templates, settings, disks=(data.path, data.store))
        await sandboxes.open()
        stack.push_async_callback(sandboxes.close)
        if catalogue is not None:
            await catalogue.start()
            stack.push_async_callback(catalogue.close)
        context = Context(sandboxes, templates, settings.default_limits, _domain(settings, port))
        gateway = Gateway(sandboxes, api.build(context, keys))
        stack.callback(gateway.close)
        yield _Engine(driver, gateway, new_key)


class BareTemplates:
    """For the fake driver, whose sandboxes use the host's own programs: one template, empty, under the usual names."""

    _only = Template("base", (), aliases=("base", "code-interpreter-v1"))

    def resolve(self, name: str) -> Template | None:
        return self._only if name.partition(":")[0] in self._only.aliases else None

    def list(self) -> Sequence[Template]:
        return [self._only]


async def open_briefly(folder: Path) -> Capabilities:
    """What the driver of this machine can do, found out by opening it on an empty directory. Raises SandyardError."""
    from sandyard.engine.drivers.namespace.driver import NamespaceDriver  # noqa: PLC0415 - only where it is used

    driver = load(EngineSettings(driver="namespace", data_dir=folder), folder)
    await driver.open((), ())
    able = await driver.all_capabilities() if isinstance(driver, NamespaceDriver) else driver.capabilities
    await driver.close()
    return able


def _server(gateway: Gateway, access_log: bool) -> Server:
    config = uvicorn.Config(
        gateway,
        http=EngineProtocol,
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FAREWELL_SECONDS,
    )
    config.ws = Tunnel.factory(gateway)  # type: ignore[assignment]  # uvicorn only calls it
    return Server(config)


def _domain(settings: EngineSettings, port: int) -> str | None:
    """Under which clients are told to look for previews: `{port}-{id}.localhost:…` leads here without a name server."""
    if settings.domain is not None:
        return settings.domain
    return f"localhost:{port}" if is_loopback(settings.host) or settings.host in ("0.0.0.0", "::") else None  # noqa: S104
