"""An engine without its HTTP server: records, sandboxes, driver and layer store, on a data directory that tests can lose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from sandyard.engine.contract import Driver, Layers, Limits
from sandyard.engine.drivers import make_layer_locations
from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.drivers.layer_names import SNAPSHOT, TEMPLATE, LayerLocation, find_layers, make_layer_name
from sandyard.engine.layers.service import LayerService
from sandyard.engine.layers.store import LayerStore
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import CreateSandbox, Sandbox, Snapshot, Template
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.sandboxes.snapshots import Snapshots, make_snapshot_id
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.tasks import TaskSet
from tests.conformance.guest_agent import GuestAgent
from tests.conformance.harness import make_machine_driver
from tests.unit.engine.sandboxes.harness import StaticTemplates

WAIT_S = 60.0


class EngineHarness:
    """Use `running()` for one life of the engine. `rootfs` None: the fake driver, whose template has no layers.
    `with_paths`: the template's layer is recorded like earlier versions did, with its path."""

    def __init__(
        self, path: Path, store: Path | str, rootfs: Path | None = None, *, with_paths: bool = False, **settings: Any
    ) -> None:
        self.path = path
        self.rootfs = rootfs
        self.with_paths = with_paths
        values: dict[str, Any] = {"pool_size": 0, "memory_reserve_mb": 0, "disk_reserve_mb": 0, "data_dir": path}
        values |= {"layer_store": str(store), "templates_dir": rootfs.parents[2] if rootfs else path / "templates"}
        self.settings = EngineSettings(**(values | settings))
        self.driver: Driver
        self.sandboxes: Sandboxes
        self.layers: LayerService

    @contextlib.asynccontextmanager
    async def running(
        self, *, crash: bool = False, store: LayerStore | None = None, publishing: bool = True
    ) -> AsyncIterator[EngineHarness]:
        """Run the engine. `crash`: like kill -9 at the end. `store`: instead of the one in the settings."""
        self.path.mkdir(exist_ok=True)
        data, database = DataDir(self.path), Database(self.path / "engine.db")
        database.open()
        self.database = database
        self.layers = LayerService(self.settings, data, database, store=store)
        self.layers.prepare()
        self.driver = self._make_driver()
        template = Template("base0000000000000000", self._list_template_layers(), aliases=("base",))
        self.sandboxes = Sandboxes(database, self.driver, StaticTemplates(template), self.settings)
        await self.sandboxes.open()
        if publishing:
            snapshots = self.sandboxes.components.snapshots
            self.layers.open(snapshots, self.sandboxes.uses_layer, self.driver.find_layers, self.sandboxes.is_template)
            self.sandboxes.pull_snapshot = self.layers.pull_missing
        try:
            yield self
        finally:
            await self.layers.close()
            if crash:
                database.abandon()
                database.drop_connections()
                await self.sandboxes.components.stop_now()
                await self.driver.close()
            else:
                for sandbox in self.sandboxes.list().items:
                    await self.sandboxes.kill(sandbox.id)
                await self.sandboxes.close()
                database.close()

    def _make_driver(self) -> Driver:
        locations = make_layer_locations(self.settings, self.path)
        if self.rootfs is None:
            return FakeDriver(self.path, locations)
        return make_machine_driver(self.path, layer_locations=locations)

    def _list_template_layers(self) -> Layers:
        if self.rootfs is None:
            return ()
        if self.with_paths:
            return (str(self.rootfs),)
        return (make_layer_name(TEMPLATE, self.rootfs.parents[1].name, self.rootfs.parent.name),)

    def find_layers(self, layers: Layers) -> list[Path]:
        """Return the directories of these layers. The engine must be running."""
        return [Path(path) for path in self.driver.find_layers(layers)]

    async def create(self, template: str = "base") -> Sandbox:
        return await self.sandboxes.create(CreateSandbox(template=template, timeout_s=300))

    async def run(self, sandbox: Sandbox, command: str) -> str:
        """Run a shell command as root and return its output."""
        result = await GuestAgent(self.driver, self.sandboxes.get(sandbox.id).handle).run(command)
        assert result.code == 0, result.err
        return result.out

    async def snapshot(self, sandbox: Sandbox, name: str | None = None) -> Snapshot:
        return await self.sandboxes.snapshot(sandbox.id, name)

    async def wait_until_durable(self, snapshot: Snapshot) -> None:
        await wait_for(lambda: self.layers.is_durable(snapshot.id), lambda: self.layers.status)


