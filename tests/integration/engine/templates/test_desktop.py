"""The template that is built when it is first asked for. Nothing is built here; `tests/protocol/clients` uses a real one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.engine.sandboxes.model import TemplateStatus
from sandyard.engine.templates import catalogue, commands, desktop
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion
from tests.integration.engine.templates.test_catalogue import layers, machine_of_the_test, publish, templates

__all__ = ["machine_of_the_test", "templates"]  # fixtures

COMMAND = "`sandyard template build desktop` on the engine's machine"


def built_on(folder: TemplateFolder, below: TemplateVersion, digest: str) -> TemplateVersion:
    with folder.open_build_directory(desktop.NAME) as work:
        (work / ROOTFS).mkdir()
        return folder.publish(work, folder.make_version(desktop.NAME, digest, "a test", {"base": below.version}))


def status(templates: Catalogue) -> TemplateStatus:
    found = templates.resolve("desktop")
    assert found is not None
    assert found in templates.list()
    return found.status


def ask_for(templates: Catalogue) -> str:
    found = templates.resolve("desktop")
    assert found is not None
    assert not found.ready
    return templates.make_ready(found)


@pytest.fixture
def slow_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In place of the program that builds: it says how far it is, and ends as the file `end` says."""
    script, end = tmp_path / "python", tmp_path / "end"
    said = "template desktop: 40% downloading packages"
    script.write_text(f"#!/bin/sh\necho {said!r}\nuntil [ -s {end} ]; do sleep 0.05; done\n. {end}\n")
    script.chmod(0o755)
    monkeypatch.setattr("sandyard.kit.python.PYTHON", str(script))
    yield end
    end.write_text("exit 1")


async def test_it_is_built_when_it_is_first_asked_for(
    folder: TemplateFolder, templates: Catalogue, slow_builder: Path
) -> None:
    below = publish(folder, "base", "b1")
    templates.open()
    assert status(templates) is TemplateStatus.WAITING
    told = ask_for(templates)
    assert told.startswith("is being built")
    assert told.endswith(f"Try again then, or run {COMMAND} to wait for it.")
    assert status(templates) is TemplateStatus.BUILDING
    templates.refresh()
    assert status(templates) is TemplateStatus.BUILDING, "whatever else changes"
    async with asyncio.timeout(20):
        while "(40% downloading packages)" not in ask_for(templates):
            await asyncio.sleep(0.02)
    built = built_on(folder, below, desktop.Recipe(below).digest)
    slow_builder.write_text("exit 0")
    assert templates._desktop_builder is not None
    await templates._desktop_builder
    assert status(templates) is TemplateStatus.READY
    assert layers(templates, "desktop") == (str(built.rootfs), str(below.rootfs))
    found = templates.resolve("desktop")
    assert found is not None
    assert found.cpu_count == min(8, os.cpu_count() or 1)
    assert found.memory_mb is not None
    assert found.memory_mb <= 8192
    assert found.start is None, "clients start the screen themselves"


async def test_a_build_that_fails_is_told_and_not_repeated_by_every_request(
    folder: TemplateFolder, templates: Catalogue, slow_builder: Path
) -> None:
    below = publish(folder, "base", "b1")
    templates.open()
    ask_for(templates)
    slow_builder.write_text("echo 'E: no route to the archive.'; exit 1")
    first = templates._desktop_builder
    assert first is not None
    await first
    assert ask_for(templates) == f"could not be built: E: no route to the archive. Run {COMMAND} to try again."
    assert templates._desktop_builder is first
    assert status(templates) is TemplateStatus.ERROR
    built_on(folder, below, "by-hand")
    templates.refresh()
    assert status(templates) is TemplateStatus.READY


async def test_a_build_that_cannot_begin_is_told(
    folder: TemplateFolder, templates: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, "base", "b1")
    templates.open()
    monkeypatch.setattr("sandyard.kit.python.PYTHON", str(tmp_path / "absent"))
    ask_for(templates)
    assert templates._desktop_builder is not None
    await templates._desktop_builder
    assert "could not start the build" in ask_for(templates)
    assert status(templates) is TemplateStatus.ERROR


async def test_where_it_cannot_be_built_or_shall_not_be(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates.open()
    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "missing_for_base", lambda: ["install the package mmdebstrap"])
        assert ask_for(templates) == f"could not be built: install the package mmdebstrap. Run {COMMAND} to try again."
    unwilling = Catalogue(folder.directory, build_desktop=False)
    unwilling.open()
    assert ask_for(unwilling) == f"is not built. Run {COMMAND} to build it."
    assert unwilling._desktop_builder is None
    built_on(folder, publish(folder, "base", "b1"), "by-hand")
    publish(folder, "base", "b2")
    assert not await unwilling._is_out_of_date(desktop.NAME), "built by hand only"


async def test_closing_ends_a_build_that_was_asked_for(
    folder: TemplateFolder, templates: Catalogue, slow_builder: Path
) -> None:
    publish(folder, "base", "b1")
    templates.open()
    ask_for(templates)
    async with asyncio.timeout(20):
        while not templates._progress:
            await asyncio.sleep(0.02)
        await templates.close()
    assert templates._desktop_builder is not None
    assert templates._desktop_builder.cancelled()


def test_only_one_that_was_built_is_kept_up_to_date(folder: TemplateFolder) -> None:
    assert not desktop.is_stale(folder)
    below = publish(folder, "base", "b1")
    assert not desktop.is_stale(folder), "nobody has asked for it"
    built_on(folder, below, desktop.Recipe(below).digest)
    assert not desktop.is_stale(folder)
    publish(folder, "base", "b2")
    assert desktop.is_stale(folder)


def test_commands(folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ["--templates-dir", str(folder.directory), "build", "desktop"]
    run = CliRunner().invoke
    with monkeypatch.context() as patch:
        patch.setattr(commands, "missing_for_base", lambda: ["install the package mmdebstrap"])
        done = run(commands.template, place)
        assert (done.exit_code, "install the package mmdebstrap" in done.output) == (1, True)
    monkeypatch.setattr(commands, "missing_for_base", list)
    done = run(commands.template, [*place, "--if-possible"])
    assert (done.exit_code, "Build base first" in done.output) == (0, True)
    assert "The engine will serve no template desktop." in done.output
    below = publish(folder, "base", "b1")
    built_on(folder, below, desktop.Recipe(below).digest)
    done = run(commands.template, place)
    assert (done.exit_code, done.output) == (0, "")
