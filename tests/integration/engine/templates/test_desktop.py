"""The desktop template, which is built on the first request. Nothing is built here; `tests/protocol/clients` uses a real one."""

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
from tests.integration.engine.templates.harness import get_layers, publish

pytestmark = pytest.mark.usefixtures("fake_machine")

COMMAND = "`sandyard template build desktop` on the engine's machine"


def publish_desktop(folder: TemplateFolder, base_version: TemplateVersion, digest: str) -> TemplateVersion:
    with folder.open_build_directory(desktop.NAME) as work:
        (work / ROOTFS).mkdir()
        return folder.publish(work, folder.make_version(desktop.NAME, digest, "a test", {"base": base_version.version}))


def status(templates: Catalogue) -> TemplateStatus:
    found = templates.resolve("desktop")
    assert found is not None
    assert found in templates.list()
    return found.status


def request_desktop(templates: Catalogue) -> str:
    found = templates.resolve("desktop")
    assert found is not None
    assert not found.ready
    return templates.make_ready(found)


@pytest.fixture
def slow_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replace the build program by a script that prints its progress and then runs the commands in the file `end`."""
    script, end = tmp_path / "python", tmp_path / "end"
    progress = "template desktop: 40% downloading packages"
    script.write_text(f"#!/bin/sh\necho {progress!r}\nuntil [ -s {end} ]; do sleep 0.05; done\n. {end}\n")
    script.chmod(0o755)
    monkeypatch.setattr("sandyard.kit.python.PYTHON", str(script))
    yield end
    end.write_text("exit 1")


async def test_the_desktop_is_built_on_the_first_request(
    folder: TemplateFolder, templates: Catalogue, slow_builder: Path
) -> None:
    base_version = publish(folder, "base", "b1")
    templates.open()
    assert status(templates) is TemplateStatus.WAITING
    message = request_desktop(templates)
    assert message.startswith("is being built")
    assert message.endswith(f"Try again then, or run {COMMAND} to wait for it.")
    assert status(templates) is TemplateStatus.BUILDING
    templates.refresh()
    assert status(templates) is TemplateStatus.BUILDING, "a refresh must not change the status"
    async with asyncio.timeout(20):
        while "(40% downloading packages)" not in request_desktop(templates):
            await asyncio.sleep(0.02)
    built = publish_desktop(folder, base_version, desktop.LAYER.compute_digest(base_version))
    slow_builder.write_text("exit 0")
    await templates.wait_for_builds()
    assert status(templates) is TemplateStatus.READY
    assert get_layers(templates, "desktop") == (folder.name_layer(built), folder.name_layer(base_version))
    found = templates.resolve("desktop")
    assert found is not None
    assert found.cpu_count == min(8, os.cpu_count() or 1)
    assert found.memory_mb is not None
    assert found.memory_mb <= 8192
    assert found.start is None, "clients start the display themselves"


async def test_a_failed_build_is_reported_and_not_repeated_by_every_request(
    folder: TemplateFolder, templates: Catalogue, slow_builder: Path
) -> None:
    base_version = publish(folder, "base", "b1")
    templates.open()
    request_desktop(templates)
    slow_builder.write_text("echo 'E: no route to the archive.'; exit 1")
    await templates.wait_for_builds()
    assert request_desktop(templates) == f"could not be built: E: no route to the archive. Run {COMMAND} to try again."
    assert status(templates) is TemplateStatus.ERROR, "no other build was started"
    publish_desktop(folder, base_version, "by-hand")
    templates.refresh()
    assert status(templates) is TemplateStatus.READY


async def test_a_build_that_cannot_start_is_reported(
    folder: TemplateFolder, templates: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, "base", "b1")
    templates.open()
    monkeypatch.setattr("sandyard.kit.python.PYTHON", str(tmp_path / "absent"))
    request_desktop(templates)
    await templates.wait_for_builds()
    assert "could not start the build" in request_desktop(templates)
    assert status(templates) is TemplateStatus.ERROR


async def test_a_desktop_that_cannot_or_must_not_be_built_is_explained(
    folder: TemplateFolder, templates: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates.open()
    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "list_missing_requirements", lambda: ["install the package mmdebstrap"])
        assert (
            request_desktop(templates)
            == f"could not be built: install the package mmdebstrap. Run {COMMAND} to try again."
        )
    manual_only = Catalogue(folder.directory, build_desktop=False)
    manual_only.open()
    assert request_desktop(manual_only) == f"is not built. Run {COMMAND} to build it."
    assert status(manual_only) is TemplateStatus.WAITING
    publish_desktop(folder, publish(folder, "base", "b1"), "by-hand")
    publish(folder, "base", "b2")
    builds: list[str] = []

    async def build(name: str, *options: str) -> str:
        builds.append(name)
        return "nothing is built here"

    monkeypatch.setattr(manual_only, "build", build)
    await manual_only.start()
    await manual_only.wait_for_builds()
    await manual_only.close()
    assert desktop.NAME not in builds, "it is only built by hand"


async def test_close_cancels_a_requested_build(
    folder: TemplateFolder, templates: Catalogue, slow_builder: Path
) -> None:
    publish(folder, "base", "b1")
    templates.open()
    request_desktop(templates)
    async with asyncio.timeout(20):
        while "(40% downloading packages)" not in request_desktop(templates):
            await asyncio.sleep(0.02)
        await templates.close()
    templates.refresh()
    assert status(templates) is TemplateStatus.WAITING, "it neither completed nor failed"


def test_only_a_desktop_that_was_built_can_be_stale(folder: TemplateFolder) -> None:
    assert not desktop.LAYER.is_stale(folder)
    base_version = publish(folder, "base", "b1")
    assert not desktop.LAYER.is_stale(folder), "nobody has requested it"
    publish_desktop(folder, base_version, desktop.LAYER.compute_digest(base_version))
    assert not desktop.LAYER.is_stale(folder)
    publish(folder, "base", "b2")
    assert desktop.LAYER.is_stale(folder)


def test_the_build_command_reports_what_is_missing(folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--templates-dir", str(folder.directory), "build", "desktop"]
    run = CliRunner().invoke
    with monkeypatch.context() as patch:
        patch.setattr(commands, "list_missing_requirements", lambda: ["install the package mmdebstrap"])
        result = run(commands.template, arguments)
        assert (result.exit_code, "install the package mmdebstrap" in result.output) == (1, True)
    monkeypatch.setattr(commands, "list_missing_requirements", list)
    result = run(commands.template, [*arguments, "--if-possible"])
    assert (result.exit_code, "Build base first" in result.output) == (0, True)
    assert "The engine will serve no template desktop." in result.output
    base_version = publish(folder, "base", "b1")
    publish_desktop(folder, base_version, desktop.LAYER.compute_digest(base_version))
    result = run(commands.template, arguments)
    assert (result.exit_code, result.output) == (0, "")
