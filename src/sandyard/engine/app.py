"""Composition root: build an engine from settings, serve, and shut down without affecting sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from sandyard.engine.builds.registry import BuiltTemplates, CombinedTemplates
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.builds.service import Builds
from sandyard.engine.certificates import server_certificates as tls
from sandyard.engine.certificates.authority import Authority
from sandyard.engine.contract import Driver, Layers, PublicNames
from sandyard.engine.disk.service import EngineDisk
from sandyard.engine.drivers import load_driver
from sandyard.engine.drivers.cluster.driver import ClusterDriver, ClusterOptions
from sandyard.engine.drivers.cluster.placement import Reserves
from sandyard.engine.drivers.machine.kernel import is_root
from sandyard.engine.e2b.control import api, metrics
from sandyard.engine.e2b.control.context import Context
from sandyard.engine.e2b.dataplane.asgi import App
from sandyard.engine.e2b.dataplane.gateway import Gateway
from sandyard.engine.e2b.dataplane.hairpin import HairpinGateway
from sandyard.engine.e2b.dataplane.tunnel import Tunnel
from sandyard.engine.e2b.join_app import build_join_app
from sandyard.engine.e2b.redirect import HTTP_PORT, Redirect
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.engine.e2b.standby import Standby
from sandyard.engine.hosts.administration import HostAdministration, LocalStatus
from sandyard.engine.hosts.authority import HostAuthority
from sandyard.engine.hosts.directory import Hosts, has_hosts
from sandyard.engine.hosts.enrollment import Enrollment
from sandyard.engine.hosts.loss import LossWatch
from sandyard.engine.hosts.origins import StoredOrigins
from sandyard.engine.hosts.sources import open_supply
from sandyard.engine.hosts.validation import validate_address
from sandyard.engine.images.service import Images
from sandyard.engine.images.service import Options as ImageOptions
from sandyard.engine.layers.copies import LayerFolderCopies
from sandyard.engine.layers.publisher import PackLimits
from sandyard.engine.layers.service import LayerService
from sandyard.engine.sandboxes.checkpoints import Checkpointer
from sandyard.engine.sandboxes.evacuation import EmptiedHost, Evacuation
from sandyard.engine.sandboxes.model import Template, Templates
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.secrets.outbound import SecretsOutbound
from sandyard.engine.secrets.service import Secrets
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.store.keys import ApiKeys
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.templates.folder import TemplateFolder
from sandyard.engine.templates.unused import register_engine
from sandyard.engine.volumes.service import Volumes
from sandyard.kit import telemetry
from sandyard.kit.clock import SystemClock
from sandyard.kit.connections import CONNECTIONS
from sandyard.kit.endpoints import format_endpoint, make_local_url
from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.listen import is_loopback, listen, raise_file_limit
from sandyard.kit.logging import configure, get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.server import BoundedProtocol, Server
from sandyard.kit.tasks import end_tasks
from sandyard.kit.tls_server import TlsServer

if TYPE_CHECKING:
    from sandyard.engine.store.postgres import PostgresDatabase

log = get_logger(__name__)

KEEP_ALIVE_SECONDS = 620
"""Longer than any client keeps an idle connection (SDKs: 300 s), so that the engine never closes a connection that a
request is about to use."""
SWITCH_SECONDS = 0.0005
"""How long a background thread may keep a request waiting for the interpreter lock. Python's default is ten times
longer, which is more than a whole create takes."""
_EPOCH = "cluster_epoch"
"""The number of starts of this engine with hosts, in its database: hosts refuse an older engine."""
LOCK_RETRY_S = 0.5
_AUTHORITY = "hosts_authority"
"""The fingerprint of the authority that hosts trust, in a database that engines on several machines use."""
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
    join_address: str | None = None  # ADDRESS:PORT at which machines join as hosts


def run(
    settings: EngineSettings,
    ready: Callable[[Ready], None],
    *,
    access_log: bool = False,
    on_standby: Callable[[str], None] = lambda reason: None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises SandyardError if the engine cannot start. `on_standby` is called with the reason when it
    waits for another engine to end."""
    configure(settings.log_level, as_json=settings.log_json)
    telemetry.configure("sandyard-engine", settings)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    for chatty in ("httpx", "httpcore"):  # their log lines contain signed URLs, which grant access
        logging.getLogger(chatty).setLevel(logging.WARNING)
    raise_file_limit()
    CONNECTIONS.configure(settings.max_connections, settings.max_connections_per_address)
    sys.setswitchinterval(SWITCH_SECONDS)
    data = DataDir(settings.data_dir)
    _check_records(settings, data)
    with contextlib.ExitStack() as stack:
        stack.callback(telemetry.close)
        listener = stack.enter_context(listen(settings.host, settings.port))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        database = Database(data.database)
        if settings.database_url is not None:
            stack.callback(data.unlock)
            database = standing_by = _make_postgres_database(settings.database_url, data)
            stack.callback(database.close)
            if not runner.run(_become_active(data, standing_by, listener, on_standby, access_log=access_log)):
                return
            database.machine = data.read_id()
        secure = None
        if settings.tls_port is not None:
            secure = stack.enter_context(listen(settings.tls_host or settings.host, settings.tls_port, "tls-"))
        if (redirect := _listen_for_redirect(settings)) is not None:
            stack.enter_context(redirect)
        if (join := _listen_for_hosts(settings)) is not None:
            stack.enter_context(join)
        if not data.locked:
            stack.callback(data.unlock)
            data.lock()
        listeners = _Listeners(listener, secure, redirect, join)
        runner.run(_serve(settings, data, database, listeners, ready, access_log=access_log))


