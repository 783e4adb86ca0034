"""Following a task over connections that break: every line once, in order, to the end."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli.live.screen import Screen
from sandyard.cli.main import cli
from tests.harness.up import Terminal
from tests.unit.cli.server import Reply, Request, problem
from tests.unit.cli.tasks.answers import (
    ASK,
    PULL,
    SESSION,
    TASK,
    ScriptedTask,
    attempt,
    call,
    message,
    step,
    task,
    text,
)


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["task", *arguments], input=stdin)


def test_every_line_is_printed_once_over_broken_connections(scripted: ScriptedTask) -> None:
    transcript = scripted.messages[SESSION]
    prompt = message(1, {"type": "text", "text": "Mend the login"}, "user")

    def install() -> None:
        setup = step("setup", "running")
        detail = "installing OpenCode (first time only)"
        scripted.task = task("in_progress", attempt(step="setup", stepDetail=detail, steps=[setup], sessionId=None))

    def begin_work() -> None:
        scripted.task = task(
            "in_progress", attempt(step="agent", steps=[step("setup"), step("agent", "running", number=2)])
        )
        transcript.extend([prompt, text(2, "I look at\nthe lo", "thought")])

    def extend_thought() -> None:
        transcript[1] = text(2, "I look at\nthe login first.", "thought")
        transcript.append(call(3, "make test", "in_progress"))

    def fail_tests() -> None:
        transcript[2] = call(3, "make test", "failed", content=[{"type": "text", "text": "1 failed\x1b[2J"}])
        transcript.append(text(4, "It fails."))

    def edit_file() -> None:
        transcript[3] = text(4, "It fails.\nI mend it.\n")
        diff = {"type": "diff", "path": "login.py", "oldText": "a\nb\n", "newText": "a\nc\n"}
        transcript.append(call(5, "edit login.py", kind="edit", content=[diff]))

    def finish() -> None:
        transcript.append(text(6, "Done"))
        steps = [step("setup"), step("agent", number=2), step("pull_request", number=3)]
        diff = {"files": 1, "added": 1, "removed": 1}
        scripted.task = task(
            "in_review", attempt("in_review", steps=steps, pullRequest=PULL, diff=diff), pullRequest=PULL
        )

    scripted.add_stage(install, "attempt.step", "attempt.progress")
    scripted.add_stage(begin_work, "attempt.step", "message.created")
    scripted.add_stage(extend_thought, "message.delta", "message.created", broken=True)
    updated = {"messageId": "msg_0003", "part": call(3, "make test", "failed")["parts"][0] | {"cut": True}}
    scripted.add_stage(fail_tests, ("message.updated", updated), "message.created")
    scripted.add_stage(edit_file, broken=True)  # changes during the interruption are not missed
    scripted.add_stage(finish, "turn.completed", "attempt.in_review", "task.moved")
    result = run("logs", TASK, "--follow")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "» Mend the login",
        "  I look at",
        "  the login first.",
        "✗ execute  make test",
        "    1 failed^[[2J",
        "It fails.",
        "I mend it.",
        "✓ edit login.py",
        "    login.py  +1 -1",
        "    -b",
        "    +c",
        "Done",
        PULL["url"],
    ]
    assert result.stderr.splitlines() == [
        "attempt 1: demo (no model)",
        "… setup",
        "… installing OpenCode (first time only)",
        "✓ setup  2.5 s",
        "… agent",
        "✓ agent  2.5 s",
        "✓ pull request  2.5 s",
        "The task is ready for review: 1 file changed, +1 -1 lines.",
    ]
    last_event_ids = [
        request.headers.get("last-event-id") for request in scripted.server.requests if request.path.endswith("/events")
    ]
    assert last_event_ids[:5] == [None, "2", "4", "6", "8"]


def test_a_busy_server_is_retried_while_polling(scripted: ScriptedTask) -> None:
    done = Reply(200, task("in_review", attempt("in_review")))
    scripted.messages[SESSION].append(text(1, "Done."))
    working = Reply(200, task("in_progress", attempt()))
    scripted.server.on("GET", f"/tasks/{TASK}", working, problem(503, "busy", "Busy."), done)
    scripted.add_stage(lambda: None, "attempt.step")
    result = run("logs", TASK, "--follow")
    assert (result.exit_code, result.stdout) == (0, "Done.\n")


def test_a_failed_task_is_explained(scripted: ScriptedTask) -> None:
    broken = attempt("failed", error="The tests\nfail.", steps=[step("verify", "failed", error="exit code 1")])
    scripted.task = task("in_progress", broken, error="The tests fail.")
    scripted.add_stage(lambda: None)
    result = run("logs", TASK, "--follow")
    assert result.exit_code == 1
    assert "✗ verify  2.5 s  exit code 1\nThe task failed: The tests fail.\n" in result.stderr
    assert f"sandyard task retry {TASK}" in result.stderr


def test_a_session_that_does_not_exist_yet_is_not_an_error(scripted: ScriptedTask) -> None:
    scripted.server.on("GET", f"/sessions/{SESSION}/messages", problem(404, "not_found", "No session."))
    scripted.task = task("in_progress", attempt("queued", queuePosition=2))

    def stop() -> None:
        scripted.task = task("cancelled", attempt("cancelled"))

    scripted.add_stage(lambda: None, "attempt.queued")
    scripted.add_stage(stop, "attempt.cancelled")
    result = run("logs", TASK, "--follow")
    assert result.exit_code == 1
    assert "The task was stopped." in result.stderr


def test_lines_of_several_attempts_are_numbered(scripted: ScriptedTask) -> None:
    scripted.messages = {"ses_1": [text(1, "one")], "ses_2": [text(1, "two")]}
    scripted.task = task(
        "in_progress", attempt("ready"), attempt("failed", number=2, agent="codex", model="m", error="No.")
    )
    scripted.add_stage(lambda: None)
    result = run("logs", TASK, "--follow")
    assert result.exit_code == 0, "one successful attempt is enough"
    assert result.stdout.splitlines() == ["1│ one", "2│ two"]
    assert "2│ attempt 2: codex, m" in result.stderr
    assert f"sandyard task pick {TASK} NUMBER" in result.stderr
    assert run("logs", TASK, "--follow", "--attempt", "2").exit_code == 1
    assert run("logs", TASK, "--attempt", "3").exit_code == 3


def test_earlier_messages_are_not_printed_again(scripted: ScriptedTask) -> None:
    old, new = step("agent"), step("agent", number=1, round=2)
    scripted.messages[SESSION] += [text(1, "Before.")]
    scripted.task = task("in_review", attempt("in_review", steps=[old]))

    def request_changes(request: Request) -> Reply:
        scripted.messages[SESSION].append(message(2, {"type": "text", "text": "Again"}, "user"))
        scripted.task = task("in_progress", attempt("queued", steps=[old], round=2))
        return Reply(200, scripted.task)

    def finish() -> None:
        scripted.messages[SESSION].append(text(3, "After."))
        scripted.task = task("in_review", attempt("in_review", steps=[old, new], round=2))

    scripted.server.on("POST", f"/tasks/{TASK}/move", request_changes)
    scripted.add_stage(lambda: None, "attempt.queued")
    scripted.add_stage(finish, "attempt.in_review")
    result = run("move", TASK, "in_progress", "--feedback", "Again", "--follow")
    assert (result.exit_code, result.stdout) == (0, "» Again\nAfter.\n")
    assert result.stderr.count("✓ agent") == 1


def test_json_output_has_one_object_per_line(scripted: ScriptedTask) -> None:
    scripted.messages[SESSION] += [text(1, "a"), call(2, "b"), text(3, "c")]
    scripted.task = task("done", attempt("merged"))
    scripted.add_stage(lambda: None)
    lines = [json.loads(line) for line in run("logs", TASK, "--follow", "-o", "json").stdout.splitlines()]
    assert [line["id"] for line in lines] == ["msg_0001", "msg_0002", "msg_0003", TASK]
    plain = [json.loads(line)["id"] for line in run("logs", TASK, "-o", "json").stdout.splitlines()]
    assert plain == ["msg_0001", "msg_0002", "msg_0003"]


def test_a_permission_request_is_printed_once(scripted: ScriptedTask) -> None:
    scripted.task = task("in_progress", attempt())

    def ask() -> None:
        scripted.asks = [ASK]

    def answer() -> None:
        scripted.asks = []
        scripted.task = task("in_review", attempt("in_review"))

    scripted.add_stage(ask, "ask.created")
    scripted.add_stage(lambda: None, "turn.waiting")
    scripted.add_stage(answer, "ask.answered", "attempt.in_review")
    printed = run("logs", TASK, "--follow").stderr
    assert (
        printed.count("? The agent asks for permission: Run rm -rf build\n  $ rm -rf dist\n  1  Allow\n  2  Never\n")
        == 1
    )
    assert f"sandyard task answer {TASK} ANSWER --ask ask_1" in printed


def test_the_status_line_says_that_the_agent_waits_for_an_answer(
    scripted: ScriptedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[str] = []
    monkeypatch.setattr(Screen, "set_status", lambda screen, text: statuses.append(text))
    working = task("in_progress", attempt(step="agent", steps=[step("agent", "running")]))

    def ask() -> None:
        scripted.task = working
        scripted.messages[SESSION] = [text(1, "May I?")]
        scripted.asks = [ASK]

    def answer() -> None:
        scripted.asks = []

    def finish() -> None:
        scripted.task = task("in_review", attempt("in_review"))

    scripted.add_stage(ask, "ask.created", "message.created")
    scripted.add_stage(answer, "ask.answered")
    scripted.add_stage(finish, "attempt.updated")
    assert run("logs", TASK, "--follow").exit_code == 0
    waiting = statuses.index("waiting for your answer")
    assert any(text.startswith("the agent is working") for text in statuses[waiting:])


def test_a_permission_request_is_answered_in_the_terminal(scripted: ScriptedTask) -> None:
    scripted.task = task("in_progress", attempt(step="agent"))
    answers: list[Any] = []

    def ask() -> None:
        scripted.asks = [ASK]

    def answer(request: Request) -> Reply:
        answers.append(request.json())
        scripted.asks = []
        scripted.task = task("in_review", attempt("in_review"))
        return Reply(200, ASK)

    scripted.server.on("POST", "/asks/ask_1/answer", answer)
    scripted.add_stage(ask, "ask.created")
    scripted.add_stage(lambda: None, "turn.waiting")
    command = [sys.executable, "-m", "sandyard", "task", "logs", TASK, "--follow"]
    terminal = Terminal(command, dict(os.environ))
    try:
        terminal.until("1  Allow")
        terminal.until("> ")
        terminal.type("perhaps\n")
        terminal.until("is not one of the options")
        terminal.until("> ")
        terminal.type("never\n")
        terminal.until("is ready for review")
        assert terminal.wait_for_exit() == 0
    finally:
        terminal.close()
    assert answers == [{"optionId": "never"}]


def test_long_transcripts_are_printed_completely(scripted: ScriptedTask) -> None:
    scripted.messages[SESSION] += [text(number, f"line {number}\n") for number in range(1, 251)]
    scripted.task = task("in_progress", attempt("failed"))
    assert run("logs", TASK).stdout.splitlines() == [f"line {number}" for number in range(1, 251)]
