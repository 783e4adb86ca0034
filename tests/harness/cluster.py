"""Hosts of a cluster for tests: certificates, host services in processes of their own, and drivers that use them.

`python -m tests.harness.cluster FILE` is a host service with the settings in the file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandyard.engine.drivers import make_layer_locations
from sandyard.engine.drivers.cluster.driver import ClusterDriver, ClusterOptions
from sandyard.engine.drivers.cluster.model import HostRecord
from sandyard.engine.drivers.cluster.placement import Reserves
from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.hosting import server
from sandyard.engine.hosting.settings import HostSettings
from sandyard.engine.hosts.origins import StoredOrigins
from sandyard.engine.layers.copies import LayerFolderCopies
from sandyard.engine.layers.publisher import PackLimits
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.listen import free_port
from tests.harness.processes import ROOT

START_SECONDS = 60
STOP_SECONDS = 30
LIMITS = PackLimits(1 << 30, 100_000, 0)
_CONFIG = "host.json"


class TestAuthority:
    """Issues certificates in a folder: `ca.pem`, and `<name>.pem` with certificate and key."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self._root = (
            _begin(name, name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(self._root.public_bytes(serialization.Encoding.PEM))

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    @functools.cached_property
    def engine_certificate(self) -> Path:
        return self.issue("engine", client=True)

    def issue(self, name: str, *, client: bool = False) -> Path:
        """Issue a certificate to a host, or with `client` to an engine. Return the file with certificate and key."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        certificate = (
            _begin(x509.Name([]), self._root.subject, key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"{name}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
        return path


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=7))


def make_client_context(authority: Path, certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate)
    return context


def make_server_context(authority: Path, certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@dataclass
class Directory:
    """Implements `HostDirectory` for tests, with one engine certificate."""

    context: ssl.SSLContext
    hosts: list[HostRecord] = field(default_factory=list)
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def list_records(self) -> Sequence[HostRecord]:
        return self.hosts

    def on_change(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def make_client_context(self, host_id: str) -> ssl.SSLContext:
        return self.context

    def set(self, hosts: Sequence[HostRecord]) -> None:
        self.hosts = list(hosts)
        for callback in self.callbacks:
            callback()


@dataclass(frozen=True)
class HostProcess:
    """A host service in its own process. `folder` has its certificates, and its data in `host`."""

    folder: Path
    record: HostRecord
    authority: Path
    engine_certificate: Path

    @classmethod
    @contextlib.contextmanager
    def start(cls, folder: Path, template: Path, driver: str = "namespace") -> Iterator[HostProcess]:
        """Start a host service for the tests of a driver, whose engine has a template with this root file system."""
        authority = TestAuthority(folder / "tls")
        host = cls.create(folder, authority, "host-1", driver)
        (folder / "templates" / "tiny").mkdir(parents=True)
        (folder / "templates" / "tiny" / "1").symlink_to(template.parent)
        process = host.run()
        try:
            yield host
        finally:
            stop(process)

    @classmethod
    def create(cls, folder: Path, authority: TestAuthority, host_id: str, driver: str = "namespace") -> HostProcess:
        """Write the settings of a host."""
        record = HostRecord(host_id, host_id, "127.0.0.1", free_port())
        (folder / "host").mkdir(parents=True)
        config = {
            "host_id": host_id,
            "port": record.port,
            "driver": driver,
            "data_dir": str(folder / "host"),
            "authority": str(authority.certificate),
            "certificate": str(authority.issue(host_id)),
            "engine_certificate": str(authority.engine_certificate),
        }
        (folder / _CONFIG).write_text(json.dumps(config))
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> HostProcess:
        config = json.loads((folder / _CONFIG).read_text())
        record = HostRecord(config["host_id"], config["host_id"], "127.0.0.1", config["port"])
        return cls(folder, record, Path(config["authority"]), Path(config["engine_certificate"]))

    @property
    def log(self) -> Path:
        return self.folder / "host.log"

    def run(self) -> subprocess.Popen[bytes]:
        """Start the process and wait until it listens."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.harness.cluster", str(self.folder / _CONFIG)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                stop(process)
                raise RuntimeError(f"the host service did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)
        return process

    def make_directory(self, *others: HostProcess) -> Directory:
        """Return a directory with this host and others of the same authority."""
        records = [host.record for host in (self, *others)]
        return Directory(make_client_context(self.authority, self.engine_certificate), records)

    def make_driver(self) -> ClusterDriver:
        """Return the driver of an engine that has no sandboxes on its own machine. Each one is of a newer engine."""
        path = self.folder / "epoch"
        epoch = int(path.read_text()) + 1 if path.exists() else 1
        path.write_text(str(epoch))
        return make_cluster_driver(self.folder, self.make_directory(), epoch)


def make_cluster_driver(
    folder: Path, directory: Directory, epoch: int, *, use_local: bool = False, **options: Any
) -> ClusterDriver:
    """Return a cluster driver with a fake driver for the engine's own machine, and its templates in `folder/templates`."""
    data_dir = folder / "engine"
    data_dir.mkdir(exist_ok=True)
    settings = EngineSettings(data_dir=data_dir, templates_dir=folder / "templates")
    local = FakeDriver(data_dir, make_layer_locations(settings, data_dir))
    copies = LayerFolderCopies(data_dir, LIMITS, local.find_layers, rootless=False)
    cluster_options = ClusterOptions(epoch, Reserves(0, 0), use_local=use_local)
    origins = StoredOrigins(_open_database(data_dir / "origins.db"))
    return ClusterDriver(local, copies, directory, cluster_options, origins=origins, **options)


@functools.cache
def _open_database(path: Path) -> Database:
    """Return the database of an engine's origins. It stays open, for the engine's later processes."""
    database = Database(path)
    database.open()
    return database


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a host service as systemd would."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    machine = EngineSettings(driver=config["driver"], data_dir=Path(config["data_dir"]), disk_reserve_mb=0)
    tls = make_server_context(Path(config["authority"]), Path(config["certificate"]))
    settings = HostSettings(config["host_id"], "127.0.0.1", config["port"], tls, machine)
    os.umask(0o022)
    server.run(settings, lambda port: Path(sys.argv[1]).with_name("ready").touch())


if __name__ == "__main__":
    main()