def _check_records(settings: EngineSettings, data: DataDir) -> None:
    """Raise ConflictError if the records of this data directory are in the other kind of database: an engine without them would remove
    all sandboxes."""
    if settings.database_url is not None and data.database.exists():
        raise ConflictError(
            f"The records of {data.path} are in SQLite, and are not copied to PostgreSQL. Choose a new --data-dir, or start without "
            "SANDYARD_ENGINE_DATABASE_URL."
        )
    if settings.database_url is None and data.id_file.exists():
        raise ConflictError(
            f"The records of {data.path} are in PostgreSQL. Set SANDYARD_ENGINE_DATABASE_URL, or choose a new --data-dir."
        )


def _make_postgres_database(url: str, data: DataDir) -> PostgresDatabase:
    from sandyard.engine.store.postgres import PostgresDatabase  # noqa: PLC0415 - slow to load, and rarely used
    from sandyard.kit.postgres import identify  # noqa: PLC0415

    return PostgresDatabase(url, identify(data.prepare()))


async def _become_active(
    data: DataDir,
    database: PostgresDatabase,
    listener: socket.socket,
    on_standby: Callable[[str], None],
    *,
    access_log: bool,
) -> bool:
    """Stand by until this engine has locked its data directory and its database. Return False if it was stopped before that."""
    standby = Standby()
    server = _make_plain_server(standby, access_log)
    serving: list[asyncio.Task[None]] = []

    def wait(reason: str) -> None:
        if reason != standby.reason:
            standby.reason = reason
            on_standby(reason)
        if not serving:
            serving.append(asyncio.create_task(server.serve([listener.dup()])))

    async def acquire() -> None:
        while not data.locked:
            try:
                await asyncio.to_thread(data.lock)
            except ConflictError as error:
                wait(error.message)
                await asyncio.sleep(LOCK_RETRY_S)
        await database.acquire(wait)

    stopping = _listen_for_signals()
    acquiring, stop = asyncio.create_task(acquire()), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((acquiring, stop), return_when=asyncio.FIRST_COMPLETED)
        if acquiring.done():
            acquiring.result()
        return not stopping.is_set()
    finally:
        await end_tasks(acquiring, stop)
        server.should_exit = True
        await asyncio.gather(*serving)


