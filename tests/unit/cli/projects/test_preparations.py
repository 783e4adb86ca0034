"""`sandyard project prepare`: followed to its end, with warnings and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from sandyard.cli.projects import preparations
from tests.unit.cli.server import Reply, Server

MADE: dict[str, Any] = {
    "id": "prp_1",
    "status": "ready",
    "step": "ready",
    "agent": "demo",
    "baseBranch": "main",
    "baseCommit": "4c2f6e0",
    "sources": [".sandyard/setup.sh"],
    "warnings": ["image was\x1b[2J ignored."],
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["project", *arguments])


def test_prepare_waits_until_the_preparation_ends(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparations, "POLL_SECONDS", 0.01)
    server.on(
        "POST", "/projects/prj_1/preparations", Reply(202, {**MADE, "status": "preparing", "step": "checking out"})
    )
    server.on("GET", "/preparations/prp_1", Reply(200, MADE))
    result = run("prepare", "prj_1", "--agent", "demo", "--base", "main")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == MADE
    assert result.stderr == "checking out …\nNote: image was^[[2J ignored.\n"
    assert server.requests[0].json() == {"agent": "demo", "baseBranch": "main"}

    failed = {**MADE, "status": "failed", "error": "It ended with exit code 3.\nIt said: \x1b[2Jwrong", "warnings": []}
    server.on("POST", "/projects/prj_1/preparations", Reply(200, failed))
    result = run("prepare", "prj_1")
    assert (result.exit_code, result.stderr) == (1, "Error: It ended with exit code 3.\nIt said: ^[[2Jwrong\n")


def test_preparations_are_listed_and_deleted(server: Server) -> None:
    server.on("GET", "/projects/prj_1/preparations", Reply(200, {"items": [MADE], "nextCursor": None}))
    server.on("DELETE", "/preparations/prp_1", Reply(204, None))
    result = run("preparations", "prj_1", "-o", "table")
    assert result.exit_code == 0 and "prp_1" in result.stdout and "4c2f6e0" in result.stdout
    assert run("preparations", "prj_1", "--delete", "prp_1").exit_code == 0
    assert server.requests[-1].method == "DELETE"
