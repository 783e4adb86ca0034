"""`sandyard gc`: shows first, removes only without --dry-run."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server

STATE: dict[str, Any] = {
    "entries": [
        {
            "place": "engine",
            "kind": "templates",
            "bytes": 3 << 30,
            "count": 5,
            "oldestAt": "2026-01-31T10:00:00.000Z",
            "removable": 2,
            "removableBytes": 1 << 30,
        },
        {
            "place": "platform",
            "kind": "preparations",
            "bytes": None,
            "count": 4,
            "oldestAt": None,
            "removable": 0,
            "removableBytes": None,
        },
    ],
    "rooms": [{"place": "engine", "path": "/data", "free": 10 << 30, "total": 100 << 30}],
    "engineError": None,
}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["gc", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_dry_run_changes_nothing(server: Server) -> None:
    server.on("GET", "/disk", Reply(200, STATE))
    shown = run("--dry-run")
    assert "versions of templates" in shown and "2 (1.0 GiB)" in shown
    assert "`sandyard gc` would remove 1.0 GiB." in shown
    assert [request.method for request in server.requests] == ["GET"]


def test_it_says_what_was_removed_and_what_is_free(server: Server) -> None:
    server.on("POST", "/disk/free", Reply(200, STATE))
    shown = run()
    assert "Removed versions of templates: 2, 1.0 GiB" in shown
    assert "preparations" not in shown
    assert "/data: 10.0 GiB free of 100 GiB" in shown


def test_it_says_if_the_engine_did_not_answer(server: Server) -> None:
    server.on("POST", "/disk/free", Reply(200, {**STATE, "entries": [], "engineError": "The engine is away."}))
    shown = run()
    assert "There was nothing to remove." in shown and "The engine's data is not included: The engine is away." in shown
