"""Show an agent's questions and permission requests, with numbered options, and send the answers."""

from __future__ import annotations

import json
import re
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandyard.cli.connection import quote_segment
from sandyard.cli.errors import ApiError, CommandError
from sandyard.cli.live.message_lines import Line, format_changes
from sandyard.cli.output import echo, escape, escape_line, print_json

if TYPE_CHECKING:
    from sandyard.cli.client import Client
    from sandyard.cli.live.screen import Screen

DECISIONS = {
    "allow": "allow",
    "yes": "allow",
    "y": "allow",
    "reject": "reject",
    "deny": "reject",
    "no": "reject",
    "n": "reject",
    "allow always": "allow_always",
    "always": "allow_always",
    "reject always": "reject_always",
    "never": "reject_always",
}
"""Accepted words for decisions, because every agent names its options differently."""
TRUE, FALSE = {"yes", "y", "true", "1"}, {"no", "n", "false", "0"}
COMMAND_LINES = 10
DESCRIPTION_SEPARATOR = " - "
"""Separator between an answer and its description."""


def list_pending(client: Client, filters: Mapping[str, str]) -> list[Any]:
    """Return the pending requests, oldest first. `filters` are query parameters of the API."""
    return list(reversed(client.list_items("/asks", 200, status="pending", **filters)["items"]))


F = TypeVar("F", bound=Callable[..., Any])


def answer_options(function: F) -> F:
    """Add the options of `answer_or_list` to a command."""
    for option in (
        click.option("--reject", is_flag=True, help="Reject the request or decline the question."),
        click.option("-m", "--message", help="When rejecting: what the agent should do instead."),
        click.option("--ask", "ask_id", metavar="ASK", help="The request to answer, if there are several."),
        click.argument("answers", nargs=-1, metavar="[ANSWER]..."),
    ):
        function = option(function)
    return function


def answer_or_list(
    client: Client,
    filters: Mapping[str, str],
    name: str,
    *,
    ask_id: str | None,
    answers: Sequence[str],
    reject: bool,
    message: str | None = None,
    as_json: bool,
) -> None:
    """Show pending requests, or answer one. `name` is the task or session, `ask_id` selects one of several, and `message` tells a rejected
    agent what to do instead."""
    if message and not answers and not reject:
        raise click.UsageError("Use --message together with --reject or an ANSWER that rejects.")
    if reject and answers:
        raise click.UsageError("Use either ANSWER or --reject, not both.")
    asks = [ask for ask in list_pending(client, filters) if ask_id in {None, ask["id"]}]
    if not asks:
        raise ApiError(f"{name} has no pending request{f' with the id {escape(ask_id)}' if ask_id else ''}.", 404)
    if not answers and not reject:
        if as_json:
            print_json({"items": asks, "nextCursor": None})
            return
        for ask in asks:
            for line in describe_ask(ask):
                echo(line.text)
            which = f" --ask {ask['id']}" if len(asks) > 1 else ""
            what = "session" if "sessionId" in filters else "task"
            echo(f"  To answer: sandyard {what} answer {name} {get_answer_hint(ask)}{which}", err=True)
        return
    if len(asks) > 1:
        raise CommandError(
            f"{name} has several pending requests. Choose one with --ask: {', '.join(a['id'] for a in asks)}."
        )
    body = make_answer_body(asks[0], *answers) if answers else {"decision": "reject"}
    result = client.post(
        f"/asks/{quote_segment(asks[0]['id'])}/answer", {**body, **({"message": message} if message else {})}
    )
    if as_json:
        print_json(result)
    else:
        echo("Answered.", err=True)


def allow_denied(client: Client, filters: Mapping[str, str], name: str, *, as_json: bool) -> None:
    """Allow, for the rest of the session, what the project's policy denied, and resume the agent. Of several turns with denials, only the
    latest one counts. Raises CommandError if nothing was denied."""
    answered = client.list_items("/asks", 200, status="answered", **filters)["items"]
    denied = [ask for ask in answered if is_denied_by_policy(ask)]
    if not denied:
        raise CommandError(f"The project's policy has not denied anything in {name}.")
    newest = [ask for ask in denied if ask.get("turnId") == denied[0].get("turnId")]
    by_pattern = {ask["detail"]["pattern"]: ask for ask in newest}
    result = []
    for number, (pattern, ask) in enumerate(by_pattern.items(), 1):
        body = {"resume": number == len(by_pattern)}
        result.append(client.post(f"/asks/{quote_segment(ask['id'])}/allow", body))
        if not as_json:
            echo(f"Allowed for this session: {escape(pattern)!r}.", err=True)
    if as_json:
        print_json({"items": result, "nextCursor": None})


