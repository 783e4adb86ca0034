"""Composition root: build an engine from settings, serve, and shut down without affecting sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop

from sandyard.engine.builds.registry import BuiltTemplates, CombinedTemplates
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.builds.service import Builds
from sandyard.engine.certificates import server_certificates as tls
from sandyard.engine.certificates.authority import Authority
from sandyard.engine.contract import Driver, PublicNames
from sandyard.engine.drivers import load_driver
from sandyard.engine.drivers.machine.kernel import is_root
from sandyard.engine.e2b.control import api
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.dataplane.asgi import App
from sandyard.engine.e2b.dataplane.gateway import Gateway
from sandyard.engine.e2b.dataplane.hairpin import HairpinGateway
from sandyard.engine.e2b.dataplane.tunnel import Tunnel
from sandyard.engine.e2b.redirect import HTTP_PORT, Redirect
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.engine.images.service import Images
from sandyard.engine.images.service import Options as ImageOptions
from sandyard.engine.layers.service import LayerService
from sandyard.engine.sandboxes.model import Template
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.secrets.outbound import SecretsOutbound
from sandyard.engine.secrets.service import Secrets
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.store.keys import ApiKeys
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.volumes.service import Volumes
from sandyard.kit.clock import SystemClock
from sandyard.kit.connections import CONNECTIONS
from sandyard.kit.errors import SandyardError
from sandyard.kit.listen import is_loopback, listen, raise_file_limit
from sandyard.kit.logging import configure, get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.server import BoundedProtocol, Server, local_url

log = get_logger(__name__)

KEEP_ALIVE_SECONDS = 620
"""Longer than any client keeps an idle connection (SDKs: 300 s), so that the engine never closes a connection that a
request is about to use."""
SWITCH_SECONDS = 0.0005
"""How long a background thread may keep a request waiting for the interpreter lock. Python's default is ten times
longer, which is more than a whole create takes."""
SHUTDOWN_SECONDS = 5
"""How long requests in progress may still take when the engine stops."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Information about a started engine. `new_key` is set only once in the lifetime of a data directory."""

    url: str
    exposed: bool
    new_key: Secret | None
    driver: str
    secure_domain: str | None = None  # the value for E2B_DOMAIN, if TLS is enabled
    authority: Path | None = None  # the certificate clients have to trust, if it is the engine's own authority
    redirect_port: int | None = None  # the port that redirects plain HTTP to HTTPS


def run(settings: EngineSettings, ready: Callable[[Ready], None], *, access_log: bool = False) -> None:
    """Serve until SIGTERM or SIGINT. Raises SandyardError if the engine cannot start."""
    configure(settings.log_level, as_json=settings.log_json)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    for chatty in ("httpx", "httpcore"):  # their log lines contain signed URLs, which grant access
        logging.getLogger(chatty).setLevel(logging.WARNING)
    raise_file_limit()
    CONNECTIONS.configure(settings.max_connections, settings.max_connections_per_address)
    sys.setswitchinterval(SWITCH_SECONDS)
    data = DataDir(settings.data_dir)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(settings.host, settings.port))
        secure = None
        if settings.tls_port is not None:
            secure = stack.enter_context(listen(settings.tls_host or settings.host, settings.tls_port, "tls-"))
        if (redirect := _listen_for_redirect(settings)) is not None:
            stack.enter_context(redirect)
        stack.callback(data.unlock)
        data.lock()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            listeners = _Listeners(listener, secure, redirect)
            runner.run(_serve(settings, data, listeners, ready, access_log=access_log))


@dataclass(frozen=True, slots=True)
class _Listeners:
    """The engine's sockets: plain HTTP and, if TLS is enabled, HTTPS and the redirect to it."""

    plain: socket.socket
    secure: socket.socket | None
    redirect: socket.socket | None


