"""The process of a host service: start, accept connections of the engine, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvloop

from sandyard import __version__
from sandyard.engine.contract import Driver
from sandyard.engine.drivers import load_driver
from sandyard.engine.drivers.cluster.connections import (
    FIRST_LINE_S,
    LineProtocol,
    check_protocol,
    describe_protocol,
    enable_keepalive,
    make_failure,
    make_result,
    parse_line,
)
from sandyard.engine.drivers.cluster.peer import Peer
from sandyard.engine.drivers.machine.kernel import is_root
from sandyard.engine.hosting.outbound import RemoteOutbound
from sandyard.engine.hosting.service import OWNER, HostService
from sandyard.engine.hosting.settings import HostSettings, make_driver_settings
from sandyard.engine.hosting.streams import serve_stream
from sandyard.engine.layers.copies import LayerFolderCopies
from sandyard.engine.layers.publisher import PackLimits
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.connections import Connections
from sandyard.kit.errors import SandyardError, UnreachableError
from sandyard.kit.listen import listen, raise_file_limit
from sandyard.kit.logging import configure, get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.tls_server import TlsAcceptor

log = get_logger(__name__)

MAX_CONNECTIONS = 16_384
MAX_HANDSHAKES = 512
"""Maximum number of concurrent TLS handshakes, whose clients are not authenticated yet. One address gets at most a quarter."""
_MIN_CLEANUP_AT = 64  # closed connections are forgotten when there are this many or more
Ready = Callable[[int], None]


def run(settings: HostSettings, ready: Ready = lambda port: None) -> None:
    """Serve until SIGTERM or SIGINT. Sandboxes keep running. `ready` is called with the port. Raises SandyardError if the
    service cannot start, or if the driver fails, from which only a new process can recover."""
    configure(settings.machine.log_level, as_json=settings.machine.log_json)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    raise_file_limit()
    with (
        lock_data_dir(settings.data_dir),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve_until_signal(settings, ready))


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Keep other processes from using the data directory of a host. Raises ConflictError if one does."""
    data = DataDir(data_dir)
    data.lock()
    try:
        yield
    finally:
        data.unlock()


def was_used(data_dir: Path) -> bool:
    """Return whether an engine has used this data directory of a host, so that there may be sandboxes."""
    return (data_dir / OWNER).exists()


def remove_all_sandboxes(machine: EngineSettings) -> None:
    """Remove all sandboxes and snapshots of a host that has left its engine, and the record of that engine, so that another
    engine can use the host. The caller holds the lock on the data directory. Raises what the driver raises."""
    if not was_used(machine.data_dir):
        return

    async def remove() -> None:
        driver = load_driver(make_driver_settings(machine), machine.data_dir)
        try:
            await driver.open([], [])
        finally:
            await driver.close()

    configure(machine.log_level, as_json=machine.log_json)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(remove())
    (machine.data_dir / OWNER).unlink()


async def _serve_until_signal(settings: HostSettings, ready: Ready) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await serve(settings, stopping, ready)


async def serve(settings: HostSettings, stopping: asyncio.Event, ready: Ready = lambda port: None) -> None:
    """Serve until `stopping` is set. Sandboxes keep running. The caller holds the lock on the data directory."""

    async def ask(verb: str, arguments: Mapping[str, Any]) -> Any:
        return await service.ask(verb, arguments)  # the driver asks only after the service has opened it

    driver_settings = settings.make_driver_settings()
    driver = load_driver(driver_settings, settings.data_dir, RemoteOutbound(ask))
    service = make_service(settings.host_id, driver, driver_settings)
    listener = listen(settings.address, settings.port)
    try:
        async with HostServer(service, listener, settings.tls) as server:
            log.info(
                "host_started", host=settings.host_id, address=settings.address, port=server.port, version=__version__
            )
            ready(server.port)
            failure = await _wait_for_end(service, stopping)
    finally:
        await service.close()
    log.info("host_stopped")
    if failure is not None:
        raise SandyardError(f"{failure} Restart the host service to recover.")


