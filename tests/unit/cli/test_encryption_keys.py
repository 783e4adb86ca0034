"""`sandyard encryption-key`: rotates only when asked to, and says what could not be read."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server

STATE: dict[str, Any] = {
    "items": [
        {"place": "platform", "id": "aa11", "values": 3, "current": True},
        {"place": "platform", "id": "bb22", "values": 0, "current": False},
    ],
    "unreadable": 2,
    "changedAt": "2026-01-31T10:00:00.000Z",
    "engineError": "The engine is away.",
}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["encryption-key", *arguments, "-o", "table"])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_list_changes_nothing(server: Server) -> None:
    server.on("GET", "/encryption-keys", Reply(200, STATE))
    shown = run("list")
    assert "aa11" in shown and "bb22" in shown
    assert "2 values cannot be decrypted" in shown and "The engine is away." in shown
    assert [request.method for request in server.requests] == ["GET"]


def test_a_rotation_says_when_the_old_keys_are_removed(server: Server) -> None:
    server.on("POST", "/encryption-keys/rotate", Reply(200, {**STATE, "unreadable": 0, "engineError": None}))
    shown = run("rotate")
    assert "The old ones are removed a day from now." in shown
    assert "cannot be decrypted" not in shown and "engine's keys" not in shown
