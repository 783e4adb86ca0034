"""`sandyard git commit` and similar commands: the requests they send, and the mistakes they report without a request."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.unit.cli.git.answers import SANDBOX, operation
from tests.unit.cli.server import Reply, Server, problem


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["git", *arguments], input=stdin)


@pytest.mark.parametrize(
    ("verb", "arguments", "body"),
    [
        ("branch", ["fix/it", "--start", "main"], {"name": "fix/it", "start": "main"}),
        ("stage", ["a b", "-o", "json", "--", "-x"], {"paths": ["a b", "-x"]}),
        ("stage", ["a", "--unstage"], {"paths": ["a"], "unstage": True}),
        ("commit", ["-m", "fix: it", "-m", "Why."], {"message": "fix: it\n\nWhy."}),
        ("commit", ["-m", "fix: it", "--staged"], {"message": "fix: it", "everything": False}),
        ("commit", ["-m", "fix: it", "a", "b"], {"message": "fix: it", "paths": ["a", "b"]}),
        ("discard", ["--all", "--yes"], {"everything": True}),
        ("discard", ["a", "-y"], {"paths": ["a"]}),
        ("tag", ["v1", "-m", "First", "--push"], {"name": "v1", "message": "First", "push": True}),
        ("checkpoint", [], {}),
    ],
)
def test_arguments_become_the_request(server: Server, verb: str, arguments: list[str], body: dict[str, object]) -> None:
    server.on("POST", f"/git/{verb}", Reply(200, operation(verb)))
    result = run(verb, SANDBOX, *arguments)
    assert result.exit_code == 0, result.output
    assert server.requests[0].json() == {"sandboxId": SANDBOX, **body}


def test_the_commit_message_is_read_from_a_file_or_a_pipe(server: Server, tmp_path: Path) -> None:
    server.on("POST", "/git/commit", Reply(200, operation("commit", detail={"commit": "abcdef0123456789"})))
    file = tmp_path / "message"
    file.write_text("fix: the login\n\nIt was \x1b[31mred.\n")
    result = run("commit", SANDBOX, "-F", str(file), "-o", "table")
    assert result.stdout == "[abcdef0123] fix: the login\n"
    assert server.requests[0].json()["message"] == file.read_text()
    run("commit", SANDBOX, "-F", "-", stdin="feat: from a pipe\n")
    assert server.requests[1].json()["message"] == "feat: from a pipe\n"


def test_a_rejected_commit_message_comes_with_a_suggestion(server: Server) -> None:
    message = "The subject does not say what kind of change it is."
    server.on("POST", "/git/commit", problem(400, "commit_message", message, suggestion="fix: don't log in twice"))
    result = run("commit", SANDBOX, "-m", "Don't log in twice")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"sandyard: {message}",
        f"Try: sandyard git commit {SANDBOX} -m 'fix: don'\"'\"'t log in twice'",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["commit", SANDBOX], "with either -m or --file"),
        (["commit", SANDBOX, "-m", "fix: x", "-F", "-"], "with either -m or --file"),
        (["commit", SANDBOX, "-m", "fix: x", "--staged", "a"], "not both"),
        (["discard", SANDBOX], "Give PATHs, or use --all"),
        (["discard", SANDBOX, "a", "--all"], "Give PATHs, or use --all"),
        (["stage", SANDBOX], "PATH"),
        (["push"], "SESSION"),
    ],
)
def test_invalid_arguments_are_usage_errors(server: Server, arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert server.requests == []


def test_discard_asks_for_confirmation(server: Server) -> None:
    server.on("POST", "/git/discard", Reply(200, operation("discard")))
    assert run("discard", SANDBOX, "--all", stdin="n\n").exit_code == 1
    assert server.requests == []
    assert run("discard", SANDBOX, "--all", stdin="y\n").exit_code == 0
    assert len(server.requests) == 1


def test_discarded_files_are_counted(server: Server) -> None:
    server.on("POST", "/git/discard", Reply(200, operation("discard", detail={"discarded": ["a", "b"], "count": 2})))
    assert run("discard", SANDBOX, "--all", "-y", "-o", "table").stdout == "Discarded the changes in 2 files.\n"


def test_a_clone_into_a_sandbox_without_a_project_suggests_a_command(server: Server) -> None:
    server.on("POST", "/git/clone", problem(409, "not_in_project", "This sandbox belongs to no project."))
    result = run("clone", SANDBOX)
    assert result.exit_code == 1
    assert "sandyard sandbox create --project PROJECT" in result.stderr.splitlines()[1]


def test_checkpoints_are_created_listed_and_restored(server: Server) -> None:
    server.on("POST", "/git/checkpoint", Reply(200, operation("checkpoint", detail={"checkpointId": "chk_1"})))
    assert run("checkpoint", SANDBOX, "-o", "table").stdout == "Created checkpoint chk_1.\n"
    item = {"id": "chk_1", "reason": "asked", "branch": "task-1", "changed": 3, "sandboxId": SANDBOX}
    server.on("GET", f"/sandboxes/{SANDBOX}", Reply(200, {"id": SANDBOX, "sessionId": "ses_1"}))
    server.on("GET", "/sessions/ses_1/checkpoints", Reply(200, {"items": [item], "nextCursor": None}))
    assert "chk_1  asked   task-1  3" in run("checkpoints", SANDBOX, "-o", "table").stdout
    server.on("POST", "/git/restore", Reply(200, operation("restore", sandboxId="sbx_2")))
    assert run("restore", "chk_1", "-o", "table").stdout == "Restored session ses_1 in sandbox sbx_2.\n"
    assert server.requests[-1].json() == {"checkpointId": "chk_1"}
    server.on("GET", f"/sandboxes/{SANDBOX}", Reply(200, {"id": SANDBOX, "sessionId": None}))
    assert run("checkpoints", SANDBOX).exit_code == 3


def test_operations_are_listed_and_shown(server: Server) -> None:
    failed = operation("push", "failed", error="The remote does not answer.")
    server.on("GET", "/git/operations", Reply(200, {"items": [failed], "nextCursor": None}))
    server.on("GET", "/git/operations/gop_1", Reply(200, failed))
    for name, query in (("ses_1", {"sessionId": "ses_1"}), ("sbx_1", {"sandboxId": "sbx_1"})):
        assert "The remote does not answer." in run("operations", name, "-o", "table").stdout
        assert server.requests[-1].query == {"limit": "20", **query}
    run("operations", "--project", "prj_1")
    assert server.requests[-1].query == {"limit": "20", "projectId": "prj_1"}
    assert "The remote does not answer." in run("operations", "gop_1", "-o", "table").stdout
    assert server.requests[-1].path.endswith("/git/operations/gop_1")
