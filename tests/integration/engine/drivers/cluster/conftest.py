from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandyard.engine.contract import Handle, Spec
from sandyard.engine.drivers.cluster.driver import ClusterDriver
from sandyard.engine.drivers.cluster.model import HostState
from tests.harness.cluster import Directory, HostProcess, TestAuthority, make_cluster_driver, stop


@dataclass
class Host:
    """A host service with the fake driver, which a test can kill and start again."""

    settings: HostProcess
    process: subprocess.Popen[bytes]

    @property
    def id(self) -> str:
        return self.settings.record.id

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        stop(self.process)

    def start(self) -> None:
        if self.process.poll() is not None:
            self.process = self.settings.run()


@dataclass
class Cluster:
    """Two hosts, and engines that use them."""

    folder: Path
    hosts: list[Host]
    drivers: list[ClusterDriver] = field(default_factory=list)
    _epochs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def make_directory(self) -> Directory:
        first, *others = (host.settings for host in self.hosts)
        return first.make_directory(*others)

    def make_driver(
        self, directory: Directory | None = None, *, epoch: int | None = None, **options: Any
    ) -> ClusterDriver:
        """Return the driver of a newer engine, which is not open."""
        newest = next(self._epochs)
        driver = make_cluster_driver(self.folder, directory or self.make_directory(), epoch or newest, **options)
        self.drivers.append(driver)
        return driver

    async def open(self, directory: Directory | None = None, **options: Any) -> ClusterDriver:
        """Return the driver of a newer engine without sandboxes."""
        driver = self.make_driver(directory, **options)
        await driver.open((), ())
        return driver

    def spec(self, layers: tuple[str, ...] = (), **options: Any) -> Spec:
        return Spec(f"sandbox{next(self._names)}", layers, **options)

    def get_host(self, handle: Handle) -> Host:
        return next(host for host in self.hosts if host.id == handle.data["host"])


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


def get_states(driver: ClusterDriver) -> dict[str, HostState]:
    return {status.record.id: status.state for status in driver.list_statuses()}


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    folder = tmp_path_factory.mktemp("cluster")
    authority = TestAuthority(folder / "tls")
    with contextlib.ExitStack() as stack:
        started = []
        for name in ("host-a", "host-b"):
            settings = HostProcess.create(folder / name, authority, name, "fake")
            host = Host(settings, settings.run())
            stack.callback(host.stop)
            started.append(host)
        yield started


_epochs = itertools.count(1)


@pytest_asyncio.fixture
async def cluster(hosts: list[Host], tmp_path: Path) -> AsyncIterator[Cluster]:
    for host in hosts:
        host.start()
    cluster = Cluster(tmp_path, hosts, _epochs=_epochs)
    yield cluster
    for host in hosts:
        host.start()
    for driver in cluster.drivers:
        await driver.close()
    last = await cluster.open()  # removes everything
    await last.close()
