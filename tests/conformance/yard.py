"""One driver's place in these tests: its data directory, fresh driver objects on it, and what it may not leave behind."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from sandyard.engine.contract import Condition, Driver, Handle, Layers, Limits, Mount, NetworkPolicy, Spec
from tests.conformance.agent import Agent

# The namespace driver as root, the same with plain directories as its store, the same without root; and the fake one.
ROOT_KINDS = ("namespace", "namespace-plain", "fake")
USER_KINDS = ("namespace-rootless",)

DEFAULT_LIMITS = Limits()


def kinds() -> tuple[str, ...]:
    return ROOT_KINDS if os.geteuid() == 0 else USER_KINDS


def make_driver(kind: str, data_dir: Path, layers: Layers) -> Driver:
    if kind == "fake":
        from sandyard.engine.drivers.fake.driver import FakeDriver  # noqa: PLC0415 (only where it is asked for)

        return FakeDriver(data_dir)
    from sandyard.engine.drivers.namespace.driver import NamespaceDriver  # noqa: PLC0415
    from sandyard.engine.drivers.namespace.host import Options  # noqa: PLC0415

    store: Literal["auto", "plain"] = "plain" if kind == "namespace-plain" else "auto"
    return NamespaceDriver(Options(data_dir, layer_roots=[Path(layer).parent for layer in layers], store=store))


class Yard:
    def __init__(self, kind: str, data_dir: Path, layers: Layers) -> None:
        self.kind = kind
        self.data_dir = data_dir
        self.layers = layers
        self.driver: Driver
        self._drivers: list[Driver] = []
        self._count = 0

    @property
    def real(self) -> bool:
        """Whether there is a sandbox at all: the fake driver runs everything on the host."""
        return self.kind != "fake"

    async def open(self, keep: Collection[Handle] = (), snapshots: Collection[str] = ()) -> Mapping[str, Condition]:
        """A fresh driver object takes over; the one before is closed, as by an engine that ends well."""
        await self.close()
        self.driver = make_driver(self.kind, self.data_dir, self.layers)
        self._drivers.append(self.driver)
        return await self.driver.open(keep, snapshots)

    async def close(self) -> None:
        while self._drivers:
            await self._drivers.pop().close()

    async def clear(self) -> None:
        """Leave nothing on the machine. To open an open driver once more is as good as a new one, and quicker."""
        if self._drivers:
            await self._drivers[-1].open((), ())
        else:
            await self.open()
        await self.close()

    def spec(
        self,
        name: str = "",
        limits: Limits = DEFAULT_LIMITS,
        layers: Layers | None = None,
        mounts: tuple[Mount, ...] = (),
    ) -> Spec:
        self._count += 1
        return Spec(name or f"s{self._count}x{os.getpid()}", layers or self.layers, limits, NetworkPolicy(), mounts)

    async def create(
        self,
        name: str = "",
        limits: Limits = DEFAULT_LIMITS,
        layers: Layers | None = None,
        mounts: tuple[Mount, ...] = (),
    ) -> tuple[Handle, Agent]:
        handle = await self.driver.create(self.spec(name, limits, layers, mounts))
        return handle, self.agent(handle)

    def agent(self, handle: Handle) -> Agent:
        return Agent(self.driver, handle)

    def traces(self, name: str) -> list[str]:
        """What is on the machine under the name of a sandbox or snapshot. Nothing else of the driver knows names."""
        found = [str(path) for pattern in (f"*/{name}", f"*/*/{name}") for path in self.data_dir.glob(pattern)]
        instance = self.data_dir / "instance.json"
        if instance.exists():
            folders = json.loads(instance.read_text())["cgroups"].values()
            found += [str(Path(folder, name)) for folder in folders if Path(folder, name).exists()]
        return found


def as_json(handle: Handle) -> str:
    return json.dumps(asdict(handle))


def from_json(text: str) -> Handle:
    return Handle(**json.loads(text))
