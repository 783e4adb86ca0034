"""The harness of one driver: its data directory, new driver objects on it, and a check for leftovers."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pytest

from sandyard.engine.contract import (
    Condition,
    Driver,
    FileOwner,
    Handle,
    Isolation,
    Layers,
    Limits,
    Mount,
    NetworkPolicy,
    Spec,
)
from sandyard.engine.drivers.gvisor.runtime import GvisorRuntime
from sandyard.engine.drivers.layer_names import IMAGE, LayerLocation
from sandyard.engine.drivers.machine.driver import MachineDriver
from sandyard.engine.drivers.machine.machine import DriverOptions
from sandyard.engine.drivers.machine.net import Network, NetworkSettings
from sandyard.engine.drivers.namespace.runtime import NamespaceRuntime
from tests.conformance.guest_agent import GuestAgent
from tests.harness.cluster import HostProcess

# Namespaces as root, as root with plain directories as the store, and without root; gVisor; the fake driver; and namespaces on another
# host of a cluster.
ROOT_KINDS = ("namespace", "namespace-plain", "gvisor", "fake", "cluster")
USER_KINDS = ("namespace-rootless",)

IMAGES = "images"
TINY_LAYER = "tpl:tiny/1"
"""The name of the template for drivers that find layers by their names."""
DEFAULT_LIMITS = Limits()


def list_kinds() -> tuple[str, ...]:
    return ROOT_KINDS if os.geteuid() == 0 else USER_KINDS


def make_driver(kind: str, data_dir: Path, layers: Layers, **options: Any) -> Driver:
    if kind == "cluster":
        return HostProcess.load(data_dir).make_driver()
    if kind == "fake":
        from sandyard.engine.drivers.fake.driver import FakeDriver  # noqa: PLC0415 (imported only when used)

        return FakeDriver(data_dir)
    store: Literal["auto", "plain"] = "plain" if kind == "namespace-plain" else "auto"
    network = _make_network if kind == "gvisor" else None
    roots = [Path(layer).parent for layer in layers]
    locations = {IMAGE: LayerLocation(data_dir / IMAGES, "fs")}
    return make_machine_driver(
        data_dir, layer_roots=roots, layer_locations=locations, store=store, network=network, **options
    )


def _make_network(instance: str, state: Path) -> Network:
    """gVisor needs a network namespace for each sandbox. Other tests of a driver work without one."""
    return Network(instance, state, NetworkSettings())


def make_machine_driver(data_dir: Path, **options: Any) -> MachineDriver:
    namespaces = NamespaceRuntime()
    return MachineDriver(DriverOptions(data_dir, **options), [namespaces, GvisorRuntime()], namespaces)


class DriverHarness:
    def __init__(self, kind: str, data_dir: Path, layers: Layers) -> None:
        self.kind = kind
        self.data_dir = data_dir
        self.layers = (TINY_LAYER,) if kind == "cluster" else layers
        self.driver: Driver
        self._drivers: list[Driver] = []
        self._count = 0

    @property
    def host_dir(self) -> Path:
        """The data directory of the driver that runs the sandboxes."""
        return self.data_dir / "host" if self.kind == "cluster" else self.data_dir

    @property
    def images_dir(self) -> Path:
        """The folder in which the driver finds layers of images."""
        return self.data_dir / ("engine" if self.kind == "cluster" else "") / IMAGES

    @property
    def isolation(self) -> Isolation:
        return Isolation.GVISOR if self.kind == "gvisor" else Isolation.NAMESPACE

    @property
    def real(self) -> bool:
        """Whether sandboxes are isolated: the fake driver runs everything on the host."""
        return self.kind != "fake"

    async def require_suspend(self) -> None:
        """Skip the test if sandboxes cannot be suspended here."""
        capabilities = self.driver.capabilities
        if isinstance(self.driver, MachineDriver):
            capabilities = await self.driver.wait_for_capabilities()
        if self.isolation not in capabilities.suspend:
            pytest.skip(capabilities.missing["suspend"])

    async def open(self, keep: Collection[Handle] = (), snapshots: Collection[str] = ()) -> Mapping[str, Condition]:
        """Open a new driver object after closing the previous one, as an engine does when it exits cleanly."""
        await self.close()
        self.driver = make_driver(self.kind, self.data_dir, self.layers)
        self._drivers.append(self.driver)
        return await self.driver.open(keep, snapshots)

    async def close(self) -> None:
        while self._drivers:
            await self._drivers.pop().close()

    @property
    def is_closed(self) -> bool:
        return not self._drivers

    async def clear(self) -> None:
        """Remove everything from the machine. Opening an open driver again does the same as opening a new one, and is
        faster."""
        if self._drivers:
            await self._drivers[-1].open((), ())
        else:
            await self.open()

    def spec(
        self,
        name: str = "",
        limits: Limits = DEFAULT_LIMITS,
        layers: Layers | None = None,
        mounts: tuple[Mount, ...] = (),
        isolation: Isolation | None = None,
        containers: bool = False,
    ) -> Spec:
        self._count += 1
        name = name or f"s{self._count}x{os.getpid()}"
        level = isolation or self.isolation
        return Spec(name, layers or self.layers, limits, NetworkPolicy(), mounts, level, containers)

    async def create(
        self,
        name: str = "",
        limits: Limits = DEFAULT_LIMITS,
        layers: Layers | None = None,
        mounts: tuple[Mount, ...] = (),
    ) -> tuple[Handle, GuestAgent]:
        handle = await self.driver.create(self.spec(name, limits, layers, mounts))
        return handle, self.agent(handle)

    def agent(self, handle: Handle) -> GuestAgent:
        return GuestAgent(self.driver, handle)

    async def read_volume(self, volume: str, path: str) -> str:
        """Return the content of a text file in a volume."""
        reader = await self.driver.get_volume_files(volume).open(path)
        try:
            return (await reader.read(1 << 20)).decode()
        finally:
            await reader.close()

    async def write_volume(self, volume: str, path: str, text: str) -> None:
        """Write a text file in a volume, as root."""

        async def iterate_chunks() -> AsyncIterator[bytes]:
            yield text.encode()

        files = self.driver.get_volume_files(volume)
        await files.write(path, iterate_chunks(), FileOwner(0, 0), force=True)

    def traces(self, name: str) -> list[str]:
        """List what exists on the machine under the name of a sandbox or snapshot. Nothing else of the driver is named
        after them."""
        paths = [str(path) for pattern in (f"*/{name}", f"*/*/{name}") for path in self.host_dir.glob(pattern)]
        instance = self.host_dir / "instance.json"
        if instance.exists():
            folders = json.loads(instance.read_text())["cgroups"].values()
            paths += [str(Path(folder, name)) for folder in folders if Path(folder, name).exists()]
        return paths


def as_json(handle: Handle) -> str:
    return json.dumps(asdict(handle))


def from_json(text: str) -> Handle:
    return Handle(**json.loads(text))
