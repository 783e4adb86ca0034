"""`sandyard task`: its requests and its output."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Request, Server, problem
from tests.unit.cli.tasks.answers import AGENTS, PULL, TASK, attempt, page, step, task

OTHER = "tsk_00mwhnkzc0zzzzzzzzzz"
PROJECTS = {"items": [{"id": "prj_1", "name": "website"}, {"id": "prj_2", "name": "shop"}], "nextCursor": None}


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("GET", "/projects", Reply(200, PROJECTS))
    server.on("GET", "/agents", Reply(200, AGENTS))
    server.on("GET", f"/tasks/{TASK}", Reply(200, task("in_progress", attempt())))
    server.on("GET", f"/tasks/{OTHER}", Reply(200, task(id=OTHER)))
    server.on("GET", "/tasks", page([task(), task(id=OTHER, title="Mend the LOGOUT")]))
    server.on("POST", "/tasks", Reply(201, task("in_progress", attempt("queued"))))
    server.on("GET", "/asks", page([]))
    return server


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["task", *arguments], input=stdin)


def get_request_body(server: Server, method: str = "POST") -> Any:
    return next(request.json() for request in reversed(server.requests) if request.method == method)


def test_a_task_is_added_with_its_options(ready: Server, tmp_path: Path) -> None:
    result = run("add", "Mend the login\n\nNobody gets in.\n  - at all\n", "--project", "website")
    assert (result.exit_code, result.stdout) == (0, f"{TASK}\n")
    assert f"sandyard task logs {TASK} --follow" in result.stderr
    assert "demo (no model)" in result.stderr
    assert get_request_body(ready) == {
        "title": "Mend the login",
        "description": "Nobody gets in.\n  - at all",
        "projectId": "prj_1",
        "start": True,
    }
    options = [
        "--agent",
        "codex",
        "--model",
        "m",
        "--base",
        "dev",
        "--priority",
        "5",
        "--budget-usd",
        "2.5",
        "--backlog",
    ]
    run("add", "-", "--project", "prj_9", *options, "--needs", "logout", stdin="From a pipe")
    assert get_request_body(ready) == {
        "title": "From a pipe",
        "projectId": "prj_9",
        "agent": "codex",
        "model": "m",
        "baseBranch": "dev",
        "priority": 5,
        "budget": {"usd": 2.5},
        "needs": [OTHER],
        "start": False,
    }
    file = tmp_path / "task.md"
    file.write_text("# From a file")
    run("add", "--file", str(file), "--project", "prj_1", "--attempts", "2", "--agent", "codex")
    assert get_request_body(ready)["attempts"] == [{"agent": "codex"}, {"agent": "codex"}]
    run("add", "x", "--project", "prj_1", "--attempt", "codex:gpt-5.5", "--attempt", "demo")
    assert get_request_body(ready)["attempts"] == [{"agent": "codex", "model": "gpt-5.5"}, {"agent": "demo"}]
    assert json.loads(run("add", "x", "--project", "prj_1", "-o", "json").stdout)["id"] == TASK


@pytest.mark.parametrize(
    "arguments",
    [
        ["x", "--project", "prj_1", "--attempts", "2", "--attempt", "demo"],
        ["x", "--project", "prj_1", "--backlog", "--follow"],
        ["--project", "prj_1"],
        ["x"],
    ],
)
def test_conflicting_or_missing_options_are_usage_errors(ready: Server, arguments: list[str]) -> None:
    assert run("add", *arguments).exit_code == 2


def test_a_title_is_required_and_truncated(ready: Server) -> None:
    assert run("add", " \n ", "--project", "prj_1").exit_code == 1
    run("add", "word " * 100, "--project", "prj_1")
    assert len(get_request_body(ready)["title"]) == 298
    assert get_request_body(ready)["description"] == ("word " * 100).strip()


def test_an_agent_without_a_key_is_reported_at_once(ready: Server) -> None:
    codex = {"name": "codex", "apis": ["openai"], "modelReady": False, "modelProjects": []}
    ready.on("GET", "/agents", Reply(200, {"items": [codex]}))
    ready.on("POST", "/tasks", Reply(201, task("in_progress", attempt("queued", agent="codex"))))
    result = run("add", "x", "--project", "website", "--agent", "codex")
    assert (result.exit_code, result.stdout) == (0, f"{TASK}\n")
    assert result.stderr.startswith("Warning: no API key is set up for codex, so it will fail.\n")
    assert result.stderr.count("sandyard model add PROVIDER") == 1
    ready.on("GET", "/agents", Reply(200, {"items": [codex | {"modelProjects": ["prj_1"]}]}))
    assert "Warning" not in run("add", "x", "--project", "website", "--agent", "codex").stderr


def test_a_blocked_task_names_what_it_waits_for(ready: Server) -> None:
    waiting = task("backlog", startWhenReady=True, blockedBy=[OTHER])
    ready.on("POST", "/tasks", Reply(201, waiting))
    assert f"starts automatically when {OTHER} is done" in run("add", "x", "--project", "prj_1").stderr


def test_a_task_that_was_not_started_says_why(ready: Server) -> None:
    refused = task("backlog", startError="Mo has left.")
    ready.on("GET", f"/tasks/{TASK}", Reply(200, refused))
    shown = run("show", TASK, "-o", "table")
    assert "Mo has left." in shown.stdout, shown.stderr
    ready.on("GET", "/tasks", page([refused]))
    assert "not started" in run("list", "-o", "table").stdout


@pytest.mark.parametrize("name", [TASK, TASK[:22], "a1b2c3d4e5", "00mwhnkzc0a", "the login", "Mend the login"])
def test_a_task_is_found_by_part_of_its_id_or_title(ready: Server, name: str) -> None:
    assert json.loads(run("show", name).stdout)["id"] == TASK


def test_unknown_and_ambiguous_names_are_errors(ready: Server) -> None:
    ready.on("GET", "/tasks/tsk_nothing", problem(404, "not_found", "No."))
    for name in ("tsk_nothing", "nothing"):
        result = run("show", name)
        assert (result.exit_code, "There is no task" in result.stderr) == (3, True)
    result = run("show", "mend the")
    assert result.exit_code == 1
    assert TASK in result.stderr and OTHER in result.stderr


def test_list_sends_its_requests_in_parallel(ready: Server) -> None:
    barrier = threading.Barrier(4, timeout=10)
    answers = {
        "/tasks": page([task()]),
        "/projects": Reply(200, PROJECTS),
        "/agents": Reply(200, AGENTS),
        "/asks": page([]),
    }

    def reply_when_all_have_arrived(reply: Reply) -> Callable[[Request], Reply]:
        def answer(request: Request) -> Reply:
            barrier.wait()
            return reply

        return answer

    for path, reply in answers.items():
        ready.on("GET", path, reply_when_all_have_arrived(reply))
    result = run("list", "-o", "table")
    assert (result.exit_code, TASK in result.stdout) == (0, True), result.output


def test_list_shows_tasks_and_fits_the_terminal(ready: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    running = attempt(step="verify", pullRequest=PULL)
    ready.on(
        "GET",
        "/tasks",
        page([task("backlog", id=OTHER, title="Later " * 20), task("in_progress", running, projectId="prj_2")]),
    )
    piped = run("list", "-o", "table").stdout
    assert "Later " * 19 in piped, "nothing is truncated in a pipe"
    assert "PROJECT" in piped
    assert "…" not in piped
    for module in ("output", "tasks.views"):
        monkeypatch.setattr(f"sandyard.cli.{module}.is_terminal", lambda: True)
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run("list", "-o", "table").stdout.splitlines()
        assert max(len(line) for line in lines) <= width
        assert [line.split()[0] for line in lines] == ["ID", TASK, OTHER], "tasks in progress come first"
        assert "verify" in lines[1] and "#7" in lines[1]
    assert lines[1].split()[3:12] == ["verify", "Mend", "the", "login", "demo", "(no", "model)", "#7", "shop"]
    ready.on("GET", "/asks", page([{"id": "ask_1", "sessionId": running["sessionId"]}]))
    assert "needs you" in run("list", "-o", "table").stdout
    assert len(json.loads(run("list", "--project", "shop").stdout)["items"]) == 2
    assert ready.requests[-1].query == {"limit": "50", "projectId": "prj_2"}
    run("list", "--status", "done", "--status", "backlog", "-q", "log")
    assert [request.query.get("status") for request in ready.requests[-2:]] == ["done", "backlog"]
    ready.on("GET", "/tasks", page([]))
    assert "sandyard task add" in run("list", "-o", "table").stderr


def test_show_prints_attempts_steps_and_questions(ready: Server) -> None:
    steps = [
        step("setup"),
        step("verify", "failed", number=2, error="exit code 1\x1b[2J", tries=2),
        step("verify", number=3, outcome="fixed", detail={"exitCode": 2}),
        step("verify", number=4, outcome="skipped"),
        step("pull_request", number=5, outcome="not_applicable"),
    ]
    spent = {"calls": 3, "inputTokens": 900, "outputTokens": 100, "costUsd": 0.0123, "unpriced": 0, "estimated": 1}
    one = attempt("failed", steps=steps, error="It fails.", spent=spent, seconds=75.2, verified=False)
    shown = task("in_progress", one, description="All\nof it", pullRequest=PULL, blockedBy=[OTHER], needs=[OTHER])
    ready.on("GET", f"/tasks/{TASK}", Reply(200, shown))
    ask = {"id": "ask_1", "kind": "question", "title": "Which?", "detail": {"form": {"properties": {}}}}
    ready.on("GET", "/asks", page([ask]))
    printed = run("show", TASK, "-o", "table").stdout
    assert "Attempt 1: demo (no model): failed" in printed
    assert "1 min 15 s, not verified, 1000 tokens, ≈ $0.0123" in printed
    assert "  ✓ setup  2.5 s\n  ✗ verify  2.5 s  (started 2 times)  exit code 1^[[2J\n" in printed
    assert (
        "  ✗ verify  2.5 s  exit code 2  (fixed afterwards)\n  - verify  skipped: the project has no verify command\n"
        "  - pull request  not applicable: the remote does not support pull requests\n  It fails.\n" in printed
    )
    assert "Pull request #7 fix: the login (open): sandyard/login into main\n  https://example.org" in printed
    assert f"? The agent asks: Which?\n  To answer: sandyard task answer {TASK} ANSWER\n" in printed
    assert "  All\n  of it\n" in printed


def test_failed_attempt_is_not_called_verified(ready: Server) -> None:
    failed = attempt("failed", verified=True, error="The agent changed nothing.")
    ready.on("GET", f"/tasks/{TASK}", Reply(200, task("in_progress", failed)))
    ready.on("GET", "/asks", page([]))
    assert "verified" not in run("show", TASK, "-o", "table").stdout
    assert "yes" not in run("compare", TASK, "-o", "table").stdout


def test_steps_are_labelled_as_in_the_web(ready: Server) -> None:
    steps = [step("setup"), step("provision", "running", number=2)]
    running = task("in_progress", attempt(step="provision", steps=steps))
    ready.on("GET", f"/tasks/{TASK}", Reply(200, running))
    ready.on("GET", "/tasks", page([running]))
    shown = run("show", TASK, "-o", "table").stdout
    assert "  … sandbox" in shown and "provision" not in shown
    listed = run("list", "-o", "table").stdout
    assert " sandbox " in listed and "provision" not in listed
    assert json.loads(run("show", TASK, "-o", "json").stdout)["attempts"][0]["step"] == "provision"


def test_attempts_are_compared_and_the_queue_is_listed(ready: Server) -> None:
    spent = {"calls": 1, "inputTokens": 5, "outputTokens": 5, "costUsd": 1.5, "unpriced": 0}
    diff = {"files": 2, "added": 3, "removed": 1}
    both = [
        attempt("ready", diff=diff, verified=True),
        attempt("ready", number=2, agent="codex", spent=spent, seconds=3.5),
    ]
    ready.on("GET", f"/tasks/{TASK}", Reply(200, task("in_progress", *both)))
    result = run("compare", TASK, "-o", "table")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[1] == ["1", "demo", "(no", "model)", "ready", "yes", "2", "+3", "-1"]
    assert rows[2] == ["2", "codex", "ready", "$1.50", "10", "3.5", "s"]
    assert f"sandyard task pick {TASK} N" in result.stderr
    assert len(json.loads(run("compare", TASK).stdout)["items"]) == 2
    error = f"The verify command still fails: {'very ' * 40}long.\nIt said: \x1b[2Jno."
    both = [attempt("failed", error=error, diff=diff), attempt("ready", number=2, agent="codex", seconds=3.5)]
    ready.on("GET", f"/tasks/{TASK}", Reply(200, task("in_progress", *both)))
    table, _, errors = run("compare", TASK, "-o", "table").stdout.partition("\n\n")
    assert [line.split()[:2] for line in table.splitlines()] == [["ATTEMPT", "AGENT"], ["1", "demo"], ["2", "codex"]]
    assert max(map(len, table.splitlines())) < 80, "an error does not widen the table"
    assert errors.startswith("Attempt 1:\n  The verify command still fails: very")
    assert "  It said: " in errors
    assert "\x1b" not in errors
    entry = {"position": 1, "taskId": TASK, "number": 1, "title": "Mend", "reason": "This machine runs 8 at once."}
    ready.on("GET", "/queue", Reply(200, {"items": [entry]}))
    assert "This machine runs 8 at once." in run("queue", "-o", "table").stdout


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (["stop", TASK], "stop", None),
        (["retry", TASK], "retry", None),
        (["retry", TASK, "--message", "Paint it"], "retry", {"message": "Paint it"}),
        (["move", TASK, "in-progress", "--feedback", "No"], "move", {"status": "in_progress", "feedback": "No"}),
        (["move", TASK, "done", "--position", "0"], "move", {"status": "done", "position": 0}),
        (["pick", TASK, "1"], "pick", {"attemptId": "att_1"}),
    ],
)
def test_commands_change_the_task(ready: Server, arguments: list[str], path: str, body: Any) -> None:
    ready.on("POST", f"/tasks/{TASK}/{path}", Reply(200, task("in_progress", attempt("queued"))))
    result = run(*arguments, "-o", "table")
    assert (result.exit_code, result.stdout) == (0, f"{TASK} Mend the login: in progress (queued)\n")
    assert (ready.requests[-1].json() if ready.requests[-1].body else None) == body
    assert json.loads(run(*arguments).stdout)["id"] == TASK


def test_retry_can_change_the_agent(ready: Server) -> None:
    ready.on("PATCH", f"/tasks/{TASK}", Reply(200, task("in_progress", attempt("failed"))))
    ready.on("POST", f"/tasks/{TASK}/retry", Reply(200, task("in_progress", attempt("queued"))))
    assert run("retry", TASK, "--agent", "codex").exit_code == 0
    changed, retried = ready.requests[-2:]
    assert (changed.method, changed.json()) == ("PATCH", {"agent": "codex", "model": None, "attempts": []})
    assert retried.path.endswith("/retry")


def test_remove_asks_for_confirmation(ready: Server) -> None:
    ready.on("DELETE", f"/tasks/{TASK}", Reply(204))
    assert run("remove", TASK, stdin="n\n").exit_code == 1
    assert run("remove", TASK, "--yes").exit_code == 0


def test_pr_prints_the_url_of_the_pull_request(ready: Server) -> None:
    ready.on("GET", f"/tasks/{TASK}/pull-request", Reply(200, {**PULL, "detail": {}}))
    assert run("pr", TASK).stdout == f"{PULL['url']}\n"
    ready.on("GET", f"/tasks/{TASK}/pull-request", problem(404, "not_found", "None."))
    result = run("pr", TASK)
    assert (result.exit_code, result.stderr) == (3, f"sandyard: {TASK} has no pull request yet.\n")


def test_diff_shows_the_changes_of_an_attempt(ready: Server) -> None:
    changed = {"files": [{"path": "a.py", "change": "modified", "added": 1, "removed": 0, "patch": "diff --git a b\n"}]}
    ready.on("GET", "/git/sbx_1/diff", Reply(200, changed))
    assert run("diff", TASK).stdout == "diff --git a b\n"
    assert run("diff", TASK, "--name-only").stdout == "a.py\n"
    ready.on("GET", f"/tasks/{TASK}", Reply(200, task("in_progress", attempt("ready"), attempt("ready", number=2))))
    result = run("diff", TASK)
    assert result.exit_code == 1 and "--attempt: 1, 2" in result.stderr
    assert run("diff", TASK, "--attempt", "1").exit_code == 0
    ready.on("GET", f"/tasks/{TASK}", Reply(200, task("backlog")))
    assert f"sandyard task move {TASK} in_progress" in run("diff", TASK).stderr


@pytest.mark.parametrize("options", [[], ["--stat"], ["--name-only"]])
def test_diff_without_changes_says_so_on_standard_error(ready: Server, options: list[str]) -> None:
    ready.on("GET", "/git/sbx_1/diff", Reply(200, {"files": [], "truncated": False}))
    result = run("diff", TASK, *options)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No changes.\n")


def test_a_task_is_added_that_starts_from_a_session(ready: Server) -> None:
    ready.on("GET", "/sessions/ses_1", Reply(200, {"id": "ses_1", "projectId": "prj_2"}))
    ready.on("GET", "/sessions/ses_2", Reply(200, {"id": "ses_2", "projectId": None}))
    assert run("add", "Go on", "--from-session", "ses_1", "--attempts", "3").exit_code == 0
    expected = {"title": "Go on", "projectId": "prj_2", "fromSessionId": "ses_1", "attempts": [{}] * 3, "start": True}
    assert get_request_body(ready) == expected
    assert run("add", "Go on", "--from-session", "ses_1", "--project", "website").exit_code == 0
    assert get_request_body(ready)["projectId"] == "prj_1", "the server says that the session is in another project"
    refused = run("add", "Go on", "--from-session", "ses_2")
    assert (refused.exit_code, "not in a project" in refused.stderr) == (1, True)
    assert "Use --project" in run("add", "Go on").stderr
    assert "not both" in run("add", "Go on", "--from-session", "ses_1", "--base", "dev").stderr