def make_service(host_id: str, driver: Driver, settings: EngineSettings) -> HostService:
    """Return the service of a host with this driver. `settings` are those of the driver."""
    limits = PackLimits(settings.layer_max_mb << 20, settings.layer_max_files, settings.disk_reserve_mb << 20)
    copies = LayerFolderCopies(settings.data_dir, limits, driver.find_layers, rootless=not is_root())
    return HostService(host_id, driver, copies, settings.data_dir, settings.layer_keep_s)


async def _wait_for_end(service: HostService, stopping: asyncio.Event) -> str | None:
    """Wait until the service has to end. Return the reason if the driver has failed."""

    async def fail() -> str:
        await service.opened.wait()
        return await service.driver.wait_for_failure()

    stop, failure = asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(fail())
    try:
        await asyncio.wait((stop, failure), return_when=asyncio.FIRST_COMPLETED)
        return failure.result() if failure.done() else None
    finally:
        stop.cancel()
        failure.cancel()


class HostServer:
    """Accepts connections of the engine while the context is open. `tls` must require the engine's certificate."""

    def __init__(self, service: HostService, listener: socket.socket, tls: ssl.SSLContext) -> None:
        if tls.verify_mode is not ssl.CERT_REQUIRED:
            raise SandyardError("The host service needs a TLS context that requires the certificate of its engine.")
        self._service = service
        self._listener = listener
        self._connections: set[asyncio.Transport] = set()
        self._cleanup_at = _MIN_CLEANUP_AT
        self._tasks = TaskSet("host")
        self._acceptor = TlsAcceptor(tls, lambda _: _EngineConnection(self), Connections(MAX_HANDSHAKES))

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def __aenter__(self) -> HostServer:
        self._listener.setblocking(False)
        self._acceptor.start([self._listener])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._acceptor.stop()
        self._listener.close()
        await self._tasks.cancel()
        for transport in tuple(self._connections):
            transport.abort()

    def add(self, connection: _EngineConnection) -> None:
        """Serve a new connection."""
        if len(self._connections) >= self._cleanup_at:
            self._connections = {known for known in self._connections if not known.is_closing()}
            self._cleanup_at = max(_MIN_CLEANUP_AT, 2 * len(self._connections))
        if len(self._connections) >= MAX_CONNECTIONS:
            log.warning("host_connection_refused", reason=f"there are {MAX_CONNECTIONS} connections")
            connection.transport.abort()
            return
        self._connections.add(connection.transport)
        self._tasks.spawn(self._serve(connection))

    async def _serve(self, connection: LineProtocol) -> None:
        try:
            async with asyncio.timeout(FIRST_LINE_S):
                message = parse_line(await connection.first_line)
            check_protocol(message, "the engine", "this host")
        except TimeoutError:
            connection.transport.abort()
        except SandyardError as error:
            log.warning("host_connection_failed", reason=error.message)
            connection.transport.write(make_failure(error))
            connection.transport.close()
        else:
            if "stream" in message:
                await serve_stream(self._service, connection, message)
            else:
                await self._serve_control(connection)

    async def _serve_control(self, connection: LineProtocol) -> None:
        async def handle(verb: str, arguments: Mapping[str, Any]) -> Any:
            try:
                return await self._service.handle(peer, verb, arguments)
            except (KeyError, TypeError, ValueError) as error:
                raise UnreachableError(
                    f"The host does not understand the arguments of the operation {verb!r}: {type(error).__name__} {error}. "
                    "Run the same release on the engine and the host."
                ) from error

        peer = Peer("The engine", handle)
        connection.transport.write(make_result({"version": __version__, **describe_protocol()}))
        connection.hand_over(peer)


class _EngineConnection(LineProtocol):
    def __init__(self, server: HostServer) -> None:
        super().__init__()
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        enable_keepalive(self.transport)
        self._server.add(self)
