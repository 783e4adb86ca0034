"""Building with the fake driver: real agents, no isolation, on one data directory that outlives a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sandyard.engine.builds.model import Build, Kind, Layer, Recipe, Size, Status, Step
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
    return Step(Kind.RUN, (command,), **fields)


def env(**values: str) -> Step:
    return Step(Kind.ENV, tuple(part for pair in values.items() for part in pair))


class OneImage:
    """Knows `app:1`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, RegistryAuth | None]] = []

    async def resolve(self, reference: str, auth: RegistryAuth | None, report: Report) -> Image:
        self.asked.append((reference, auth))
        if reference != "app:1":
            raise NotFoundError(f"Image {reference} not found.")
        report("Pulling app:1")
        return Image((), "sha256:1", {"FROM_IMAGE": "yes"}, user="app", workdir="/app")


class BuildsHarness:
    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.images = OneImage()
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
        """As kill -9 leaves it: agents live on, nothing more is written."""
        self.database.abandon()
        self.database._drop()
        for task in (self.builds._queue._tasks, self.sandboxes._components.background):
            await task.cancel()
        await self.sandboxes._components.abandon()

    async def begin(self, name: str, *steps: Step, tags: tuple[str, ...] = (), **fields: Any) -> Build:
        size = fields.pop("size", Size())
        template, build = self.builds.request(name, tags, size)
        await self.builds.start(template.id, build.id, Recipe(**{"template": "base", "steps": steps, **fields}))
        return self.look(build)

    async def build(self, name: str, *steps: Step, **fields: Any) -> Build:
        return await self.ended(await self.begin(name, *steps, **fields))

    async def made(self, name: str, *steps: Step, **fields: Any) -> Layer:
        """Of a build that has to succeed."""
        build = await self.build(name, *steps, **fields)
        assert build.status is Status.READY, build.reason
        assert build.product is not None
        return build.product

    def look(self, build: Build) -> Build:
        return self.builds.build(build.template_id, build.id)[1]

    async def ended(self, build: Build) -> Build:
        await self.until(lambda: self.look(build).status.final)
        return self.look(build)

    def said(self, build: Build) -> list[str]:
        return [line.message for line in self.builds.log(build)]

    async def until(self, seen: Any, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not seen():
                await asyncio.sleep(0.01)

    async def sandbox(self, template: str) -> Sandbox:
        return await self.sandboxes.create(CreateSandbox(template=template, timeout_s=300))

    def file(self, sandbox: Sandbox, path: str) -> str:
        return (self.path / "fake/sandboxes" / sandbox.id / "root" / path).read_text()

    def snapshots_on_disk(self) -> set[str]:
        return {path.name for path in (self.path / "fake/snapshots").iterdir()}

    def sandboxes_on_disk(self) -> set[str]:
        return {path.name for path in (self.path / "fake/sandboxes").iterdir()}
