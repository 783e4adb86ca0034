"""`sandyard session prompt, transcript, cancel`: a conversation with an agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandyard.cli import sse
from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server, events
from tests.unit.cli.tasks.answers import message, page, text

TURN: dict[str, Any] = {"id": "trn_1", "sessionId": "ses_1", "status": "queued", "promptId": "msg_0002", "error": None}
MESSAGES = [text(1, "Before."), message(2, {"type": "text", "text": "Go on"}, "user"), text(3, "I did.")]


@pytest.fixture
def ready(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(sse, "FIRST_PAUSE_SECONDS", 0.01)
    server.on("POST", "/sessions/ses_1/turns", Reply(202, TURN))
    server.on("GET", "/sessions/ses_1", Reply(200, {"id": "ses_1"}))
    server.on("GET", "/sessions/ses_1/messages", page(list(reversed(MESSAGES))))
    server.on("GET", "/asks", page([]))
    server.on(
        "GET", "/events", events(("7", "turn.completed", {"seq": 7, "kind": "turn.completed", "sessionId": "ses_1"}))
    )
    return server


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["session", *arguments], input=stdin)


def test_prompt_creates_a_turn(ready: Server) -> None:
    assert run("prompt", "ses_1", "-", "--model", "m", stdin="Go on").stdout == "trn_1\n"
    assert ready.requests[-1].json() == {"text": "Go on", "model": "m"}
    assert run("prompt", "ses_1", " ").exit_code == 1


def test_a_followed_prompt_prints_its_own_turn(ready: Server) -> None:
    running, done = Reply(200, {**TURN, "status": "running"}), Reply(200, {**TURN, "status": "completed"})
    ready.on("GET", "/turns/trn_1", running, done)
    result = run("prompt", "ses_1", "Go on", "--follow")
    assert (result.exit_code, result.stdout) == (0, "» Go on\nI did.\n"), "earlier messages are not repeated"
    ready.on("GET", "/turns/trn_1", Reply(200, {**TURN, "status": "over_budget", "error": "Its budget is spent."}))
    result = run("prompt", "ses_1", "Go on", "--follow")
    assert (result.exit_code, result.stderr) == (1, "The turn was stopped: Its budget is spent.\n")


def test_the_transcript_is_printed_and_followed(ready: Server) -> None:
    assert run("transcript", "ses_1").stdout == "Before.\n\n» Go on\nI did.\n"
    assert [json.loads(line) for line in run("transcript", "ses_1", "-o", "json").stdout.splitlines()] == MESSAGES
    ready.on(
        "GET", "/sessions/ses_1/turns", page([{**TURN, "status": "running"}]), page([{**TURN, "status": "completed"}])
    )
    assert run("transcript", "ses_1", "--follow").stdout == "Before.\n\n» Go on\nI did.\n"
    assert run("transcript", "ses_2").exit_code == 3


def test_cancel_stops_all_open_turns(ready: Server) -> None:
    turns = [{**TURN, "id": "trn_2"}, {**TURN, "status": "running"}, {**TURN, "id": "trn_0", "status": "completed"}]
    ready.on("GET", "/sessions/ses_1/turns", page(turns))
    for turn in ("trn_1", "trn_2"):
        ready.on("POST", f"/turns/{turn}/cancel", Reply(200, {**TURN, "id": turn, "status": "cancelled"}))
    assert run("cancel", "ses_1", "-o", "table").stdout == "Cancelled.\n"
    cancelled = [request.path.split("/")[-2] for request in ready.requests if request.method == "POST"]
    assert cancelled == ["trn_2", "trn_1"], "the queued turn is cancelled first, so that it does not start"
    ready.on("GET", "/sessions/ses_1/turns", page([]))
    assert run("cancel", "ses_1", "-o", "table").stdout == "No turn is running.\n"