def _listen_for_signals() -> asyncio.Event:
    """Return an event that is set by the signals that stop the engine."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


@dataclass(frozen=True, slots=True)
class _Listeners:
    """The engine's sockets: plain HTTP and, if TLS is enabled, HTTPS and the redirect to it; and, if machines can join as
    hosts, the port for that."""

    plain: socket.socket
    secure: socket.socket | None
    redirect: socket.socket | None
    join: socket.socket | None


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


def _listen_for_hosts(settings: EngineSettings) -> socket.socket | None:
    """Open the port at which machines join as hosts, if any can."""
    if settings.join_address is None:
        return None
    address = validate_address(settings.join_address)
    return listen(settings.join_host or address, settings.join_port, "join-")


async def _serve(
    settings: EngineSettings,
    data: DataDir,
    database: Database,
    listeners: _Listeners,
    ready: Callable[[Ready], None],
    *,
    access_log: bool,
) -> None:
    stopping = _listen_for_signals()
    secure = listeners.secure
    host, port = listeners.plain.getsockname()[:2]
    secure_port = secure.getsockname()[1] if secure is not None else None
    public_certificate = tls.load_public_certificate(settings, data.tls) if secure is not None else None
    domain = tls.resolve_public_domain(settings, port, secure_port)
    sandbox_certificate = tls.load_sandbox_certificate(settings, data.tls, public_certificate)
    public_names = _make_public_names(domain) if sandbox_certificate is not None else None
    join_address = None
    if listeners.join is not None and settings.join_address is not None:
        join_address = format_endpoint(validate_address(settings.join_address), listeners.join.getsockname()[1])
    async with _open_components(
        settings,
        data,
        database,
        domain=domain,
        public_names=public_names,
        sandbox_certificate=sandbox_certificate,
        join_address=join_address,
    ) as engine:
        for certificate in (public_certificate, sandbox_certificate):
            if certificate is not None and certificate.own is not None:
                certificate.own.is_sandbox_name = engine.gateway.is_sandbox_name
        servers = [(_make_server(engine.gateway, access_log), listeners.plain)]
        if listeners.join is not None and engine.enrollment is not None:
            servers.append((_make_join_server(engine, access_log), listeners.join))
        redirect_port = None
        if secure is not None and public_certificate is not None:
            servers.append((_make_server(engine.gateway, access_log, public_certificate.context), secure))
            if listeners.redirect is not None and domain is not None:
                servers.append((_make_plain_server(Redirect(domain), access_log), listeners.redirect))
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
                make_local_url(host, port),
                not is_loopback(host),
                engine.new_key,
                engine.driver.name,
                domain if public_certificate else None,
                public_certificate.authority if public_certificate else None,
                redirect_port,
                join_address,
            )
        )
        log.info(
            "engine_started", host=host, port=port, tls_port=secure_port, driver=engine.driver.name, data=str(data.path)
        )
        stop = asyncio.create_task(stopping.wait())
        failure = asyncio.create_task(engine.driver.wait_for_failure())
        lost = asyncio.create_task(database.wait_until_lost())
        await asyncio.wait((*serving, stop, failure, lost), return_when=asyncio.FIRST_COMPLETED)
        broken = [task.result() for task in (failure, lost) if task.done()]
        if broken:
            log.error("engine_broken", reason=broken[0])
        log.info("engine_stopping")
        for server, _ in servers:
            server.should_exit = True
        engine.gateway.close()
        await asyncio.gather(*serving)
        await end_tasks(stop, failure, lost)
    log.info("engine_stopped")
    if broken:
        raise SandyardError(f"{broken[0]} Restart the engine to recover.")


@dataclass(frozen=True, slots=True)
class _Engine:
    driver: Driver
    gateway: Gateway
    new_key: Secret | None
    hosts: HostAdministration
    enrollment: Enrollment | None


def _make_public_names(domain: str | None) -> PublicNames | None:
    if domain is None:
        return None
    name, _, port = domain.partition(":")
    return PublicNames(name, int(port) if port else tls.HTTPS_PORT)


@contextlib.asynccontextmanager
async def _open_components(
    settings: EngineSettings,
    data: DataDir,
    database: Database,
    *,
    domain: str | None,
    public_names: PublicNames | None,
    sandbox_certificate: tls.ServerCertificate | None,
    join_address: str | None,
) -> AsyncIterator[_Engine]:
    """Open all components behind the sockets in order, and close them in reverse order."""
    authority_pem = _read_authority(sandbox_certificate)
    async with contextlib.AsyncExitStack() as stack:
        database.open()
        stack.callback(database.close)
        keys, new_key = _open_keys(settings, database)
        catalogue = await _open_catalogue(settings, data, authority_pem)
        templates = catalogue or BareTemplates()
        secrets = _open_secrets(stack, database, data)
        egress_authority = await asyncio.to_thread(Authority.load, data.egress)
        outbound = SecretsOutbound(secrets, egress_authority)
        local = load_driver(settings, data.path, outbound, public_names)
        places = await _open_places(settings, data, database, join_address, local=local, outbound=outbound)
        driver = places.driver
        images = await _prepare_images(settings, data, authority_pem)
        layers = await _prepare_layers(settings, data, database)
        repository, built = _load_built_templates(database)
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
        if places.cluster is not None:
            _connect_cluster(places.cluster, sandboxes, templates, settings)
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
        if places.origins is not None:
            places.origins.remove_unused_layers(uses_layer)
        if layers is not None:
            _start_layers(layers, sandboxes, uses_layer, places)
            stack.push_async_callback(layers.close)
        if catalogue is not None:
            await catalogue.start()
            stack.push_async_callback(catalogue.close)
        administration = await _open_administration(stack, database, data, places, sandboxes, settings=settings)
        if catalogue is not None:
            await asyncio.to_thread(register_engine, TemplateFolder(settings.templates_dir), data.path)
        disk = EngineDisk(
            settings,
            data,
            sandboxes=sandboxes,
            images=images,
            builds=builds,
            layers=layers,
            uses_layer=uses_layer,
        )
        context = Context(
            sandboxes,
            templates,
            settings.default_limits,
            domain,
            secrets,
            builds,
            volumes,
            administration,
            disk,
            layers,
        )
        gateway = _make_gateway(settings, context, keys, catalogue, database)
        stack.callback(gateway.close)
        sending = telemetry.send_metrics_regularly(
            functools.partial(metrics.read, context), settings.otlp_metrics_interval_s
        )
        stack.callback(asyncio.create_task(sending).cancel)
        yield _Engine(driver, gateway, new_key, administration, places.enrollment)


def _read_authority(certificate: tls.ServerCertificate | None) -> bytes | None:
    """Return the authority that sandboxes have to trust, if it is the engine's own."""
    return None if certificate is None or certificate.authority is None else certificate.authority.read_bytes()