def is_denied_by_policy(ask: Any) -> bool:
    """Return whether a policy pattern denied it, which the project's owner can allow."""
    return ask.get("decidedBy") == "policy" and "pattern" in (ask.get("detail") or {})


def list_options(ask: Any) -> list[Any]:
    found = (ask.get("detail") or {}).get("options")
    return [option for option in found if isinstance(option, dict)] if isinstance(found, list) else []


def list_fields(ask: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of a question's form by name."""
    form = (ask.get("detail") or {}).get("form")
    found = form.get("properties") if isinstance(form, dict) else None
    return {name: field for name, field in found.items() if isinstance(field, dict)} if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a form. `custom` is the field for an answer that is not one of the choices."""

    name: str
    field: Mapping[str, Any]
    required: bool
    custom: str | None = None

    @property
    def label(self) -> str:
        return escape(str(self.field.get("title") or self.name))

    @property
    def key(self) -> str:
        """The name of the question in KEY=ANSWER."""
        return self.label if re.fullmatch(r"[\w.-]+", self.label) else escape(self.name)


def list_questions(ask: Any) -> list[Question]:
    """Return the questions of a form. Claude Code adds a field `x_custom` to a choice `x`: both are one question."""
    fields, form = list_fields(ask), (ask.get("detail") or {}).get("form") or {}
    required: list[Any] = form["required"] if isinstance(form.get("required"), list) else []
    customs = {
        name: custom
        for name, field in fields.items()
        if list_choices(field) and (custom := f"{name}_custom") in fields and not list_choices(fields[custom])
    }
    return [
        Question(name, field, name in required, customs.get(name))
        for name, field in fields.items()
        if name not in customs.values()
    ]


def get_answer_hint(ask: Any) -> str:
    """Return what to type after `answer`."""
    questions = [] if list_options(ask) else list_questions(ask)
    return " ".join(f"{question.key}=ANSWER" for question in questions) if len(questions) > 1 else "ANSWER"


def describe_ask(ask: Any) -> Iterator[Line]:
    """Yield the question, its context and the possible answers."""
    who = "Sandyard" if (ask.get("detail") or {}).get("by") else "The agent"
    word = "asks" if ask["kind"] == "question" else "asks for permission"
    first, *rest = str(ask.get("title") or "").strip().split("\n")
    yield Line(f"? {who} {word}: {escape_line(first)}", {"fg": "yellow", "bold": True})
    yield from (Line(f"  {escape_line(line)}") for line in rest)
    yield from _describe_tool_call(ask)
    for number, option in enumerate(list_options(ask), 1):
        yield Line(f"  {number}  {escape(str(option.get('name') or option.get('optionId')))}")
    questions = list_questions(ask)
    for question in questions:
        indent = "  "
        if len(questions) > 1:
            description = escape(str(question.field.get("description") or ""))
            optional = "" if question.required else " (optional)"
            yield Line(f"  {question.label}{optional}{f': {description}' if description else ''}")
            indent = "    "
        for number, (_, label) in enumerate(list_choices(question.field), 1):
            yield Line(f"{indent}{number}  {escape(label)}")
        if more := _describe_more_answers(question):
            yield Line(f"{indent}{more}", {"dim": True})
    if ask.get("expiresAt"):
        when = str(ask["expiresAt"])[:16].replace("T", " ")
        outcome = "denied" if ask.get("kind") == "permission" else "declined"
        yield Line(f"  If unanswered, it is {outcome} at {escape(when)} UTC.", {"dim": True})


def _describe_more_answers(question: Question) -> str:
    several = "You can choose several, for example 1,2." if question.field.get("type") == "array" else ""
    own = "Or type your own answer." if question.custom else ""
    return f"{several} {own}".strip()


def _describe_tool_call(ask: Any) -> Iterator[Line]:
    """Yield the details of the tool call that needs permission: its command, paths and changes."""
    call = (ask.get("detail") or {}).get("toolCall")
    if not isinstance(call, dict):
        return
    tool_input = call.get("rawInput", call.get("input"))
    command = tool_input.get("command") if isinstance(tool_input, dict) else None
    if isinstance(command, list):
        command = " ".join(str(word) for word in command)
    if isinstance(command, str) and command.strip() not in str(ask.get("title") or ""):
        lines = command.strip().split("\n")
        yield from (Line(f"  $ {escape_line(line)}") for line in lines[:COMMAND_LINES])
        if len(lines) > COMMAND_LINES:
            yield Line(f"  … {len(lines) - COMMAND_LINES} more lines")
    for location in call.get("locations") or []:
        if isinstance(location, dict) and str(location.get("path")) not in str(ask.get("title") or ""):
            yield Line(f"  {escape(str(location.get('path') or ''))}")
    for content in call.get("content") or []:
        if isinstance(content, dict) and content.get("type") == "diff":
            yield from format_changes(content)


def make_answer_body(ask: Any, *answers: str) -> dict[str, Any]:
    """Return the request body for an answer. The answer is text; for a form with several questions, it is KEY=ANSWER for each, or one
    answer for each in order; a form can also be answered in JSON. Raises CommandError, which lists the possible answers."""
    answer = " ".join(answers)
    if options := list_options(ask):
        return _choose_option(options, answer)
    questions = list_questions(ask)
    if (content := _parse_json_answer(ask, answer)) is not None:
        return {"content": content}
    if len(questions) > 1:
        return {"content": _fill_form(questions, answers)}
    if (decision := DECISIONS.get(answer.strip().lower())) and not questions:
        return {"decision": decision}
    return {"content": parse_content(questions[0] if questions else Question("answer", {}, required=True), answer)}


def _parse_json_answer(ask: Any, answer: str) -> dict[str, Any] | None:
    """Return a form that was filled in as JSON, or None."""
    if not answer.lstrip().startswith("{"):
        return None
    try:
        content = json.loads(answer)
    except ValueError:
        return None
    return content if isinstance(content, dict) and content.keys() <= list_fields(ask).keys() else None


def _fill_form(questions: Sequence[Question], answers: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a form: answers by KEY=ANSWER, or in the order of all questions or of the required ones. Raises CommandError."""
    named = [
        (key.strip().lower(), text)
        for key, separator, text in (answer.partition("=") for answer in answers)
        if separator
    ]
    keys = {name.lower(): question for question in questions for name in (question.name, question.label)}
    content: dict[str, Any] = {}
    if len(named) == len(answers) and all(key in keys for key, _ in named):
        for key, text in named:
            content |= parse_content(keys[key], text)
        return content
    needed = [question for question in questions if question.required]
    for expected in (questions, needed):
        if len(expected) == len(answers):
            for question, text in zip(expected, answers, strict=True):
                content |= parse_content(question, text)
            return content
    hint = " ".join(f"{question.key}=ANSWER" for question in questions)
    raise CommandError(f"There are {len(questions)} questions. Answer with {hint}, or give one answer for each.")


def parse_content(question: Question, text: str) -> dict[str, Any]:
    """Return typed text as fields of the form."""
    try:
        return {question.name: parse_value(question.field, text)}
    except CommandError:
        if question.custom is None or not text.strip():
            raise
    chosen, own = [], []
    if question.field.get("type") == "array":
        for word in text.split(","):
            try:
                chosen.append(_find_choice(list_choices(question.field), word.strip()))
            except CommandError:
                own.append(word.strip())
        return {**({question.name: chosen} if chosen else {}), question.custom: ", ".join(own)}
    return {question.custom: text.strip()}


def _choose_option(options: list[Any], answer: str) -> dict[str, Any]:
    word = answer.strip()
    if word.isascii() and word.isdecimal() and 1 <= int(word) <= len(options):
        return {"optionId": options[int(word) - 1]["optionId"]}
    for name in ("optionId", "name"):
        for option in options:
            if str(option.get(name) or "").strip().lower() == word.lower():
                return {"optionId": option["optionId"]}
    if decision := DECISIONS.get(word.lower().replace("_", " ").replace("-", " ")):
        return {"decision": decision}
    names = ", ".join(f"{number} {escape(str(choice.get('name') or ''))}" for number, choice in enumerate(options, 1))
    raise CommandError(f"{escape(word)!r} is not one of the options: {names}.")


def list_choices(field: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return value and label of each choice of a field, or of the items of a list. Empty means any value."""
    if field.get("type") == "array":
        return list_choices(field["items"]) if isinstance(field.get("items"), dict) else []
    if isinstance(field.get("enum"), list):
        names = field.get("enumNames")
        labels = names if isinstance(names, list) and len(names) == len(field["enum"]) else field["enum"]
        return [(value, str(label)) for value, label in zip(field["enum"], labels, strict=True)]
    found = field.get("oneOf") or field.get("anyOf")
    if isinstance(found, list):
        return [
            (option["const"], _make_label(option)) for option in found if isinstance(option, dict) and "const" in option
        ]
    return []


def _make_label(choice: Mapping[str, Any]) -> str:
    label, description = str(choice.get("title") or choice["const"]), choice.get("description")
    return f"{label}{DESCRIPTION_SEPARATOR}{description}" if isinstance(description, str) and description else label


def parse_value(field: Mapping[str, Any], text: str) -> Any:
    """Return typed text as a value of the field's type."""
    word, kind = text.strip(), field.get("type")
    if kind != "array" and (choices := list_choices(field)):
        return _find_choice(choices, word)
    if kind in {"integer", "number"}:
        try:
            return int(word) if kind == "integer" else float(word)
        except ValueError:
            raise CommandError(f"{escape(word)!r} is not a number.") from None
    if kind == "boolean":
        if word.lower() not in TRUE | FALSE:
            raise CommandError("Answer yes or no.")
        return word.lower() in TRUE
    if kind == "array":
        inner = field.get("items")
        return [parse_value(inner if isinstance(inner, dict) else {}, part) for part in word.split(",") if part.strip()]
    return text


def _find_choice(choices: list[tuple[Any, str]], word: str) -> Any:
    if word.isascii() and word.isdecimal() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1][0]
    for value, label in choices:
        if word.lower() in {str(value).lower(), label.lower(), label.partition(DESCRIPTION_SEPARATOR)[0].lower()}:
            return value
    raise CommandError(
        f"{escape(word)!r} is not one of the options: {', '.join(label.partition(DESCRIPTION_SEPARATOR)[0] for _, label in choices)}."
    )


class AskPrompt:
    """Shows pending requests while a user follows a task or session. If `interactive`, it reads the answers from the keyboard, otherwise it
    prints how to answer with `command`. `on_refresh` is called after `waiting_sessions` was updated."""

    def __init__(
        self,
        client: Client,
        screen: Screen,
        filters: Mapping[str, str],
        command: str,
        *,
        interactive: bool,
        on_refresh: Callable[[], None] | None = None,
    ) -> None:
        self.waiting_sessions: frozenset[str] = frozenset()
        """The sessions whose agent waits for an answer."""
        self._on_refresh = on_refresh
        self._client = client
        self._screen = screen
        self._filters = filters
        self._command = command
        self._interactive = interactive
        self._shown: set[str] = set()
        self._ask: Any = None
        self._questions: list[Question] = []
        self._has_several_questions = False
        self._content: dict[str, Any] = {}

    @property
    def is_open(self) -> bool:
        """Whether typed input is expected."""
        return self._ask is not None

    def refresh(self) -> None:
        """Show new requests. Close the prompt if its request is no longer pending."""
        asks = list_pending(self._client, self._filters)
        self.waiting_sessions = frozenset(str(ask["sessionId"]) for ask in asks)
        if self._on_refresh is not None:
            self._on_refresh()
        if self._ask is not None and self._ask["id"] not in {ask["id"] for ask in asks}:
            self._close()
            self._screen.print_note("This request was already answered.")
        for ask in asks:
            if self._ask is not None or ask["id"] in self._shown:
                continue
            self._shown.add(ask["id"])
            for line in describe_ask(ask):
                self._screen.print_note(line.text, **line.style)
            if self._interactive:
                self._ask, self._content = ask, {}
                self._questions = [] if list_options(ask) else list_questions(ask)
                self._has_several_questions = len(self._questions) > 1
                self._show_prompt()
            else:
                self._print_answer_command(ask)

    def read_input(self) -> None:
        """Process a typed line, if there is one."""
        if self._ask is None or not select.select([sys.stdin], [], [], 0)[0]:
            return
        text = sys.stdin.readline()
        if not text:
            self._interactive = False
            ask = self._ask
            self._close()
            self._print_answer_command(ask)
            return
        try:
            self._answer(text.strip("\r\n"))
        except CommandError as error:
            self._screen.print_note(error.message, fg="red")
            if self._ask is not None:
                self._show_prompt()

    def _print_answer_command(self, ask: Any) -> None:
        self._screen.print_note(f"  To answer: sandyard {self._command} {get_answer_hint(ask)} --ask {ask['id']}")

    def _answer(self, text: str) -> None:
        ask = self._ask
        if self._has_several_questions:
            question = self._questions[0]
            if text.strip() or question.required:
                self._content |= parse_content(question, text)
            del self._questions[0]
            if self._questions:
                self._show_prompt()
                return
            body: dict[str, Any] = {"content": self._content}
        else:
            body = make_answer_body(ask, text)
        try:
            self._client.post(f"/asks/{quote_segment(ask['id'])}/answer", body)
        except ApiError as error:
            if error.http_status not in {404, 409, 410}:
                raise
            self._screen.print_note(error.message)
        self._close()
        self.refresh()

    def _show_prompt(self) -> None:
        self._screen.is_input_active = True
        sys.stderr.write(f"{self._questions[0].label}: " if self._has_several_questions else "> ")
        sys.stderr.flush()

    def _close(self) -> None:
        self._ask = None
        self._screen.is_input_active = False
