"""`sandyard session create --wait` waits for the repository too."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.git import operations
from sandyard.cli.main import cli
from tests.unit.cli.git.answers import SANDBOX, SESSION, operation, operation_event
from tests.unit.cli.server import Reply, Server, events

CREATED = {"id": SESSION, "sandboxId": SANDBOX, "projectId": "prj_1"}


@pytest.fixture
def session_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(operations, "POLL_SECONDS", 0.01)
    server.on("GET", "/projects", Reply(200, {"items": [{"id": "prj_1", "name": "website"}], "nextCursor": None}))
    server.on("POST", "/sessions", Reply(201, CREATED))
    server.on("GET", f"/sessions/{SESSION}", Reply(200, CREATED))
    server.on("GET", f"/sandboxes/{SANDBOX}", Reply(200, {"id": SANDBOX, "status": "running"}))
    return server


def create() -> Result:
    return CliRunner().invoke(cli, ["session", "create", "--project", "website", "--wait"])


def test_it_waits_for_the_clone(session_server: Server) -> None:
    queued = operation("clone", "queued")
    session_server.on("GET", "/git/operations", Reply(200, {"items": [queued], "nextCursor": None}))
    session_server.on(
        "GET",
        "/git/operations/gop_1",
        Reply(200, operation("clone", "running")),
        Reply(200, operation("clone", "running")),
        Reply(200, operation("clone")),
    )
    session_server.on(
        "GET",
        "/events",
        events(operation_event("git.progress", what="receiving", percent=10), operation_event("git.completed")),
    )
    result = create()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == CREATED
    assert [request.json() for request in session_server.requests if request.method == "POST"] == [
        {"projectId": "prj_1"}
    ]
    assert any(request.path.endswith("/events") for request in session_server.requests)


def test_a_failed_clone_is_reported(session_server: Server) -> None:
    failed = operation("clone", "failed", error="The remote refuses the token.", errorCode="remote_refused")
    session_server.on("GET", "/git/operations", Reply(200, {"items": [failed], "nextCursor": None}))
    result = create()
    assert result.exit_code == 1
    first = result.stderr.splitlines()[0]
    assert first == f"sandyard: Session {SESSION} was created without a checkout: The remote refuses the token."


def test_a_project_without_a_repository_needs_no_clone(session_server: Server) -> None:
    session_server.on("GET", "/git/operations", Reply(200, {"items": [], "nextCursor": None}))
    assert create().exit_code == 0