def _open_keys(settings: EngineSettings, database: Database) -> tuple[ApiKeys, Secret | None]:
    """Return the API keys, and the first one if it was just created."""
    keys = ApiKeys(database, settings.api_keys)
    return keys, None if settings.api_keys or keys.list() else keys.create("first")[1]


def _open_secrets(stack: contextlib.AsyncExitStack, database: Database, data: DataDir) -> Secrets:
    """Return the stored secrets, and begin to remove keys that were rotated."""
    secrets = Secrets(database, data.secrets_key)
    stack.callback(asyncio.create_task(secrets.tidy_keys_regularly()).cancel)
    return secrets


async def _open_catalogue(settings: EngineSettings, data: DataDir, authority_pem: bytes | None) -> Catalogue | None:
    """Return the machine's templates, or None with the fake driver."""
    if settings.driver == "fake":
        return None
    catalogue = Catalogue(
        settings.templates_dir,
        carry_host_trust=settings.carry_host_trust,
        build_desktop=settings.build_desktop,
        build_docker=settings.build_docker,
        authority=authority_pem,
        trust_directory=data.trust,
    )
    await asyncio.to_thread(catalogue.open)
    return catalogue


def _load_built_templates(database: Database) -> tuple[BuildRepository, BuiltTemplates]:
    repository = BuildRepository(database)
    built = BuiltTemplates(repository, SystemClock())
    built.load()
    return repository, built


