"""Permission requests and questions of agents: how they are shown, and what is sent for each answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from sandyard.cli.errors import CommandError
from sandyard.cli.live.asks import describe_ask, get_answer_hint, make_answer_body
from sandyard.cli.main import cli
from tests.unit.cli.server import Reply, Server
from tests.unit.cli.tasks.answers import ASK, TASK, attempt, page, task


def question(**properties: Any) -> dict[str, Any]:
    form = {"type": "object", "properties": properties}
    return {"id": "ask_2", "kind": "question", "title": "Which?", "detail": {"form": form}}


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        ("1", {"optionId": "ok"}),
        ("never", {"optionId": "never"}),
        ("Allow", {"optionId": "ok"}),
        ("yes", {"decision": "allow"}),
        ("reject", {"decision": "reject"}),
        ("allow-always", {"decision": "allow_always"}),
    ],
)
def test_a_permission_request_is_answered_by_option_or_decision(answer: str, body: dict[str, str]) -> None:
    assert make_answer_body(ASK, answer) == body


@pytest.mark.parametrize("answer", ["3", "0", "maybe", ""])
def test_an_invalid_answer_lists_the_options(answer: str) -> None:
    with pytest.raises(CommandError, match="1 Allow, 2 Never"):
        make_answer_body(ASK, answer)


@pytest.mark.parametrize(
    ("field", "answer", "value"),
    [
        ({"type": "string"}, "in my words ", "in my words "),
        ({"type": "integer"}, "7", 7),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "boolean"}, "no", False),
        ({"type": "string", "enum": ["a", "b"]}, "2", "b"),
        ({"oneOf": [{"const": "x", "title": "The X"}]}, "the x", "x"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "a, 2", ["a", "b"]),
    ],
)
def test_an_answer_is_converted_to_the_type_of_its_field(field: dict[str, Any], answer: str, value: Any) -> None:
    assert make_answer_body(question(it=field), answer) == {"content": {"it": value}}


def test_a_form_is_answered_as_json_by_name_or_by_position() -> None:
    form = question(name={"type": "string", "title": "Name"}, size={"type": "integer"})
    assert make_answer_body(form, '{"name": "a", "size": 2}') == {"content": {"name": "a", "size": 2}}
    for answers in (("name=a", "size=2"), ("Size=2", "Name=a"), ("a", "2")):
        assert make_answer_body(form, *answers) == {"content": {"name": "a", "size": 2}}
    with pytest.raises(CommandError, match="Name=ANSWER size=ANSWER"):
        make_answer_body(form, "a")
    form["detail"]["form"]["required"] = ["size"]
    assert make_answer_body(form, "2") == {"content": {"size": 2}}, "a single answer is for the required field"
    for wrong, kind in (("x", "integer"), ("x", "boolean")):
        with pytest.raises(CommandError):
            make_answer_body(question(it={"type": kind}), wrong)


def claude_question(*, several: bool = False, **more: Any) -> dict[str, Any]:
    """Return a question in the form of Claude Code: no field is required, and each choice has a second field for free text."""
    options = [{"const": "Red", "title": "Red"}, {"const": "Blue", "title": "Blue", "description": "as the sky"}]
    choice = {"type": "array", "items": {"anyOf": options}} if several else {"type": "string", "oneOf": options}
    other = {"type": "string", "title": "Other", "description": "Type your own answer."}
    return question(question_0={"title": "Colour", **choice}, question_0_custom=other, **more)


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("Blue", {"question_0": "Blue"}),
        ("blue", {"question_0": "Blue"}),
        ("2", {"question_0": "Blue"}),
        ('{"question_0":"Blue"}', {"question_0": "Blue"}),
        ("something between them", {"question_0_custom": "something between them"}),
    ],
)
def test_a_claude_code_question_accepts_a_choice_or_free_text(answer: str, content: dict[str, Any]) -> None:
    assert make_answer_body(claude_question(), answer) == {"content": content}
    assert make_answer_body(claude_question(), *answer.split()) == {"content": content}, "also without quotes"


def test_claude_code_questions_accept_several_choices_and_several_answers() -> None:
    assert make_answer_body(claude_question(several=True), "1, Blue") == {"content": {"question_0": ["Red", "Blue"]}}
    own = {"question_0": ["Red"], "question_0_custom": "a bit of green"}
    assert make_answer_body(claude_question(several=True), "red, a bit of green") == {"content": own}
    both = claude_question(question_1={"type": "string", "oneOf": [{"const": "S"}, {"const": "L"}]})
    assert make_answer_body(both, "Colour=2", "question_1=L") == {"content": {"question_0": "Blue", "question_1": "L"}}
    assert make_answer_body(both, "Colour=2") == {"content": {"question_0": "Blue"}}
    assert [line.text for line in describe_ask(both)] == [
        "? The agent asks: Which?",
        "  Colour (optional)",
        "    1  Red",
        "    2  Blue - as the sky",
        "    Or type your own answer.",
        "  question_1 (optional)",
        "    1  S",
        "    2  L",
    ]
    assert get_answer_hint(both) == "Colour=ANSWER question_1=ANSWER"


def test_choices_are_numbered_and_escaped() -> None:
    assert [line.text for line in describe_ask(question(it={"enum": ["a\x1b[2J", "b"]}))] == [
        "? The agent asks: Which?",
        "  1  a^[[2J",
        "  2  b",
    ]


@pytest.fixture
def ready(server: Server) -> Server:
    server.on("GET", f"/tasks/{TASK}", Reply(200, task("in_progress", attempt())))
    server.on("POST", "/asks/ask_1/answer", Reply(200, {**ASK, "status": "answered"}))
    return server


@pytest.mark.parametrize("words", [["task", "answer", TASK], ["session", "answer", "ses_1"]])
def test_a_permission_request_is_shown_and_answered(ready: Server, words: list[str]) -> None:
    ready.on("GET", "/asks", page([ASK]))
    shown = CliRunner().invoke(cli, words)
    assert "  1  Allow\n  2  Never\n" in shown.stdout
    assert ready.requests[-1].query["status"] == "pending"
    done = CliRunner().invoke(cli, [*words, "2"])
    assert (done.exit_code, ready.requests[-1].json()) == (0, {"optionId": "never"})
    assert json.loads(CliRunner().invoke(cli, [*words, "1", "-o", "json"]).stdout)["status"] == "answered"
    assert CliRunner().invoke(cli, [*words, "--reject"]).exit_code == 0
    assert ready.requests[-1].json() == {"decision": "reject"}
    assert CliRunner().invoke(cli, [*words, "--reject", "--message", "Paint it"]).exit_code == 0
    assert ready.requests[-1].json() == {"decision": "reject", "message": "Paint it"}
    assert CliRunner().invoke(cli, [*words, "--message", "Paint it"]).exit_code == 2


def test_an_answer_needs_the_id_if_several_requests_are_pending(ready: Server) -> None:
    ready.on("GET", "/asks", page([{**ASK, "id": "ask_9"}, ASK]))
    result = CliRunner().invoke(cli, ["task", "answer", TASK, "1"])
    assert result.exit_code == 1 and "ask_1, ask_9" in result.stderr
    assert CliRunner().invoke(cli, ["task", "answer", TASK, "1", "--ask", "ask_1"]).exit_code == 0
    ready.on("GET", "/asks", page([]))
    assert CliRunner().invoke(cli, ["task", "answer", TASK]).exit_code == 3


@pytest.mark.parametrize("words", [["task", "allow", TASK], ["session", "allow", "ses_1"]])
def test_allow_permits_what_the_policy_denied(ready: Server, words: list[str]) -> None:
    refused = {**ASK, "status": "answered", "decidedBy": "policy", "turnId": "trn_2", "detail": {"pattern": "rm"}}
    others = [{**refused, "id": "ask_0", "turnId": "trn_1"}, {**refused, "id": "ask_2", "detail": {"pattern": "dd"}}]
    ready.on("GET", "/asks", page([refused, *others]))
    for item in ("ask_1", "ask_2"):
        ready.on("POST", f"/asks/{item}/allow", Reply(200, {**refused, "decidedBy": "overruled"}))
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert [(request.path.rsplit("/", 2)[-2], request.json()["resume"]) for request in ready.requests[-2:]] == [
        ("ask_1", False),
        ("ask_2", True),
    ]
    assert "Allowed for this session: 'rm'" in done.stderr
    ready.on("GET", "/asks", page([ASK]))
    assert CliRunner().invoke(cli, words).exit_code == 1
