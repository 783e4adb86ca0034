"""Which versions of templates are removed: only those that no engine of the machine can still need."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from sandyard.engine.store.database import Database
from sandyard.engine.templates.folder import MANIFEST, ROOTFS, TemplateFolder
from sandyard.engine.templates.unused import UnusedVersions, register_engine

DAY = 24 * 3600
KEEP_S = 7 * DAY


class Machine:
    """A folder of templates, and engines that use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = TemplateFolder(path / "templates")
        self.folder.prepare()

    def add_version(self, name: str, version: str, age: float, description: str = "", **details: str) -> str:
        path = self.folder.directory / name / version
        (path / ROOTFS).mkdir(parents=True)
        manifest = {"created_at": time.time() - age, "description": description, "details": details}
        (path / MANIFEST).write_text(json.dumps(manifest))
        return f"{name}/{version}"

    def add_engine(self, name: str, *layers: str, registered: float = 30 * DAY) -> Path:
        """Add an engine with a sandbox on these layers, registered that long ago."""
        data = self.path / name
        data.mkdir()
        database = Database(data / "engine.db")
        database.open()
        if layers:
            database.execute(
                "INSERT INTO snapshots (id, name, tag, created_at, deleted, spec) VALUES ('s1', NULL, '', 0, 0, ?)",
                (json.dumps({"layers": layers}),),
            )
        database.close()
        register_engine(self.folder, data)
        since = self.folder.directory / ".engines-since"
        os.utime(since, (time.time() - registered,) * 2)
        return data

    def find(self, *used: str) -> list[str]:
        return [f"{version.name}/{version.version}" for version in self._unused(used).find()]

    def remove(self, *used: str) -> list[str]:
        """Remove what is unused, and return what is left."""
        unused = self._unused(used)
        unused.remove(unused.find())
        return sorted(f"{version.name}/{version.version}" for version in unused.list_all())

    def _unused(self, used: Collection[str]) -> UnusedVersions:
        return UnusedVersions(self.folder, KEEP_S, lambda layer: layer in used)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_version_that_was_replaced_long_ago_is_removed_with_its_trust_layer(machine: Machine) -> None:
    machine.add_engine("one")
    old = machine.add_version("base", "aa", 40 * DAY)
    trust = machine.add_version("trust", "t1", 40 * DAY, "for base aa")
    machine.add_version("trust", "t2", 20 * DAY, "for base bb")
    machine.add_version("base", "bb", 20 * DAY)
    assert machine.find() == [old, trust]
    assert machine.remove() == ["base/bb", "trust/t2"]


def test_a_version_that_was_replaced_a_short_time_ago_is_kept(machine: Machine) -> None:
    machine.add_engine("one")
    machine.add_version("base", "aa", 400 * DAY)
    machine.add_version("base", "bb", 6 * DAY)
    assert machine.find() == []


def test_a_version_that_a_newer_template_is_built_on_is_kept(machine: Machine) -> None:
    machine.add_engine("one")
    machine.add_version("base", "aa", 40 * DAY)
    machine.add_version("docker", "dd", 30 * DAY, base="aa")
    machine.add_version("base", "bb", 20 * DAY)
    assert machine.find() == []


@pytest.mark.parametrize("record", ["tpl:base/aa", "{templates}/base/aa/rootfs"])
def test_a_version_that_another_engine_mentions_is_kept(machine: Machine, record: str) -> None:
    machine.add_engine("one")
    machine.add_engine("two", "snap:s9", record.format(templates=machine.folder.directory))
    machine.add_version("base", "aa", 40 * DAY)
    machine.add_version("base", "bb", 20 * DAY)
    assert machine.find() == []


def test_a_version_that_this_engine_uses_is_kept_before_it_is_recorded(machine: Machine) -> None:
    machine.add_engine("one")
    machine.add_version("base", "aa", 40 * DAY)
    machine.add_version("base", "bb", 20 * DAY)
    assert machine.find("tpl:base/aa") == []


def test_nothing_is_removed_while_the_records_of_an_engine_cannot_be_read(machine: Machine) -> None:
    machine.add_engine("one")
    other = machine.add_engine("two")
    old = machine.add_version("base", "aa", 40 * DAY)
    machine.add_version("base", "bb", 20 * DAY)
    away = other.rename(machine.path / "unmounted")
    assert machine.find() == []
    away.rename(other)
    assert machine.find() == [old]
    (other / "engine.db").write_bytes(b"damaged" * 1000)
    assert machine.find() == []


def test_nothing_is_removed_before_every_engine_had_time_to_register(machine: Machine) -> None:
    machine.add_version("base", "aa", 40 * DAY)
    machine.add_version("base", "bb", 20 * DAY)
    assert machine.find() == []
    machine.add_engine("one", registered=3600)
    assert machine.find() == []
