"""`sandyard setup`: what is missing, and the command that installs it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from sandyard.cli.setup import command, packages
from sandyard.cli.setup.packages import SystemPackage, list_packages
from sandyard.cli.up import command as up

ROOT = Path(__file__).parents[4]
MISSING = (
    SystemPackage("first", "copies", lambda: False),
    SystemPackage("second", "networks", lambda: False),
    SystemPackage("third", "nothing", lambda: True),
    SystemPackage("fourth", "users", lambda: False, ("other",)),
)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, 0)


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch, 1000)


def prepare(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(packages, "list_packages", lambda: MISSING)
    monkeypatch.setattr(packages.shutil, "which", lambda name: f"/usr/bin/{name}")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["setup", *arguments])
    return result.exit_code, result.output


def test_a_checkout_installs_the_same_packages() -> None:
    script = (ROOT / "scripts" / "system-packages").read_text()
    assert {package.name for package in list_packages()} <= set(re.findall(r"[\w.-]+", script))


@pytest.mark.usefixtures("as_user")
def test_without_root_the_command_is_printed() -> None:
    wanted = "sudo apt-get install --yes --no-install-recommends first second fourth"
    assert run("--print") == (0, f"first: copies\nsecond: networks\nfourth: users\n{wanted}\n")
    code, output = run()
    assert code == 1 and output.endswith(f"Installing packages requires root. Run: {wanted}\n")
    code, output = run("gvisor")
    assert code == 1 and re.search(r"Run: sudo /\S*/sandyard setup gvisor\n$", output)


@pytest.mark.usefixtures("as_root")
def test_root_installs_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []

    class Done:
        returncode = 0

    def install(arguments: Sequence[str], **_: object) -> Done:
        commands.append(arguments)
        return Done()

    monkeypatch.setattr(command.subprocess, "run", install)
    code, output = run()
    assert code == 0 and "Restart Sandyard" in output
    assert [words[:2] for words in commands] == [["apt-get", "update"], ["apt-get", "install"]]
    assert commands[1][-2:] == ["first", "second"]
    Done.returncode = 100
    code, output = run()
    assert code == 1 and "apt-get update -qq` failed" in output


@pytest.mark.usefixtures("as_root")
def test_nothing_is_done_if_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "list_packages", lambda: MISSING[2:3])
    assert run() == (0, "No package is missing.\n")


@pytest.mark.usefixtures("as_root")
def test_up_names_what_root_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    up.announce_missing_parts()
    assert capsys.readouterr().out == (
        "Missing packages: first (copies); second (networks).\n"
        "To install them: apt-get install --yes --no-install-recommends first second, then start Sandyard again.\n"
    )


@pytest.mark.usefixtures("as_user")
def test_up_says_what_needs_root(capsys: pytest.CaptureFixture[str]) -> None:
    up.announce_missing_parts()
    printed = capsys.readouterr().out
    assert re.search(r"^Without root, .* no network of their own.*: sudo /\S*/sandyard up;", printed)
    assert "sudo apt-get install --yes --no-install-recommends first second fourth, then" in printed


@pytest.mark.parametrize("name", command.PROGRAMS)
def test_the_programs_that_install_are_part_of_the_package(name: str) -> None:
    code, output = run(name, "--print")
    assert code == 0 and output.startswith("#!/usr/bin/env bash\n")