async def _open_hosts(database: Database, data: DataDir, join_address: str | None) -> tuple[Hosts, Enrollment | None]:
    """Return the registered hosts, and what lets machines join. An engine without hosts has no authority for them."""
    if join_address is None and not has_hosts(database):
        return Hosts(database, None), None
    authority = await asyncio.to_thread(HostAuthority.load, data.hosts_authority)
    if database.machine is not None:
        _check_authority(database, data, authority)
    hosts = Hosts(database, authority)
    return hosts, Enrollment(database, hosts, authority, join_address) if join_address is not None else None


def _check_authority(database: Database, data: DataDir, authority: HostAuthority) -> None:
    """Raise ConflictError if the hosts were registered with another authority: they would refuse this engine."""
    known = database.get_meta(_AUTHORITY)
    if known not in (None, authority.fingerprint):
        raise ConflictError(
            f"The hosts of this engine do not trust the authority in {data.hosts_authority}. Copy the folder `ca` and the file "
            "`secrets.key` from the data directory of the engine that they joined, and start again."
        )
    database.set_meta(_AUTHORITY, authority.fingerprint)


@dataclass(frozen=True, slots=True)
class _Places:
    """The driver of sandboxes: on this machine, and if `cluster` is set, also on registered hosts."""

    driver: Driver
    cluster: ClusterDriver | None
    hosts: Hosts
    enrollment: Enrollment | None
    origins: StoredOrigins | None = None


async def _open_places(
    settings: EngineSettings,
    data: DataDir,
    database: Database,
    join_address: str | None,
    *,
    local: Driver,
    outbound: SecretsOutbound,
) -> _Places:
    """Engines that have never had hosts use the driver of this machine alone, unless others share their database."""
    hosts, enrollment = await _open_hosts(database, data, join_address)
    if enrollment is None and database.get_meta(_EPOCH) is None and database.machine is None:
        return _Places(local, None, hosts, None)
    options = _start_epoch(settings, database)
    copies, origins = _make_copies(settings, local), StoredOrigins(database)
    cluster = ClusterDriver(local, copies, hosts, options, origins=origins, egress=outbound)
    return _Places(cluster, cluster, hosts, enrollment, origins)


def _connect_cluster(
    cluster: ClusterDriver, sandboxes: Sandboxes, templates: Templates, settings: EngineSettings
) -> None:
    """Tell the cluster what it needs to know about sandboxes."""

    def list_common_layers() -> list[Layers]:
        template = templates.resolve(settings.default_template)
        return [template.layers] if template is not None else []

    cluster.find_policy = sandboxes.components.registry.find_policy
    cluster.list_common_layers = list_common_layers


async def _open_administration(
    stack: contextlib.AsyncExitStack,
    database: Database,
    data: DataDir,
    places: _Places,
    sandboxes: Sandboxes,
    *,
    settings: EngineSettings,
) -> HostAdministration:
    """Return the operations on hosts. Begin to empty those that are to be emptied, and to take checkpoints."""
    hosts, cluster, components = places.hosts, places.cluster, sandboxes.components
    supply = None
    if places.enrollment is not None:
        supply = await open_supply(stack, settings, hosts, places.enrollment, database)
    if cluster is None:
        local = LocalStatus(places.driver, components.registry.__len__)
        return HostAdministration(database, hosts, local, places.enrollment, supply=supply)
    evacuation = Evacuation(
        mover=components.mover,
        checkpoints=components.checkpoints,
        registry=components.registry,
        pool=components.pool,
        clock=components.ledger.clock,
        places=cluster,
        on_return=lambda host_id: hosts.update(host_id, lost=False),
    )
    stack.push_async_callback(evacuation.close)

    def update_hosts() -> None:
        emptied = hosts.list_emptied()
        evacuation.set_hosts({host.record.id: EmptiedHost(host.record.name, host.lost) for host in emptied})

    update_hosts()
    hosts.on_change(update_hosts)
    if settings.recover_after_s > 0:
        watch = LossWatch(
            cluster.list_statuses,
            lambda host_id: hosts.update(host_id, lost=True),
            components.ledger.clock,
            settings.recover_after_s,
        )
        watching = asyncio.create_task(watch.run())
        stack.push_async_callback(end_tasks, watching)
    checkpointer = Checkpointer(
        checkpoints=components.checkpoints,
        registry=components.registry,
        lifecycle=components.lifecycle,
        creation=components.creation,
        snapshots=components.snapshots,
        calls=components.calls,
        clock=components.ledger.clock,
        places=cluster,
        interval_s=settings.checkpoint_interval_s,
        get_free_disk=lambda: shutil.disk_usage(data.path).free,
        min_free_disk=2 * settings.disk_reserve_mb << 20,
    )
    if settings.checkpoint_interval_s > 0:
        checkpointer.start()
    stack.push_async_callback(checkpointer.close)
    return HostAdministration(database, hosts, cluster.list_statuses, places.enrollment, evacuation, supply=supply)


