"""Following a task over lines that break: everything once, in its order, to the end."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from click.testing import CliRunner, Result

from sandyard.cli.main import cli
from tests.integration.cli.real import Terminal
from tests.unit.cli.server import Reply, Request, problem
from tests.unit.cli.tasks.answers import ASK, PULL, SESSION, TASK, Story, attempt, call, message, step, task, text


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["task", *arguments], input=stdin)


def test_everything_once_whatever_the_line_does(story: Story) -> None:
    said = story.messages[SESSION]
    prompt = message(1, {"type": "text", "text": "Mend the login"}, "user")

    def installing() -> None:
        setup = step("setup", "running")
        detail = "installing OpenCode (first time only)"
        story.task = task("in_progress", attempt(step="setup", stepDetail=detail, steps=[setup]))

    def begun() -> None:
        story.task = task(
            "in_progress", attempt(step="agent", steps=[step("setup"), step("agent", "running", number=2)])
        )
        said.extend([prompt, text(2, "I look at\nthe lo", "thought")])

    def grown() -> None:
        said[1] = text(2, "I look at\nthe login first.", "thought")
        said.append(call(3, "make test", "in_progress"))

    def failed() -> None:
        said[2] = call(3, "make test", "failed", content=[{"type": "text", "text": "1 failed\x1b[2J"}])
        said.append(text(4, "It fails."))

    def silent() -> None:
        said[3] = text(4, "It fails.\nI mend it.\n")
        diff = {"type": "diff", "path": "login.py", "oldText": "a\nb\n", "newText": "a\nc\n"}
        said.append(call(5, "edit login.py", kind="edit", content=[diff]))

    def ended() -> None:
        said.append(text(6, "Done"))
        steps = [step("setup"), step("agent", number=2), step("pull_request", number=3)]
        diff = {"files": 1, "added": 1, "removed": 1}
        story.task = task("in_review", attempt("in_review", steps=steps, pullRequest=PULL, diff=diff), pullRequest=PULL)

    story.scene(installing, "attempt.step", "attempt.progress")
    story.scene(begun, "attempt.step", "message.created")
    story.scene(grown, "message.delta", "message.created", broken=True)
    updated = {"messageId": "msg_0003", "part": call(3, "make test", "failed")["parts"][0] | {"cut": True}}
    story.scene(failed, ("message.updated", updated), "message.created")
    story.scene(silent, broken=True)  # what happened while the line was down is not missed
    story.scene(ended, "turn.completed", "attempt.in_review", "task.moved")
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
    heard = [request.headers.get("last-event-id") for request in story.server.asked if request.path.endswith("/events")]
    assert heard[:5] == [None, "2", "4", "6", "8"]


def test_a_restart_in_the_middle_of_a_look(story: Story) -> None:
    done = Reply(200, task("in_review", attempt("in_review")))
    story.messages[SESSION].append(text(1, "Done."))
    working = Reply(200, task("in_progress", attempt()))
    story.server.on("GET", f"/tasks/{TASK}", working, problem(503, "busy", "Busy."), done)
    story.scene(lambda: None, "attempt.step")
    result = run("logs", TASK, "--follow")
    assert (result.exit_code, result.stdout) == (0, "Done.\n")


def test_how_it_fails(story: Story) -> None:
    broken = attempt("failed", error="The tests\nfail.", steps=[step("verify", "failed", error="exit code 1")])
    story.task = task("in_progress", broken, error="The tests fail.")
    story.scene(lambda: None)
    result = run("logs", TASK, "--follow")
    assert result.exit_code == 1
    assert "✗ verify  2.5 s  exit code 1\nThe task failed: The tests fail.\n" in result.stderr
    assert f"sandyard task retry {TASK}" in result.stderr


def test_a_session_that_is_not_there_yet(story: Story) -> None:
    story.server.on("GET", f"/sessions/{SESSION}/messages", problem(404, "not_found", "No session."))
    story.task = task("in_progress", attempt("queued", queuePosition=2))

    def stopped() -> None:
        story.task = task("cancelled", attempt("cancelled"))

    story.scene(lambda: None, "attempt.queued")
    story.scene(stopped, "attempt.cancelled")
    result = run("logs", TASK, "--follow")
    assert result.exit_code == 1
    assert "The task was stopped." in result.stderr


def test_several_attempts_side_by_side(story: Story) -> None:
    story.messages = {"ses_1": [text(1, "one")], "ses_2": [text(1, "two")]}
    story.task = task(
        "in_progress", attempt("ready"), attempt("failed", number=2, agent="codex", model="m", error="No.")
    )
    story.scene(lambda: None)
    result = run("logs", TASK, "--follow")
    assert result.exit_code == 0, "one is enough"
    assert result.stdout.splitlines() == ["1│ one", "2│ two"]
    assert "2│ attempt 2: codex, m" in result.stderr
    assert f"sandyard task pick {TASK} NUMBER" in result.stderr
    assert run("logs", TASK, "--follow", "--attempt", "2").exit_code == 1
    assert run("logs", TASK, "--attempt", "3").exit_code == 3


def test_what_was_there_before_is_not_told_again(story: Story) -> None:
    old, new = step("agent"), step("agent", number=1, round=2)
    story.messages[SESSION] += [text(1, "Before.")]
    story.task = task("in_review", attempt("in_review", steps=[old]))

    def sent_back(request: Request) -> Reply:
        story.messages[SESSION].append(message(2, {"type": "text", "text": "Again"}, "user"))
        story.task = task("in_progress", attempt("queued", steps=[old], round=2))
        return Reply(200, story.task)

    def ended() -> None:
        story.messages[SESSION].append(text(3, "After."))
        story.task = task("in_review", attempt("in_review", steps=[old, new], round=2))

    story.server.on("POST", f"/tasks/{TASK}/move", sent_back)
    story.scene(lambda: None, "attempt.queued")
    story.scene(ended, "attempt.in_review")
    result = run("move", TASK, "in_progress", "--feedback", "Again", "--follow")
    assert (result.exit_code, result.stdout) == (0, "» Again\nAfter.\n")
    assert result.stderr.count("✓ agent") == 1


def test_for_programs(story: Story) -> None:
    story.messages[SESSION] += [text(1, "a"), call(2, "b"), text(3, "c")]
    story.task = task("done", attempt("merged"))
    story.scene(lambda: None)
    lines = [json.loads(line) for line in run("logs", TASK, "--follow", "-o", "json").stdout.splitlines()]
    assert [line["id"] for line in lines] == ["msg_0001", "msg_0002", "msg_0003", TASK]
    plain = [json.loads(line)["id"] for line in run("logs", TASK, "-o", "json").stdout.splitlines()]
    assert plain == ["msg_0001", "msg_0002", "msg_0003"]


def test_what_is_asked_meanwhile(story: Story) -> None:
    story.task = task("in_progress", attempt())

    def asked() -> None:
        story.asks = [ASK]

    def answered() -> None:
        story.asks = []
        story.task = task("in_review", attempt("in_review"))

    story.scene(asked, "ask.created")
    story.scene(lambda: None, "turn.waiting")
    story.scene(answered, "ask.answered", "attempt.in_review")
    said = run("logs", TASK, "--follow").stderr
    assert (
        said.count("? The agent asks for permission: Run rm -rf build\n  $ rm -rf dist\n  1  Allow\n  2  Never\n") == 1
    )
    assert f"sandyard task answer {TASK} ANSWER --ask ask_1" in said


def test_somebody_who_watches_answers(story: Story) -> None:
    story.task = task("in_progress", attempt(step="agent"))
    answers: list[Any] = []

    def asked() -> None:
        story.asks = [ASK]

    def answered(request: Request) -> Reply:
        answers.append(request.json())
        story.asks = []
        story.task = task("in_review", attempt("in_review"))
        return Reply(200, ASK)

    story.server.on("POST", "/asks/ask_1/answer", answered)
    story.scene(asked, "ask.created")
    story.scene(lambda: None, "turn.waiting")
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
        assert terminal.ends() == 0
    finally:
        terminal.close()
    assert answers == [{"optionId": "never"}]


def test_long_transcripts_come_whole(story: Story) -> None:
    story.messages[SESSION] += [text(number, f"line {number}\n") for number in range(1, 251)]
    story.task = task("in_progress", attempt("failed"))
    assert run("logs", TASK).stdout.splitlines() == [f"line {number}" for number in range(1, 251)]