def _listen_for_redirect(settings: EngineSettings) -> socket.socket | None:
    """Open the port whose requests are redirected to HTTPS. The default port 80 is optional, because another server may
    use it."""
    port = settings.redirect_port
    if settings.tls_port is None or port == 0 or (port is None and settings.tls_port != tls.HTTPS_PORT):
        return None
    try:
        return listen(settings.tls_host or settings.host, HTTP_PORT if port is None else port, "redirect-")
    except SandyardError as error:
        if port is not None:
            raise
        log.warning("redirect_unavailable", port=HTTP_PORT, reason=error.message)
        return None


async def _serve(
    settings: EngineSettings,
    data: DataDir,
    listeners: _Listeners,
    ready: Callable[[Ready], None],
    *,
    access_log: bool,
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    secure = listeners.secure
    host, port = listeners.plain.getsockname()[:2]
    secure_port = secure.getsockname()[1] if secure is not None else None
    public_certificate = tls.load_public_certificate(settings, data.tls) if secure is not None else None
    domain = tls.resolve_public_domain(settings, port, secure_port)
    sandbox_certificate = tls.load_sandbox_certificate(settings, data.tls, public_certificate)
    public_names = _make_public_names(domain) if sandbox_certificate is not None else None
    async with _open_components(settings, data, domain, public_names, sandbox_certificate) as engine:
        servers = [(_make_server(engine.gateway, access_log), listeners.plain)]
        redirect_port = None
        if secure is not None and public_certificate is not None:
            servers.append((_make_server(engine.gateway, access_log, public_certificate.context), secure))
            if listeners.redirect is not None and domain is not None:
                servers.append((_make_redirect_server(domain, access_log), listeners.redirect))
                redirect_port = listeners.redirect.getsockname()[1]
        hairpin = engine.driver.hairpin
        if hairpin is not None and public_names is not None and sandbox_certificate is not None:
            hairpin_gateway = HairpinGateway(engine.gateway, hairpin, public_names)
            servers.append((_make_server(hairpin_gateway, access_log, sandbox_certificate.context), hairpin.listener))
        gc.collect()
        gc.freeze()  # everything allocated so far is permanent, so collections can skip it
        serving = [asyncio.create_task(server.serve([listener])) for server, listener in servers]
        ready(
            Ready(
                local_url(host, port),
                not is_loopback(host),
                engine.new_key,
                engine.driver.name,
                domain if public_certificate else None,
                public_certificate.authority if public_certificate else None,
                redirect_port,
            )
        )
        log.info(
            "engine_started", host=host, port=port, tls_port=secure_port, driver=engine.driver.name, data=str(data.path)
        )
        stop = asyncio.create_task(stopping.wait())
        failure = asyncio.create_task(engine.driver.wait_for_failure())
        await asyncio.wait((*serving, stop, failure), return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            log.error("engine_broken", reason=failure.result())
        log.info("engine_stopping")
        for server, _ in servers:
            server.should_exit = True
        engine.gateway.close()
        await asyncio.gather(*serving)
        stop.cancel()
        failure.cancel()
    log.info("engine_stopped")
    if failure.done() and not failure.cancelled():
        raise SandyardError(f"{failure.result()} Restart the engine to recover.")


@dataclass(frozen=True, slots=True)
class _Engine:
    driver: Driver
    gateway: Gateway
    new_key: Secret | None


def _make_public_names(domain: str | None) -> PublicNames | None:
    if domain is None:
        return None
    name, _, port = domain.partition(":")
    return PublicNames(name, int(port) if port else tls.HTTPS_PORT)


@contextlib.asynccontextmanager
async def _open_components(
    settings: EngineSettings,
    data: DataDir,
    domain: str | None,
    public_names: PublicNames | None,
    sandbox_certificate: tls.ServerCertificate | None,
) -> AsyncIterator[_Engine]:
    """Open all components behind the sockets in order, and close them in reverse order."""
    authority_file = sandbox_certificate.authority if sandbox_certificate is not None else None
    authority_pem = authority_file.read_bytes() if authority_file is not None else None
    async with contextlib.AsyncExitStack() as stack:
        database = Database(data.database)
        database.open()
        stack.callback(database.close)
        keys = ApiKeys(database, settings.api_keys)
        new_key = None if settings.api_keys or keys.list() else keys.create("first")[1]
        catalogue = (
            None
            if settings.driver == "fake"
            else Catalogue(
                settings.templates_dir,
                carry_host_trust=settings.carry_host_trust,
                build_desktop=settings.build_desktop,
                build_docker=settings.build_docker,
                authority=authority_pem,
                trust_directory=data.trust,
            )
        )
        if catalogue is not None:
            await asyncio.to_thread(catalogue.open)
        templates = catalogue or BareTemplates()
        secrets = Secrets(database, data.secrets_key)
        egress_authority = await asyncio.to_thread(Authority.load, data.egress)
        driver = load_driver(settings, data.path, SecretsOutbound(secrets, egress_authority), public_names)
        images = Images(data.images, ImageOptions.from_settings(settings, authority_pem))
        await asyncio.to_thread(images.prepare)
        layers = (
            LayerService(settings, data, database, rootless=not is_root()) if settings.layer_store is not None else None
        )
        if layers is not None:
            await asyncio.to_thread(layers.prepare)
        repository = BuildRepository(database)
        built = BuiltTemplates(repository, SystemClock())
        built.load()
        sandboxes = Sandboxes(
            database,
            driver,
            CombinedTemplates(templates, built),
            settings,
            egress_authority=egress_authority.pem,
            explain_missing=built.explain_missing,
            make_ready=templates.make_ready,
        )
        builds = Builds(
            repository=repository,
            built=built,
            sandboxes=sandboxes,
            machine=templates,
            images=images,
            settings=settings,
            folder=data.uploads,
        )
        await sandboxes.open()
        stack.push_async_callback(sandboxes.close)
        volumes = Volumes(database, driver, settings, sandboxes)
        await volumes.open()
        stack.push_async_callback(volumes.close)

        def uses_layer(layer: str) -> bool:
            return sandboxes.uses_layer(layer) or builds.uses_layer(layer)

        images.start(uses_layer)
        stack.push_async_callback(images.close)
        await builds.open()
        stack.push_async_callback(builds.close)
        if layers is not None:
            layers.open(sandboxes.components.snapshots, uses_layer, driver.find_layers)
            stack.push_async_callback(layers.close)
            sandboxes.pull_snapshot = layers.pull_missing
        if catalogue is not None:
            await catalogue.start()
            stack.push_async_callback(catalogue.close)
        context = Context(sandboxes, templates, settings.default_limits, domain, secrets, builds, volumes, layers)
        add_language = catalogue.add_language if catalogue is not None and settings.add_languages else None
        gateway = Gateway(
            sandboxes,
            api.build_app(context, keys),
            *((add_language,) if add_language else ()),
            is_api_key=lambda text: keys.check(text) is not None,
        )
        stack.callback(gateway.close)
        yield _Engine(driver, gateway, new_key)


class BareTemplates:
    """The templates of the fake driver, whose sandboxes use the host's own programs: one empty template under the usual
    names."""

    _only = Template("base", (), aliases=("base", "code-interpreter-v1"))

    def resolve(self, name: str) -> Template | None:
        return self._only if name.partition(":")[0] in self._only.aliases else None

    def list(self) -> Sequence[Template]:
        return [self._only]

    def make_ready(self, template: Template) -> str:
        return "is not ready."


def _make_server(gateway: Gateway | HairpinGateway, access_log: bool, context: ssl.SSLContext | None = None) -> Server:
    config = _make_config(gateway, EngineProtocol, access_log)
    config.ws = Tunnel.factory(gateway)  # type: ignore[assignment]  # uvicorn only calls it
    config.load()
    config.ssl = context  # uvicorn's own context cannot change its certificate
    return Server(config)


def _make_redirect_server(domain: str, access_log: bool) -> Server:
    config = _make_config(Redirect(domain), BoundedProtocol, access_log)
    config.ws = "none"
    config.load()
    return Server(config)


def _make_config(app: App, protocol: type[BoundedProtocol], access_log: bool) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
