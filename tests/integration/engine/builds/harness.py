"""Builds with the fake driver: real guest agents, no isolation, one data directory that survives a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sandyard.engine.builds.model import Build, BuildStatus, Layer, Recipe, Size, Step, StepKind
from sandyard.engine.builds.registry import BuiltTemplates, CombinedTemplates
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.builds.service import Builds
from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.images.model import Image, RegistryAuth, Report
from sandyard.engine.sandboxes.model import CreateSandbox, Sandbox, Template
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import NotFoundError
from tests.unit.engine.sandboxes.harness import StaticTemplates

BASE = Template(id="base0000000000000000", layers=(), aliases=("base",), env={"FROM_BASE": "yes"})


def run(command: str, **fields: Any) -> Step:
    return Step(StepKind.RUN, (command,), **fields)


def env(**values: str) -> Step:
    return Step(StepKind.ENV, tuple(part for pair in values.items() for part in pair))


class SingleImage:
    """An image service that knows only `app:1`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, RegistryAuth | None]] = []

    async def resolve(self, reference: str, auth: RegistryAuth | None, report: Report) -> Image:
        self.requests.append((reference, auth))
        if reference != "app:1":
            raise NotFoundError(f"Image {reference} not found.")
        report("Pulling app:1")
        return Image((), "sha256:1", {"FROM_IMAGE": "yes"}, user="app", workdir="/app")


class BuildsHarness:
    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.images = SingleImage()
        values: dict[str, Any] = {"pool_size": 0, "memory_reserve_mb": 0, "disk_reserve_mb": 0, "data_dir": path}
        self.settings = EngineSettings(**(values | {"metrics_interval_s": 1000} | settings))

    async def start(self) -> None:
        self.database = Database(self.path / "engine.db")
        self.database.open()
        self.driver = FakeDriver(self.path)
        repository = BuildRepository(self.database)
        self.built = BuiltTemplates(repository, SystemClock())
        self.built.load()
        machine = StaticTemplates(BASE)
        self.sandboxes = Sandboxes(
            self.database,
            self.driver,
            CombinedTemplates(machine, self.built),
            self.settings,
            explain_missing=self.built.explain_missing,
        )
        self.builds = Builds(
            repository=repository,
            built=self.built,
            sandboxes=self.sandboxes,
            machine=machine,
            images=self.images,  # type: ignore[arg-type]
            settings=self.settings,
            folder=self.path / "uploads",
        )
        await self.sandboxes.open()
        await self.builds.open()

    async def stop(self) -> None:
        self.driver.faults.heal()
        await self.builds.close()
        for sandbox in self.sandboxes.list().items:
            await self.sandboxes.kill(sandbox.id)
        await self.sandboxes.close()
        self.database.close()

    async def crash(self) -> None:
        """Simulate kill -9: guest agents keep running, and nothing more is written."""
        self.database.abandon()
        self.database.drop_connections()
        await self.builds.close()
        await self.sandboxes.components.background.cancel()
        await self.sandboxes.components.stop_now()

    async def start_build(self, name: str, *steps: Step, tags: tuple[str, ...] = (), **fields: Any) -> Build:
        size = fields.pop("size", Size())
        template, build = self.builds.request(name, tags, size)
        await self.builds.start(template.id, build.id, Recipe(**{"template": "base", "steps": steps, **fields}))
        return self.reload(build)

    async def build(self, name: str, *steps: Step, **fields: Any) -> Build:
        return await self.wait_for_end(await self.start_build(name, *steps, **fields))

    async def build_product(self, name: str, *steps: Step, **fields: Any) -> Layer:
        """Run a build that has to succeed and return its product."""
        build = await self.build(name, *steps, **fields)
        assert build.status is BuildStatus.READY, build.reason
        assert build.product is not None
        return build.product

    def reload(self, build: Build) -> Build:
        return self.builds.build(build.template_id, build.id)[1]

    async def wait_for_end(self, build: Build) -> Build:
        await self.until(lambda: self.reload(build).status.final)
        return self.reload(build)

    def log_lines(self, build: Build) -> list[str]:
        return [line.message for line in self.builds.log(build)]

    async def until(self, condition: Any, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    async def create_sandbox(self, template: str) -> Sandbox:
        return await self.sandboxes.create(CreateSandbox(template=template, timeout_s=300))

    def read_file(self, sandbox: Sandbox, path: str) -> str:
        return (self.path / "fake/sandboxes" / sandbox.id / "root" / path).read_text()

    def snapshots_on_disk(self) -> set[str]:
        return {path.name for path in (self.path / "fake/snapshots").iterdir()}

    def sandboxes_on_disk(self) -> set[str]:
        return {path.name for path in (self.path / "fake/sandboxes").iterdir()}
