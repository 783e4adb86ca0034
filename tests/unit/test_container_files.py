"""The files in deploy/container fit this version."""

from __future__ import annotations

import re

from sandyard.cli.setup.packages import list_packages
from sandyard.platform.settings import PlatformSettings
from tests.documents import guides
from tests.harness.containerfile import COMPOSE, PATH, read_containerfile
from tests.harness.processes import ROOT


def test_the_image_has_what_an_engine_needs_as_root() -> None:
    assert {package.name for package in list_packages() if "root" in package.users} <= read_containerfile().packages


def test_its_command_is_accepted_by_the_parser() -> None:
    words = read_containerfile().command
    assert words[0] == "sandyard"
    guides.check_sandyard(guides.Command(PATH.name, 1, tuple(words), complete=True))


def test_the_settings_and_files_exist() -> None:
    compose = COMPOSE.read_text()
    names = re.findall(r"SANDYARD_([A-Z_]+)", compose)
    assert names and all(name.lower() in PlatformSettings.model_fields for name in names)
    (built,) = re.findall(r"dockerfile: (\S+)", compose)
    assert ROOT / built == PATH


def test_the_guide_names_every_privilege() -> None:
    guide = (ROOT / "docs" / "operating.md").read_text()
    section = guide.partition("## In a container")[2].partition("\n## ")[0]
    granted = [line for line in ("privileged: true", "cgroup: host", "/dev:/dev") if line in COMPOSE.read_text()]
    assert len(granted) == 3 and all(f"`{line}`" in section for line in granted)
