"""The isolation level of a sandbox in the output of `sandbox show` and `session create --wait`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server

SANDBOX = {"id": "sbx_1", "status": "running", "template": "base", "isolation": "gvisor"}
SESSION = {"id": "ses_1", "title": "Fix it", "sandboxId": "sbx_1"}


@pytest.mark.parametrize("isolation", ["gvisor", None])
@pytest.mark.parametrize("command", [["sandbox", "show", "sbx_1"], ["session", "create", "--wait"]])
def test_isolation_level_is_shown_if_known(server: Server, command: list[str], isolation: str | None) -> None:
    sandbox = {**SANDBOX, "isolation": isolation}
    server.on("GET", "/sandboxes/sbx_1", Reply(200, sandbox))
    server.on("POST", "/sessions", Reply(201, SESSION))
    server.on("GET", "/sessions/ses_1", Reply(200, {**SESSION, "sandbox": sandbox}))
    server.on("GET", "/git/operations", Reply(200, {"items": [], "nextCursor": None}))
    result = CliRunner().invoke(cli, [*command, "-o", "table"])
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["status", "running"] in rows
    assert (["isolation", "gvisor"] in rows) == (isolation is not None)
    assert ("isolation" in result.stdout) == (isolation is not None)
