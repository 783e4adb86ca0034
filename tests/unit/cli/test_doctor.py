"""`sandyard doctor`: every thing that is missing is named, with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from sandyard.engine import app
from sandyard.engine.contract import Capabilities
from sandyard.kit.errors import ForbiddenError

LIMITS = frozenset(("memory", "cpu", "pids", "disk"))


def examine(monkeypatch: pytest.MonkeyPatch, able: Capabilities | Exception) -> tuple[int, str]:
    async def open_briefly(folder: Path) -> Capabilities:
        assert folder.is_dir()
        if isinstance(able, Exception):
            raise able
        return able

    monkeypatch.setattr(app, "open_briefly", open_briefly)
    result = CliRunner().invoke(cli, ["doctor"])
    return result.exit_code, result.output


def test_a_machine_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = examine(monkeypatch, Capabilities(True, True, "cow", LIMITS, True))
    assert code == 0
    assert said.endswith("Sandboxes can run here.\n")
    for name in ("pause", "copies", "memory limit", "disk limit", "internet"):
        assert f"ok       {name}: " in said


def test_what_is_missing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"disk": "no btrfs here: install btrfs-progs", "suspend": "CRIU is too old", "weather": "it rains"}
    code, said = examine(monkeypatch, Capabilities(True, False, "copy", LIMITS - {"disk"}, False, missing))
    assert code == 0, "sandboxes run all the same"
    for line in (
        "missing  disk limit: no btrfs here: install btrfs-progs",
        "missing  memory to disk: CRIU is too old",
        "missing  copies: by copying what changed",
        "missing  internet: ",
        "missing  weather: it rains",
    ):
        assert line in said


def test_a_machine_without_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = examine(monkeypatch, ForbiddenError("User namespaces are turned off: sysctl user.max_user_namespaces"))
    assert code == 1
    assert "missing  driver: User namespaces are turned off" in said
    assert said.endswith("Sandboxes cannot run here yet.\n")
