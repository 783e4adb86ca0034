"""The docker template, which is built on the first request. Nothing is built here; `tests/protocol/test_docker.py` uses a real one."""

from __future__ import annotations

import pytest

from sandyard.engine.sandboxes.model import TemplateStatus
from sandyard.engine.templates import desktop, docker
from sandyard.engine.templates.catalogue import Catalogue
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder
from tests.integration.engine.templates.harness import get_layers, publish

pytestmark = pytest.mark.usefixtures("fake_machine")


def test_its_sandboxes_may_run_containers_and_start_docker(folder: TemplateFolder, templates: Catalogue) -> None:
    base_version = publish(folder, "base", "b1")
    with folder.open_build_directory(docker.NAME) as work:
        (work / ROOTFS).mkdir()
        details = {"base": base_version.version}
        version = folder.publish(work, folder.make_version(docker.NAME, "d1", "a test", details))
    templates.open()
    found = templates.resolve("docker")
    assert found is not None
    assert found.ready
    assert found.containers is True
    assert found.start == docker.START
    assert found.can_be_overridden, "the name was free in earlier releases"
    assert get_layers(templates, "docker")[-2:] == (folder.name_layer(version), folder.name_layer(base_version))
    assert all(candidate.containers is None for candidate in templates.list() if candidate is not found)


async def test_templates_that_are_built_on_first_use_do_not_depend_on_each_other(folder: TemplateFolder) -> None:
    publish(folder, "base", "b1")
    catalogue = Catalogue(folder.directory, carry_host_trust=False, build_docker=False)
    catalogue.open()
    found = catalogue.resolve("docker")
    assert found is not None
    assert (found.status, found.containers) == (TemplateStatus.WAITING, True)
    message = catalogue.make_ready(found)
    assert message == "is not built. Run `sandyard template build docker` on the engine's machine to build it."
    other = catalogue.resolve(desktop.NAME)
    assert other is not None
    assert other.status is TemplateStatus.WAITING
