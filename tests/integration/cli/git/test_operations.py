"""Operations are followed until they end: in the queue, in progress, over dropped connections. Ctrl-C leaves them running."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner, Result

from sandyard.cli import sse
from sandyard.cli.git import operations
from sandyard.cli.git.progress import format_ordinal
from sandyard.cli.main import cli
from tests.harness.up import Installation, Terminal
from tests.unit.cli.git.answers import SANDBOX, SESSION, operation, operation_event, session
from tests.unit.cli.server import Reply, Server, events, problem

PUSHED = {"branch": "task-1", "commit": "abcdef0123456789", "commits": 2, "conflicts": [], "upToDate": False}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["git", *arguments])


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(sse, "FIRST_PAUSE_SECONDS", 0.01)


def test_an_operation_that_is_done_at_once_prints_its_result(server: Server) -> None:
    server.on("GET", f"/sessions/{SESSION}", session())
    server.on("POST", "/git/push", Reply(200, operation(detail=PUSHED)))
    result = run("push", SESSION, "-o", "table")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Pushed task-1, now at abcdef0123, 2 commits ahead of its base.\n"
    posted = server.requests[-1]
    assert posted.json() == {"sandboxId": SANDBOX}, "the id of a session stands for its sandbox"
    assert posted.query == {"wait": "1"}
    assert json.loads(run("push", SANDBOX).stdout) == operation(detail=PUSHED), "a pipe gets the JSON of the API"


def test_a_long_operation_is_followed_to_its_end(server: Server) -> None:
    """Through its position in the queue, a dropped stream, and events of other operations."""
    server.on("POST", "/git/push", Reply(202, operation(status="queued", position=2)))
    server.on(
        "GET",
        "/git/operations/gop_1",
        Reply(200, operation(status="queued", position=1)),
        Reply(200, operation(status="running")),
        Reply(200, operation(status="running")),
        Reply(200, operation(status="running")),
        Reply(200, operation(detail=PUSHED | {"upToDate": True, "warnings": ["It has submodules."]})),
    )
    server.on(
        "GET",
        "/events",
        events(
            operation_event("git.completed", operation_id="gop_other"), ("8", "sandbox.paused", {"data": {}}), cut=True
        ),
        events(operation_event("git.progress", what="sending", percent=50), operation_event("git.completed")),
    )
    result = run("push", SANDBOX, "-o", "table")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Everything up to date: task-1 is already at abcdef0123 on the remote.\n"
    assert result.stderr == "Note: It has submodules.\n"
    assert [request.query for request in server.requests if request.path.endswith("/events")] == [
        {"sandboxId": SANDBOX}
    ] * 2


def test_an_operation_that_ended_without_an_event_is_noticed(server: Server) -> None:
    """It ended between the response and the start of the stream."""
    server.on("POST", "/git/push", Reply(202, operation(status="running")))
    server.on("GET", "/git/operations/gop_1", Reply(200, operation(detail=PUSHED)))
    server.on("GET", "/events", events())
    assert run("push", SANDBOX).exit_code == 0


FILES = [
    {"path": "a.py", "kind": "content", "detail": ""},
    {"path": "b\x1b[31m.py", "kind": "modify/delete", "detail": "ours"},
]
CONFLICTS = {"files": FILES, "choices": ["rebase", "merge", "give_up", "agent"]}


@pytest.mark.parametrize("late", [False, True])
def test_conflicts_come_with_commands_to_resolve_them(server: Server, late: bool) -> None:
    message = "There are conflicts in 2 files."
    server.on("GET", "/events", events())
    if late:
        failed = operation("update", "failed", error=message, errorCode="conflicts")
        failed["detail"] = {"failure": {"status": 409, "extra": CONFLICTS}}
        server.on("POST", "/git/update", Reply(202, operation("update", "running")))
        server.on("GET", "/git/operations/gop_1", Reply(200, failed))
    else:
        server.on("POST", "/git/update", problem(409, "conflicts", message, **CONFLICTS))
    result = run("update", SANDBOX)
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[:4] == [
        f"sandyard: {message}",
        "  a.py (content)",
        "  b^[[31m.py (modify/delete)",
        "To resolve this, run one of:",
    ]
    assert [line.strip().partition("   ")[0].strip() for line in lines[4:]] == [
        f"sandyard git update {SANDBOX} --merge",
        f"sandyard git update {SANDBOX} --agent",
        f"sandyard sandbox shell {SANDBOX}",
        f"sandyard git update {SANDBOX} --give-up",
    ]
    again = run("update", SANDBOX, "--merge").stderr
    assert "--agent" in again
    assert "--merge" not in again, "the command that just failed is not suggested"


@pytest.mark.parametrize(
    ("arguments", "how"), [([], None), (["--merge"], "merge"), (["--give-up"], "give_up"), (["--check"], "check")]
)
def test_update_options_become_the_request(server: Server, arguments: list[str], how: str | None) -> None:
    server.on("POST", "/git/update", Reply(200, operation("update")))
    assert run("update", SANDBOX, *arguments).exit_code == 0
    assert server.requests[0].json() == {"sandboxId": SANDBOX} | ({"how": how} if how else {})


CONFLICT = [{"path": "a.py", "kind": "content", "detail": ""}]


@pytest.mark.parametrize(
    ("how", "detail", "expected"),
    [
        (["--rebase"], {"source": "main", "behind": 0}, "No new commits on main."),
        ([], {"source": "main", "behind": 1, "head": "a" * 40}, "Added 1 commit from main; now at aaaaaaaaaa."),
        (["--check"], {"source": "main", "behind": 2}, "main is 2 commits ahead. There would be no conflicts."),
        (["--give-up"], {"ended": True}, "Restored the previous state."),
        (["--give-up"], {"ended": False}, "No merge or rebase is in progress."),
    ],
)
def test_the_result_of_an_update_is_printed(
    server: Server, how: list[str], detail: dict[str, object], expected: str
) -> None:
    server.on("POST", "/git/update", Reply(200, operation("update", detail={"conflicts": [], **detail})))
    result = run("update", SANDBOX, *how, "-o", "table")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{expected}\n", "")


def test_conflicting_files_are_listed_for_check_agent_and_push(server: Server) -> None:
    detail = {"source": "main", "behind": 2, "conflicts": CONFLICT}
    server.on("POST", "/git/update", Reply(200, operation("update", detail=detail)))
    result = run("update", SANDBOX, "--check", "-o", "table")
    assert (result.exit_code, result.stderr) == (1, "  a.py (content)\n")
    assert result.stdout == "main is 2 commits ahead. There would be conflicts in 1 file.\n"
    result = run("update", SANDBOX, "--agent", "-o", "table")
    assert (result.exit_code, result.stderr) == (0, "  a.py (content)\n")
    assert "caused conflicts in 1 file" in result.stdout
    server.on("POST", "/git/push", Reply(200, operation(detail=PUSHED | {"conflicts": CONFLICT})))
    result = run("push", SANDBOX)
    assert result.exit_code == 0
    assert "  a.py (content)\n" in result.stderr


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "hint"),
    [
        ("branch_moved", 409, 1, f"sandyard git update {SANDBOX} --source branch"),
        ("rebase_refused", 409, 1, f"sandyard git update {SANDBOX} --merge"),
        ("no_checkout", 409, 1, f"sandyard git clone {SANDBOX}"),
        ("remote_refused", 409, 1, "sandyard project token"),
        ("remote_unreachable", 502, 5, None),
    ],
)
def test_a_failure_suggests_a_command(server: Server, code: str, status: int, exit_code: int, hint: str | None) -> None:
    server.on("POST", "/git/push", problem(status, code, "It did not work."))
    result = run("push", SANDBOX)
    assert result.exit_code == exit_code
    first, *rest = result.stderr.splitlines()
    assert first == "sandyard: It did not work."
    assert hint in "".join(rest) if hint else not rest


def test_a_restarting_server_is_retried(server: Server) -> None:
    server.on("POST", "/git/push", Reply(202, operation(status="queued")))
    done = Reply(200, operation(detail=PUSHED))
    server.on("GET", "/git/operations/gop_1", Reply(200, b"", cut=True), problem(503, "busy", "Not yet."), done)
    assert run("push", SANDBOX).exit_code == 0


def test_a_lost_server_leaves_the_id_of_the_operation(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "GIVE_UP_SECONDS", 0.05)
    server.on("POST", "/git/push", Reply(202, operation(status="running")))
    server.on("GET", "/events", Reply(200, b"", "text/event-stream", cut=True))
    server.on("GET", "/git/operations/gop_1", Reply(200, b"", cut=True))
    result = run("push", SANDBOX)
    assert result.exit_code == 5
    assert "To see the result: `sandyard git operations gop_1`" in result.stderr


def test_a_terminal_shows_the_progress(server: Server) -> None:
    server.on("POST", "/git/clone", Reply(202, operation("clone", "queued", position=2)))
    server.on(
        "GET",
        "/git/operations/gop_1",
        Reply(200, operation("clone", "running")),
        Reply(200, operation("clone", "running")),
        Reply(200, operation("clone", detail={"branch": "task-1", "baseBranch": "main", "folder": "/home/user/w"})),
    )
    server.on(
        "GET",
        "/events",
        events(
            operation_event("git.progress", what="receiving\x1b[2J objects", percent=42),
            operation_event("git.completed"),
        ),
    )
    terminal = Terminal(Installation.command("git", "clone", SANDBOX), {**os.environ, "COLUMNS": "100"})
    try:
        terminal.until("waiting: 3rd in the queue")
        terminal.until("receiving^[[2J objects  42 %")
        terminal.until("On branch task-1, from main, in /home/user/w.")
        assert terminal.wait_for_exit() == 0
    finally:
        terminal.close()


def test_ctrl_c_leaves_the_operation_running(server: Server) -> None:
    server.on("POST", "/git/push", Reply(202, operation(status="queued", position=0)))
    server.on("GET", "/git/operations/gop_1", Reply(200, operation(status="queued", position=0)))
    terminal = Terminal(Installation.command("git", "push", SANDBOX), {**os.environ, "COLUMNS": "100"})
    try:
        terminal.until("waiting: 1st in the queue")
        terminal.type("\x03")
        terminal.until("To see it: sandyard git operations gop_1")
        assert terminal.wait_for_exit() == 130
    finally:
        terminal.close()
    assert {request.method for request in server.requests[1:]} <= {"GET"}, "nothing was stopped"


@pytest.mark.parametrize(
    ("number", "expected"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd")]
)
def test_ordinals_are_formatted(number: int, expected: str) -> None:
    assert format_ordinal(number) == expected
