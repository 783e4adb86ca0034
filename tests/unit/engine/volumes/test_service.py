from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.volumes.service import Volumes
from sandyard.kit.clock import ManualClock
from sandyard.kit.errors import ConflictError, FullError, InvalidInputError, NotFoundError, SandyardError
from tests.unit.engine.volumes.support import FakeVolumeDriver, MountingSandboxes


class VolumesHarness:
    def __init__(self, path: Path) -> None:
        (path / "volumes").mkdir()
        self.path = path
        self.driver, self.sandboxes, self.clock = FakeVolumeDriver(path / "volumes"), MountingSandboxes(), ManualClock()
        self.database: Database | None = None

    async def start(self, **settings: Any) -> Volumes:
        """Start a new service on the same data, as after a crash."""
        if self.database is not None:
            self.database.close()
        self.database = Database(self.path / "engine.db")
        self.database.open()
        chosen = EngineSettings(data_dir=self.path, disk_reserve_mb=0, **settings)
        volumes = Volumes(self.database, self.driver, chosen, self.sandboxes, clock=self.clock)  # type: ignore[arg-type]
        await volumes.open()
        return volumes

    def rows(self) -> list[tuple[Any, ...]]:
        assert self.database is not None
        return self.database.query("SELECT name, state FROM volumes ORDER BY name")

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[VolumesHarness]:
    volumes_harness = VolumesHarness(tmp_path)
    yield volumes_harness
    if volumes_harness.database is not None:
        volumes_harness.database.close()


async def test_volumes_survive_a_restart(harness: VolumesHarness) -> None:
    volumes = await harness.start()
    created = await volumes.create("data")
    await harness.clock.advance(1)
    await volumes.create("more")
    await volumes.close()
    volumes = await harness.start()
    assert volumes.get(created.id) == created
    assert volumes.find("data") == created
    assert [volume.name for volume in volumes.list()] == ["data", "more"]
    assert volumes.get(created.id).token.reveal() == created.token.reveal()
    await volumes.close()


async def test_volume_names_are_validated_and_unique(harness: VolumesHarness) -> None:
    volumes = await harness.start(max_volumes=2)
    for name in ("", "a b", "a/b", "a.b", "ä", "x" * 129, "a\n"):
        with pytest.raises(InvalidInputError):
            await volumes.create(name)
    results = await asyncio.gather(volumes.create("same"), volumes.create("same"), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["InvalidInputError", "Volume"]
    created = await volumes.create("A_b-1")
    with pytest.raises(FullError, match="2 volumes"):
        await volumes.create("third")
    await volumes.delete(created.id)
    await volumes.create("A_b-1")
    await volumes.close()


async def test_a_volume_in_use_cannot_be_deleted(harness: VolumesHarness) -> None:
    volumes = await harness.start()
    created = await volumes.create("data")
    harness.sandboxes.running[created.id] = [f"i{number}" for number in range(7)]
    with pytest.raises(ConflictError, match="i0, i1, i2, i3, i4 and 2 more"):
        await volumes.delete(created.id)
    assert volumes.get(created.id) == created
    await volumes.close()


async def test_files_are_removed_after_the_last_sandbox_is_gone(harness: VolumesHarness) -> None:
    volumes = await harness.start()
    created = await volumes.create("data")
    harness.sandboxes.removing[created.id] = ["i1"]
    (mounts,) = volumes.resolve([("data", "/data")])
    with volumes.hold([mounts]):
        await volumes.delete(created.id)
        with pytest.raises(NotFoundError):
            volumes.get(created.id)
        assert volumes.find("data") is None
        harness.sandboxes.removing.clear()
        await harness.clock.advance(5)
        await harness.settle()
        assert harness.driver.ids == {created.id}
    await harness.clock.advance(5)
    await harness.settle()
    assert harness.driver.ids == set()
    assert harness.rows() == []
    with pytest.raises(NotFoundError):
        await volumes.delete(created.id)
    await volumes.close()


async def test_a_failed_removal_is_retried_after_a_restart(harness: VolumesHarness) -> None:
    volumes = await harness.start()
    created = await volumes.create("data")
    harness.driver.broken.add("delete")
    await volumes.delete(created.id)
    await harness.settle()
    assert harness.rows() == [("data", "doomed")]
    again = await volumes.create("data")
    await volumes.close()
    harness.driver.broken.clear()
    volumes = await harness.start()
    await harness.settle()
    assert harness.driver.ids == {again.id}
    assert harness.rows() == [("data", "live")]
    await volumes.close()


async def test_a_volume_that_was_never_completely_created_is_removed_on_restart(harness: VolumesHarness) -> None:
    volumes = await harness.start()
    harness.driver.broken.update(("create", "delete"))
    with pytest.raises(SandyardError, match="broken"):
        await volumes.create("data")
    await harness.settle()
    assert harness.rows() == [("data", "making")]
    assert len(harness.driver.ids) == 1
    assert volumes.list() == []
    await volumes.close()
    harness.driver.broken.clear()
    (harness.driver.folder / "nobodys").mkdir()
    volumes = await harness.start()
    await harness.settle()
    assert harness.driver.ids == {"nobodys"}, "a directory without a row must never be removed"
    assert harness.rows() == []
    await volumes.create("data")
    await volumes.close()


async def test_the_files_of_a_volume_come_from_the_driver(harness: VolumesHarness) -> None:
    volumes = await harness.start()
    created = await volumes.create("data")
    assert volumes.get_files(created) == f"files of {created.id}"  # type: ignore[comparison-overlap]
    await volumes.close()
