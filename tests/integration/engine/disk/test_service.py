"""The engine reports its disk use, and removes what is not needed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandyard.engine.builds.files import Archives
from sandyard.engine.contract import DiskReport
from sandyard.engine.disk.service import DiskEntry, EngineDisk
from sandyard.engine.images.service import Images, Options
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.templates.folder import SIZE, TemplateFolder
from sandyard.kit.disk_usage import measure
from tests.unit.engine.sandboxes.harness import SandboxesHarness

MIB = 1 << 20
OLD = time.time() - 30 * 24 * 3600


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SandboxesHarness]:
    harness = SandboxesHarness(tmp_path, templates_dir=tmp_path / "templates")
    (tmp_path / "templates").mkdir()
    await harness.start()
    yield harness
    await harness.stop()


class Disk:
    """The disk of an engine with one image layer in use, an old and a new one that are not, and uploaded files."""

    def __init__(self, harness: SandboxesHarness) -> None:
        data = DataDir(harness.path)
        self.images = Images(data.images, Options())
        self.images.prepare()
        self.used, self.old, self.new = (self._add_layer(name) for name in ("used", "old", "new"))
        os.utime(self.new / "layer.json")
        archives = Archives(data.uploads, harness.database, limit_mb=100, kept_mb=2, reserve_mb=0)
        archives.open()
        for number in range(4):
            path = data.uploads / f"{number:064}"
            path.write_bytes(bytes(MIB))
            os.utime(path, (OLD + number, OLD + number))
        builds = SimpleNamespace(archives=archives, cache=SimpleNamespace(shrink=lambda: 0))
        self.service = EngineDisk(
            harness.settings,
            data,
            sandboxes=harness.service,
            images=self.images,
            builds=builds,  # type: ignore[arg-type]
            layers=None,
            uses_layer=lambda layer: "used" in layer,
        )

    def _add_layer(self, name: str) -> Path:
        path = self.images.layer_folder.folder / "layers" / f"{name}.1"
        (path / "fs").mkdir(parents=True)
        (path / "fs" / "file").write_bytes(os.urandom(MIB))
        (path / "layer.json").write_text(json.dumps({}))
        os.utime(path / "layer.json", (OLD, OLD))
        return path

    async def read(self) -> dict[str, DiskEntry]:
        return {entry.kind: entry for entry in (await self.service.read()).entries}


async def test_only_what_nothing_uses_and_nobody_requested_recently_is_removed(harness: SandboxesHarness) -> None:
    disk = Disk(harness)
    before = await disk.read()
    assert before["images"].count == 3
    assert before["images"].removable == 1
    assert MIB <= before["images"].removable_bytes < 1.1 * MIB
    assert before["uploads"].removable == 2
    assert before["uploads"].removable_bytes == 2 * MIB
    assert before["images"].oldest_at == pytest.approx(OLD)
    removed = {entry.kind: entry for entry in (await disk.service.free()).entries}
    assert (removed["images"].removable, removed["uploads"].removable) == (1, 2)
    assert removed["images"].removable_bytes == before["images"].removable_bytes
    assert [disk.used.exists(), disk.old.exists(), disk.new.exists()] == [True, False, True]
    after = await disk.read()
    assert (after["images"].removable, after["uploads"].removable) == (0, 0)
    assert after["uploads"].count == 2


async def test_many_requests_at_once_measure_once(harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would otherwise take a thread of the engine for as long as it takes."""
    disk = Disk(harness)
    driver, measured = harness.service.components.calls.driver, 0
    measure_disk = driver.measure_disk

    async def count() -> DiskReport:
        nonlocal measured
        measured += 1
        return await measure_disk()

    monkeypatch.setattr(driver, "measure_disk", count)
    await asyncio.gather(*(disk.service.read() for _ in range(20)))
    assert measured == 1
    await disk.service.read()
    assert measured == 2


async def test_the_sizes_are_those_of_the_data_directory(harness: SandboxesHarness) -> None:
    """Every file is in one entry, and in no other."""
    disk = Disk(harness)
    found = await disk.read()
    own = sum(entry.bytes for kind, entry in found.items() if kind not in ("templates", "sandboxes"))
    assert own == pytest.approx(measure(harness.path) - measure(harness.settings.templates_dir), abs=64 << 10)
    assert found["sandboxes"].bytes == 1000  # as the driver says


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(MIB))
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    assert MIB <= measure(tmp_path) < 1.1 * MIB
    assert measure(tmp_path / "gone") == 0


async def test_the_files_of_a_template_are_counted_once(harness: SandboxesHarness) -> None:
    """A version can have hundreds of thousands of files, and never changes."""
    folder = TemplateFolder(harness.settings.templates_dir)
    published = []
    for name in ("base", "desktop"):
        with folder.open_build_directory(name) as work:
            (work / "rootfs").mkdir()
            (work / "rootfs" / "file").write_bytes(os.urandom(MIB))
            published.append(folder.publish(work, folder.make_version(name, "recipe", "", {})))
    (published[1].path / SIZE).unlink()  # as an earlier release published it
    disk = Disk(harness)
    first = (await disk.read())["templates"]
    assert 2 * MIB <= first.bytes < 2.1 * MIB
    for version in published:
        (version.rootfs / "file").unlink()
    assert (await disk.read())["templates"] == first
    (folder.directory / "base" / ".building-1").mkdir()
    (folder.directory / "base" / ".building-1" / "file").write_bytes(os.urandom(MIB))
    assert MIB <= (await disk.read())["templates"].bytes - first.bytes < 1.1 * MIB
