from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.engine.templates import base, commands, host
from sandyard.engine.templates.folder import TemplateFolder
from tests.integration.engine.templates.harness import publish


@pytest.fixture
def missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "list_missing_requirements", lambda: ["install the package mmdebstrap"])
    monkeypatch.setattr(base, "make_recipe", lambda: type("Recipe", (), {"digest": "b1"}))


@pytest.mark.usefixtures("missing_package")
def test_build_lists_what_is_missing_and_fails(folder: TemplateFolder) -> None:
    result = CliRunner().invoke(commands.template, ["--templates-dir", str(folder.directory), "build", "base"])
    assert result.exit_code == 1
    assert "install the package mmdebstrap" in result.output


@pytest.mark.usefixtures("missing_package")
def test_build_if_possible_lists_what_is_missing_and_succeeds(folder: TemplateFolder) -> None:
    arguments = ["--templates-dir", str(folder.directory), "build", "base", "--if-possible"]
    result = CliRunner().invoke(commands.template, arguments)
    assert result.exit_code == 0
    assert "install the package mmdebstrap" in result.output
    assert "template host instead" in result.output


@pytest.mark.usefixtures("missing_package")
def test_a_template_that_is_built_needs_nothing(folder: TemplateFolder) -> None:
    publish(folder, "base", "b1")
    result = CliRunner().invoke(commands.template, ["--templates-dir", str(folder.directory), "build", "base"])
    assert (result.exit_code, result.output) == (0, "")


def test_list_shows_built_and_missing_templates(folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder, "base", "b1")
    publish(folder, host.NAME, "h1")
    monkeypatch.setenv("SANDYARD_TEMPLATES_DIR", str(folder.directory))
    with folder.open_build_directory("code-interpreter"):
        lines = CliRunner().invoke(commands.template, ["list"]).output.splitlines()
    assert [line[:45].split(maxsplit=1) for line in lines] == [
        ["base", "b1                          "],
        ["code-interpreter", "(being built)               "],
        ["desktop", "(not built)                 "],
        ["docker", "(not built)                 "],
        ["host", "h1                          "],
    ]
    assert "built on first use; run `sandyard template build desktop` to build it now" in lines[2]


def test_build_does_nothing_when_its_parent_engine_is_gone(folder: TemplateFolder) -> None:
    command = [sys.executable, "-m", "sandyard.engine.templates", "--templates-dir", str(folder.directory)]
    result = subprocess.run([*command, "build", "host", "--parent", str(os.getppid())], check=False)
    assert result.returncode == 1
    assert not Path(folder.directory).exists()
