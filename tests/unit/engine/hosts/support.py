"""An engine's side of joining, in memory, and TLS handshakes between an engine and a host."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sandyard.engine.drivers.cluster.model import HostRecord, HostState, HostStatus
from sandyard.engine.e2b.join_app import build_join_app
from sandyard.engine.hosts.administration import HostAdministration
from sandyard.engine.hosts.authority import HostAuthority
from sandyard.engine.hosts.directory import Hosts
from sandyard.engine.hosts.enrollment import Enrollment
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock
from tests.harness.asgi import serve_app


@dataclass
class EngineSide:
    """The parts of an engine that know hosts. `sandboxes` are how many the driver reports on each host, by id."""

    database: Database
    authority: HostAuthority
    hosts: Hosts
    enrollment: Enrollment
    administration: HostAdministration
    sandboxes: dict[str, int]

    def get_statuses(self) -> list[HostStatus]:
        return describe_all(self.hosts, self.sandboxes)

    @contextlib.asynccontextmanager
    async def serve(self, clock: Clock | None = None) -> AsyncIterator[None]:
        """Serve the join port, at the address that tokens created from now on contain."""
        app = build_join_app(self.enrollment, self.administration, clock)
        context = self.authority.get_join_context()
        async with serve_app(app, ssl_context_factory=lambda *_: context) as port:
            self.enrollment.address = f"127.0.0.1:{port}"
            yield


@contextlib.contextmanager
def open_engine(folder: Path, clock: Clock | None = None) -> Iterator[EngineSide]:
    folder.mkdir(exist_ok=True)
    database = Database(folder / "engine.db")
    database.open()
    authority = HostAuthority.load(folder / "ca", clock)
    hosts = Hosts(database, authority, clock)
    enrollment = Enrollment(database, hosts, authority, "127.0.0.1:1", clock)
    sandboxes: dict[str, int] = {}
    try:
        administration = HostAdministration(database, hosts, lambda: describe_all(hosts, sandboxes), enrollment)
        yield EngineSide(database, authority, hosts, enrollment, administration, sandboxes)
    finally:
        database.close()


def describe_all(hosts: Hosts, sandboxes: Mapping[str, int]) -> list[HostStatus]:
    return [describe(record, sandboxes.get(record.id, 0)) for record in hosts.list_records()]


def describe(record: HostRecord, sandboxes: int) -> HostStatus:
    return HostStatus(record, HostState.READY, 0.0, version="1.0", sandboxes=sandboxes)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None) -> x509.Certificate:
    """Complete a handshake and exchange a byte, so that errors of both sides are raised. Return the server's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname=name)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (client_end, server_end):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    server_end.write(b"x")
    assert client_end.read(1) == b"x"
    client_end.write(b"y")
    assert server_end.read(1) == b"y"
    der = client_end.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)
