"""`sandyard git status` and `log`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.unit.cli.git.answers import SANDBOX
from tests.unit.cli.server import Reply, Request, Server, problem

HEAD = "abcdef0123" + "0" * 30
CHECKOUT = {"branch": "task-1", "baseBranch": "main", "head": HEAD, "pushed": None, "folder": "/home/user/workspace"}
STATUS = {"branch": "task-1", "head": HEAD, "entries": [], "underWay": None, "truncated": False, "live": True}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["git", *arguments])


def status_lines(server: Server, status: dict[str, Any], checkout: dict[str, Any] | None = None) -> list[str]:
    server.on("GET", f"/git/{SANDBOX}/status", Reply(200, STATUS | status))
    server.on("GET", f"/git/{SANDBOX}", Reply(200, CHECKOUT | (checkout or {})))
    result = run("status", SANDBOX)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_status_of_a_clean_checkout(server: Server) -> None:
    assert status_lines(server, {}) == [
        "On branch task-1, from main",
        "At abcdef0123, not pushed yet.",
        "No changes since the last commit.",
    ]
    assert status_lines(server, {}, {"pushed": HEAD})[1] == "At abcdef0123, pushed."
    assert status_lines(server, {}, {"pushed": "1" * 40})[1] == "At abcdef0123; the remote has 1111111111."
    assert status_lines(server, {"branch": None})[0] == "On no branch, at abcdef0123, from main"
    assert json.loads(run("status", SANDBOX, "-o", "json").stdout) == STATUS | {"branch": None}


@pytest.mark.parametrize("verb", ["status", "log", "diff"])
def test_a_missing_checkout_suggests_a_clone(server: Server, verb: str) -> None:
    path = f"/git/{SANDBOX}/{'history' if verb == 'log' else verb}"
    server.on("GET", path, problem(409, "no_checkout", "There is none."))
    result = run(verb, SANDBOX)
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"sandyard: There is none.\nTo create one in a sandbox of a project: sandyard git clone {SANDBOX}\n"
    )


def test_status_of_a_checkout_with_changes_and_conflicts(server: Server) -> None:
    def entry(path: str, index: str | None, worktree: str | None, old: str | None = None) -> dict[str, str | None]:
        return {"path": path, "index": index, "worktree": worktree, "oldPath": old}

    entries = [
        entry("both.py", "modified", "modified"),
        entry("new.py", "renamed", None, "old.py"),
        entry("gone.py", None, "deleted"),
        entry("a\x1b[31m", None, "untracked"),
        entry("fight.py", "conflicted", "conflicted"),
    ]
    assert status_lines(server, {"entries": entries, "underWay": "rebase", "live": False, "truncated": True})[2:] == [
        "The sandbox is paused. Showing its last saved state.",
        "A rebase is in progress.",
        "Conflicts:",
        "  conflict:     fight.py",
        "Staged:",
        "  modified:     both.py",
        "  renamed:      old.py -> new.py",
        "Not staged:",
        "  modified:     both.py",
        "  deleted:      gone.py",
        "Untracked:",
        "  a^[[31m",
        "… the list is too long to show all files.",
    ]


COMMIT = {
    "id": HEAD,
    "parents": [],
    "author": {"name": "Maria", "email": "maria@example.org"},
    "committer": {"name": "Sandyard", "email": "bot@example.org"},
    "authoredAt": "2026-01-31T10:00:00Z",
    "committedAt": "2026-01-31T10:00:00Z",
    "subject": "fix: the login\x1b[2J",
    "body": "It was red.\n\nCo-authored-by: x",
}


def test_log_prints_short_full_and_json_output(server: Server) -> None:
    server.on("GET", f"/git/{SANDBOX}/history", Reply(200, {"items": [COMMIT, COMMIT]}))
    result = run("log", SANDBOX, "--limit", "2", "--skip", "1")
    assert result.stdout == "abcdef0123 fix: the login^[[2J\n" * 2
    assert "--limit" in result.stderr
    assert server.requests[0].query == {"limit": "2", "skip": "1", "base": "true"}
    full = run("log", SANDBOX, "--full").stdout
    assert full.startswith(
        f"commit {HEAD}\nAuthor:    Maria <maria@example.org>\nCommitter: Sandyard <bot@example.org>\nDate:"
    )
    assert "\n\n    fix: the login^[[2J\n\n    It was red.\n\n    Co-authored-by: x\n\ncommit " in full
    assert json.loads(run("log", SANDBOX, "-o", "json").stdout) == {"items": [COMMIT, COMMIT], "base": []}


def test_a_long_log_takes_several_requests(server: Server) -> None:
    def page(request: Request) -> Reply:
        rest = max(0, 450 - int(request.query["skip"]))
        return Reply(200, {"items": [COMMIT] * min(rest, int(request.query["limit"]))})

    server.on("GET", f"/git/{SANDBOX}/history", page)
    assert len(json.loads(run("log", SANDBOX, "--limit", "1000", "-o", "json").stdout)["items"]) == 450
    assert [(request.query["skip"], request.query["limit"]) for request in server.requests] == [
        ("0", "200"),
        ("200", "200"),
        ("400", "200"),
    ]


def test_log_shows_the_commits_of_the_base_branch(server: Server) -> None:
    """The commits that the branch started from are also shown."""
    server.on("GET", f"/git/{SANDBOX}/history", Reply(200, {"items": [], "base": [COMMIT]}))
    result = run("log", SANDBOX)
    assert (result.exit_code, result.stdout) == (0, "abcdef0123 fix: the login^[[2J\n")
    assert result.stderr == "No commits on this branch yet. It started from:\n"
    server.on("GET", f"/git/{SANDBOX}/history", Reply(200, {"items": [COMMIT], "base": [COMMIT, COMMIT]}))
    result = run("log", SANDBOX)
    assert (result.stdout.count("fix: the login"), result.stderr) == (3, "Earlier commits of the base branch:\n")
