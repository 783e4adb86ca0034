"""`sandyard session create --wait` waits for the repository too."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.git import operations
from sandyard.cli.main import cli
from tests.unit.cli.git.answers import SANDBOX, SESSION, operation, told
from tests.unit.cli.server import Reply, Server, events

MADE = {"id": SESSION, "sandboxId": SANDBOX, "projectId": "prj_1"}


@pytest.fixture
def made(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(operations, "LINE_SECONDS", 0.01)
    server.on("GET", "/projects", Reply(200, {"items": [{"id": "prj_1", "name": "website"}], "nextCursor": None}))
    server.on("POST", "/sessions", Reply(201, MADE))
    server.on("GET", f"/sessions/{SESSION}", Reply(200, MADE))
    server.on("GET", f"/sandboxes/{SANDBOX}", Reply(200, {"id": SANDBOX, "status": "running"}))
    return server


def create() -> Result:
    return CliRunner().invoke(cli, ["session", "create", "--project", "website", "--wait"])


def test_the_clone_is_waited_for(made: Server) -> None:
    queued = operation("clone", "queued")
    made.on("GET", "/git/operations", Reply(200, {"items": [queued], "nextCursor": None}))
    made.on(
        "GET",
        "/git/operations/gop_1",
        Reply(200, operation("clone", "running")),
        Reply(200, operation("clone", "running")),
        Reply(200, operation("clone")),
    )
    made.on("GET", "/events", events(told("git.progress", what="receiving", percent=10), told("git.completed")))
    result = create()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == MADE
    assert [request.json() for request in made.asked if request.method == "POST"] == [{"projectId": "prj_1"}]
    assert any(request.path.endswith("/events") for request in made.asked)


def test_a_clone_that_fails(made: Server) -> None:
    failed = operation("clone", "failed", error="The remote refuses the token.", errorCode="remote_refused")
    made.on("GET", "/git/operations", Reply(200, {"items": [failed], "nextCursor": None}))
    result = create()
    assert result.exit_code == 1
    first = result.stderr.splitlines()[0]
    assert first == f"sandyard: Session {SESSION} was created without a checkout: The remote refuses the token."


def test_a_project_without_a_repository(made: Server) -> None:
    made.on("GET", "/git/operations", Reply(200, {"items": [], "nextCursor": None}))
    assert create().exit_code == 0