def _start_layers(
    layers: LayerService, sandboxes: Sandboxes, uses_layer: Callable[[str], bool], places: _Places
) -> None:
    """Start publishing snapshots, also those that are on other hosts."""
    if places.cluster is not None:
        layers.fetch_layers = places.cluster.fetch_layers
    layers.open(sandboxes.components.snapshots, uses_layer, places.driver.find_layers, sandboxes.is_template)
    sandboxes.pull_snapshot = layers.pull_missing


def _make_copies(settings: EngineSettings, local: Driver) -> LayerFolderCopies:
    """Return the copies of other hosts' layers on this machine."""
    limits = PackLimits(settings.layer_max_mb << 20, settings.layer_max_files, settings.disk_reserve_mb << 20)
    return LayerFolderCopies(settings.data_dir, limits, local.find_layers, rootless=not is_root())


def _start_epoch(settings: EngineSettings, database: Database) -> ClusterOptions:
    """Return the options of a cluster whose hosts refuse all earlier engines with this database."""
    epoch = int(database.get_meta(_EPOCH) or 0) + 1
    database.set_meta(_EPOCH, str(epoch))
    return ClusterOptions(
        epoch,
        Reserves(settings.memory_reserve_mb, settings.disk_reserve_mb),
        use_local=settings.local_sandboxes,
        stats_interval_s=settings.metrics_interval_s,
    )


async def _prepare_images(settings: EngineSettings, data: DataDir, authority_pem: bytes | None) -> Images:
    images = Images(data.images, ImageOptions.from_settings(settings, authority_pem))
    await asyncio.to_thread(images.prepare)
    return images


async def _prepare_layers(settings: EngineSettings, data: DataDir, database: Database) -> LayerService | None:
    if settings.layer_store is None:
        return None
    layers = LayerService(settings, data, database, rootless=not is_root())
    await asyncio.to_thread(layers.prepare)
    return layers


def _make_gateway(
    settings: EngineSettings, context: Context, keys: ApiKeys, catalogue: Catalogue | None, database: Database
) -> Gateway:
    add_language = catalogue.add_language if catalogue is not None and settings.add_languages else None
    return Gateway(
        context.sandboxes,
        api.build_app(context, keys, database.find_problem),
        *((add_language,) if add_language else ()),
        is_api_key=lambda text: keys.check(text) is not None,
    )


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
    return Server(config) if context is None else TlsServer(config, context)


def _make_plain_server(app: App, access_log: bool) -> Server:
    config = _make_config(app, BoundedProtocol, access_log)
    config.ws = "none"
    config.load()
    return Server(config)


def _make_join_server(engine: _Engine, access_log: bool) -> Server:
    assert engine.enrollment is not None
    config = _make_config(build_join_app(engine.enrollment, engine.hosts), BoundedProtocol, access_log)
    config.ws = "none"
    config.load()
    return TlsServer(config, engine.enrollment.get_context())


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
