from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.engine.templates import base, commands, host
from sandyard.engine.templates.folder import TemplateFolder
from tests.integration.engine.templates.test_catalogue import publish


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "missing_for_base", lambda: ["install the package mmdebstrap"])
    monkeypatch.setattr(base, "recipe", lambda: type("Recipe", (), {"digest": "b1"}))


@pytest.mark.usefixtures("lacking")
def test_what_is_missing_is_listed_and_fails(folder: TemplateFolder) -> None:
    done = CliRunner().invoke(commands.template, ["--templates-dir", str(folder.directory), "build", "base"])
    assert done.exit_code == 1
    assert "install the package mmdebstrap" in done.output


@pytest.mark.usefixtures("lacking")
def test_if_possible_says_so_and_goes_on(folder: TemplateFolder) -> None:
    arguments = ["--templates-dir", str(folder.directory), "build", "base", "--if-possible"]
    done = CliRunner().invoke(commands.template, arguments)
    assert done.exit_code == 0
    assert "install the package mmdebstrap" in done.output
    assert "template host instead" in done.output


@pytest.mark.usefixtures("lacking")
def test_what_is_built_needs_nothing(folder: TemplateFolder) -> None:
    publish(folder, "base", "b1")
    done = CliRunner().invoke(commands.template, ["--templates-dir", str(folder.directory), "build", "base"])
    assert (done.exit_code, done.output) == (0, "")


def test_list_shows_what_is_there_and_what_is_not(folder: TemplateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(folder, "base", "b1")
    publish(folder, host.NAME, "h1")
    monkeypatch.setenv("SANDYARD_TEMPLATES_DIR", str(folder.directory))
    with folder.open_build_directory("code-interpreter"):
        shown = CliRunner().invoke(commands.template, ["list"]).output.splitlines()
    assert [line[:45].split(maxsplit=1) for line in shown] == [
        ["base", "b1                          "],
        ["code-interpreter", "(being built)               "],
        ["desktop", "(not built)                 "],
        ["host", "h1                          "],
    ]
    assert "built on first use; run `sandyard template build desktop` to build it now" in shown[2]


def test_a_builder_whose_engine_is_gone_builds_nothing(folder: TemplateFolder) -> None:
    command = [sys.executable, "-m", "sandyard.engine.templates", "--templates-dir", str(folder.directory)]
    done = subprocess.run([*command, "build", "host", "--parent", str(os.getppid())], check=False)
    assert done.returncode == 1
    assert not Path(folder.directory).exists()
