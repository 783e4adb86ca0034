"""`sandyard pr`: opened from a session, found by number or session, shown with checks and reviews."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.unit.cli.git.answers import SANDBOX, SESSION, session
from tests.unit.cli.server import Reply, Server, problem

PULL: dict[str, Any] = {
    "id": "pul_1",
    "projectId": "prj_1",
    "sessionId": SESSION,
    "taskId": None,
    "forge": "github",
    "number": 7,
    "url": "https://example.org/o/website/pull/7",
    "title": "fix: the login",
    "state": "open",
    "draft": True,
    "headBranch": "task-1",
    "baseBranch": "main",
    "headCommit": "a" * 40,
    "mergeable": None,
    "review": "changes_requested",
    "checks": "failing",
    "detail": {
        "labels": [],
        "runs": [
            {"name": "lint", "status": "completed", "conclusion": "success", "url": None, "summary": None},
            {
                "name": "unit",
                "status": "completed",
                "conclusion": "failure",
                "url": "https://ci.example.org/1",
                "summary": "2 fail",
            },
            {"name": "deploy", "status": "in_progress", "conclusion": None},
        ],
        "remarks": [
            {
                "kind": "review",
                "author": "maria",
                "text": "Please\x1b[2J mend.\nThanks",
                "state": "CHANGES_REQUESTED",
                "path": None,
            },
            {"kind": "line_comment", "author": "bob", "text": "Why?", "path": "a.py", "line": 3, "state": None},
            {"kind": "check", "author": "ci", "text": "2 fail"},
        ],
    },
}
SUMMARY = "#7 fix: the login (open, draft): task-1 into main, checks failing, review changes requested"


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("GET", f"/sessions/{SESSION}", session())
    server.on("GET", f"/sessions/{SESSION}/pull-request", Reply(200, PULL))
    server.on("GET", f"/sandboxes/{SANDBOX}", Reply(200, {"id": SANDBOX, "sessionId": SESSION}))
    server.on("GET", "/github/pull-requests/7", Reply(200, PULL))
    server.on("GET", "/tasks/tsk_1/pull-request", Reply(200, PULL))
    server.on("POST", "/github/pull-requests", Reply(201, PULL))
    return server


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["pr", *arguments], input=stdin)


def test_open_prints_only_the_url_to_standard_output(ready: Server, tmp_path: Path) -> None:
    result = run(
        "open", SESSION, "--title", "fix: it", "--draft", "--label", "a", "--label", "b", "--reviewer", "maria"
    )
    assert (result.exit_code, result.stdout) == (0, f"{PULL['url']}\n")
    assert result.stderr == f"{SUMMARY}\n"
    assert ready.requests[-1].json() == {
        "sandboxId": SANDBOX,
        "title": "fix: it",
        "draft": True,
        "labels": ["a", "b"],
        "reviewers": ["maria"],
    }
    file = tmp_path / "body.md"
    file.write_text("# Why\n")
    assert json.loads(run("open", SANDBOX, "--body-file", str(file), "-o", "json").stdout) == PULL
    assert ready.requests[-1].json() == {"sandboxId": SANDBOX, "body": "# Why\n"}
    run("open", SANDBOX, "--body-file", "-", "--ready", stdin="piped")
    assert ready.requests[-1].json() == {"sandboxId": SANDBOX, "body": "piped", "draft": False}
    assert run("open", SANDBOX, "--body", "x", "--body-file", "-").exit_code == 2


def test_a_branch_that_moved_suggests_an_update(ready: Server) -> None:
    ready.on("POST", "/github/pull-requests", problem(409, "branch_moved", "The branch has moved."))
    result = run("open", SESSION)
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert first == "sandyard: The branch has moved."
    assert f"sandyard git update {SESSION} --source branch" in second


def test_show_lists_checks_and_reviews(ready: Server) -> None:
    printed = run("show", "7", "-o", "table").stdout
    assert "  ✓ lint: success\n" in printed
    assert "  ✗ unit: failure  https://ci.example.org/1\n    2 fail\n" in printed
    assert "  … deploy: in progress\n" in printed
    assert "  maria (changes requested):\n    Please^[[2J mend.\n    Thanks\n  bob on a.py:3:\n    Why?\n" in printed
    assert printed.count("2 fail") == 1
    assert json.loads(run("show", "#7").stdout) == PULL


@pytest.mark.parametrize("name", ["7", SESSION, SANDBOX, "tsk_1"])
def test_a_pull_request_is_found_by_number_session_sandbox_or_task(ready: Server, name: str) -> None:
    assert json.loads(run("show", name).stdout) == PULL


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["merge", "7", "--method", "rebase"], {"projectId": "prj_1", "method": "rebase"}),
        (["merge", SESSION], {"projectId": "prj_1"}),
        (["ready", "7"], {"projectId": "prj_1"}),
        (["close", "7"], {"projectId": "prj_1"}),
        (["refresh", "7"], {"projectId": "prj_1"}),
        (["show", "7", "--refresh"], {"projectId": "prj_1"}),
    ],
)
def test_commands_are_posted_to_the_pull_request(ready: Server, arguments: list[str], body: dict[str, object]) -> None:
    verb = "refresh" if "--refresh" in arguments else arguments[0]
    ready.on("POST", f"/github/pull-requests/7/{verb}", Reply(200, PULL))
    result = run(*arguments, "-o", "table")
    assert result.exit_code == 0, result.output
    assert ready.requests[-1].json() == body
    if verb == arguments[0]:
        assert result.stdout == f"{SUMMARY}\n"


def test_without_a_forge_a_branch_is_merged_but_not_closed(ready: Server) -> None:
    ready.on("GET", f"/sessions/{SESSION}/pull-request", Reply(200, PULL | {"number": None, "state": "pushed"}))
    result = run("close", SESSION)
    assert result.exit_code == 1
    assert "plain Git remote" in result.stderr
    merged = PULL | {"number": None, "state": "merged"}
    ready.on("POST", f"/pull-requests/{PULL['id']}/merge", Reply(200, merged))
    result = run("merge", SESSION, "--method", "merge", "-o", "table")
    assert (result.exit_code, "(merged, draft)" in result.stdout) == (0, True), result.output
    assert ready.requests[-1].json() == {"method": "merge"}


def test_the_project_can_be_given(ready: Server) -> None:
    projects = {"items": [{"id": "prj_1", "name": "website"}], "nextCursor": None}
    ready.on("GET", "/projects", Reply(200, projects))
    run("show", "7", "--project", "website")
    assert ready.requests[-1].query == {"projectId": "prj_1"}
    ready.on("GET", "/github/pull-requests", Reply(200, {"items": [PULL], "nextCursor": None}))
    printed = run("list", "--project", "website", "--state", "open", "-o", "table").stdout
    assert "fix: the login" in printed
    assert ready.requests[-1].query == {"limit": "50", "projectId": "prj_1", "state": "open"}