class SnapshotsHarness:
    """The records of an engine's snapshots and its layer store, without sandboxes. Layers are directories with a file."""

    def __init__(self, path: Path, store: Path | str, **settings: Any) -> None:
        self.path = path
        values = {
            "disk_reserve_mb": 0,
            "data_dir": path,
            "layer_store": str(store),
            "templates_dir": path / "templates",
        }
        self.settings = EngineSettings(**(values | settings))
        self.used: set[str] = set()  # snapshots that a sandbox uses
        self.templates: set[str] = set()  # names of templates
        self.snapshots: Snapshots
        self.layers: LayerService

    @contextlib.asynccontextmanager
    async def running(
        self, *, crash: bool = False, store: LayerStore | None = None, publishing: bool = True
    ) -> AsyncIterator[SnapshotsHarness]:
        """Like that of `EngineHarness`."""
        self.path.mkdir(exist_ok=True)
        database = Database(self.path / "engine.db")
        database.open()
        self.layers = LayerService(self.settings, DataDir(self.path), database, store=store)
        self.layers.prepare()
        calls, tasks = DriverCalls(_NoDriver(), lambda _: 10.0), TaskSet("test")  # type: ignore[arg-type]
        self.snapshots = Snapshots(database, calls, tasks.spawn, lambda: (), lambda: self.used)
        self.snapshots.load()
        if publishing:
            self.layers.open(self.snapshots, self.snapshots.uses_layer, self.find_layers, self.templates.__contains__)
        try:
            yield self
        finally:
            await self.layers.close()
            await tasks.cancel()
            if crash:
                database.abandon()
                database.drop_connections()
            else:
                database.close()

    def find_layers(self, layers: Layers) -> Layers:
        locations = make_layer_locations(self.settings, self.path)
        return find_layers(layers, {**locations, SNAPSHOT: LayerLocation(self.path / "store/snapshots", "upper")})

    def make(self, content: str = "kept", name: str | None = None, *, with_path: bool = False) -> Snapshot:
        """Return a new snapshot with a file `note`. `with_path`: recorded like earlier versions did."""
        snapshot_id = make_snapshot_id()
        layer = self.path / "store/snapshots" / snapshot_id / "upper"
        layer.mkdir(parents=True)
        (layer / "note").write_text(content)
        os.utime(layer / "note", (0, 0))
        os.utime(layer, (0, 0))
        layers = (str(layer) if with_path else make_layer_name(SNAPSHOT, snapshot_id),)
        record = Snapshot(snapshot_id, "i1", "base", layers, Limits(), time.time(), name=name)
        return self.snapshots.add(record)

    async def wait_until_durable(self, *snapshots: Snapshot) -> None:
        for snapshot in snapshots:
            await wait_for(lambda candidate=snapshot: self.layers.is_durable(candidate.id), lambda: self.layers.status)

    async def pull(self, snapshot: Snapshot) -> str:
        """Fetch a published snapshot and return the content of its file."""
        found = await self.layers.pull(snapshot.id)
        (layer,) = self.find_layers(found.layers)
        return await asyncio.to_thread((Path(layer) / "note").read_text)


class _NoDriver:
    name = "none"

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Do nothing."""


async def wait_for(condition: Callable[[], bool], describe: Callable[[], object] = lambda: "it did not happen") -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, describe()
        await asyncio.sleep(0.01)


def lose(path: Path) -> None:
    """Delete a data directory, as if its machine were lost. Its engine must not be running."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if mount.startswith(f"{path}/"):
            subprocess.run(["umount", "-l", mount], check=True)
    shutil.rmtree(path)
