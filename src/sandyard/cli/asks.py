"""What an agent wants to know from a person: shown with numbers for its options, and answered in a word."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandyard.cli.connection import segment
from sandyard.cli.errors import ApiError, CommandError
from sandyard.cli.output import print_json, printable, visible
from sandyard.cli.tasks.parts import Line, changes

if TYPE_CHECKING:
    from sandyard.cli.client import Client
    from sandyard.cli.tasks.screen import Screen

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
"""What people say for what every agent calls otherwise."""
TRUE, FALSE = {"yes", "y", "true", "1"}, {"no", "n", "false", "0"}
COMMAND_LINES = 10


def pending(client: Client, whose: Mapping[str, str]) -> list[Any]:
    """Oldest first. `whose`: a filter of the API."""
    return list(reversed(client.pages("/asks", 200, status="pending", **whose)["items"]))


F = TypeVar("F", bound=Callable[..., Any])


def answer_options(function: F) -> F:
    for option in (
        click.option("--reject", is_flag=True, help="Refuse, whatever is asked."),
        click.option("--ask", "ask_id", metavar="ASK", help="Which of several questions."),
        click.argument("answer", required=False),
    ):
        function = option(function)
    return function


def answer_one(
    client: Client,
    whose: Mapping[str, str],
    name: str,
    *,
    ask_id: str | None,
    answer: str | None,
    reject: bool,
    as_json: bool,
) -> None:
    """Show what is asked, or answer it. `name`: of the task or session; `ask_id`: which of several."""
    if reject and answer is not None:
        raise click.UsageError("Either ANSWER or --reject, not both.")
    asks = [ask for ask in pending(client, whose) if ask_id in {None, ask["id"]}]
    if not asks:
        raise ApiError(f"{name} asks nothing{f' by the id of {printable(ask_id)}' if ask_id else ''}.", 404)
    if answer is None and not reject:
        if as_json:
            print_json({"items": asks, "nextCursor": None})
            return
        for ask in asks:
            for line in described(ask):
                click.echo(line.text)
            which = f" --ask {ask['id']}" if len(asks) > 1 else ""
            what = "session" if "sessionId" in whose else "task"
            click.echo(f"  To answer: sandyard {what} answer {name} ANSWER{which}", err=True)
        return
    if len(asks) > 1:
        raise CommandError(f"{name} asks several things: name one with --ask, of {', '.join(a['id'] for a in asks)}.")
    body = body_of(asks[0], answer) if answer is not None else {"decision": "reject"}
    done = client.post(f"/asks/{segment(asks[0]['id'])}/answer", body)
    if as_json:
        print_json(done)
    else:
        click.echo("Answered.", err=True)


def options_of(ask: Any) -> list[Any]:
    found = (ask.get("detail") or {}).get("options")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def fields_of(ask: Any) -> dict[str, dict[str, Any]]:
    """What a question's form asks for, by name."""
    form = (ask.get("detail") or {}).get("form")
    found = form.get("properties") if isinstance(form, dict) else None
    return {name: one for name, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}


def described(ask: Any) -> Iterator[Line]:
    """The question, what it is about, and the answers there are."""
    who = "Sandyard" if (ask.get("detail") or {}).get("by") else "The agent"
    word = "asks" if ask["kind"] == "question" else "asks for permission"
    first, *rest = str(ask.get("title") or "").strip().split("\n")
    yield Line(f"? {who} {word}: {visible(first)}", {"fg": "yellow", "bold": True})
    yield from (Line(f"  {visible(line)}") for line in rest)
    yield from _about(ask)
    for number, option in enumerate(options_of(ask), 1):
        yield Line(f"  {number}  {printable(str(option.get('name') or option.get('optionId')))}")
    for name, one in fields_of(ask).items():
        choices = choices_of(one)
        if choices:
            yield from (Line(f"  {number}  {printable(label)}") for number, (_, label) in enumerate(choices, 1))
        elif len(fields_of(ask)) > 1:
            yield Line(f"  {printable(str(one.get('title') or name))}: {printable(str(one.get('description') or ''))}")
    if ask.get("expiresAt"):
        when = str(ask["expiresAt"])[:16].replace("T", " ")
        yield Line(f"  Without an answer it is refused on {printable(when)} UTC.", {"dim": True})


def _about(ask: Any) -> Iterator[Line]:
    """Of the tool call that needs leave: its command, its paths, what it would change."""
    call = (ask.get("detail") or {}).get("toolCall")
    if not isinstance(call, dict):
        return
    given = call.get("rawInput", call.get("input"))
    command = given.get("command") if isinstance(given, dict) else None
    if isinstance(command, list):
        command = " ".join(str(word) for word in command)
    if isinstance(command, str) and command.strip() not in str(ask.get("title") or ""):
        lines = command.strip().split("\n")
        yield from (Line(f"  $ {visible(line)}") for line in lines[:COMMAND_LINES])
        if len(lines) > COMMAND_LINES:
            yield Line(f"  … {len(lines) - COMMAND_LINES} more lines")
    for place in call.get("locations") or []:
        if isinstance(place, dict) and str(place.get("path")) not in str(ask.get("title") or ""):
            yield Line(f"  {printable(str(place.get('path') or ''))}")
    for content in call.get("content") or []:
        if isinstance(content, dict) and content.get("type") == "diff":
            yield from changes(content)


def body_of(ask: Any, answer: str) -> dict[str, Any]:
    """The request that gives this answer. CommandError names those there are when it is none of them."""
    if options := options_of(ask):
        return _chosen(options, answer)
    fields = fields_of(ask)
    if len(fields) > 1:
        try:
            content = json.loads(answer)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise CommandError(f"It asks for several things: answer with JSON, of {', '.join(fields)}.")
        return {"content": content}
    if (decision := DECISIONS.get(answer.strip().lower())) and not fields:
        return {"decision": decision}
    name, field = next(iter(fields.items()), ("answer", {}))
    return {"content": {name: value_of(field, answer)}}


def _chosen(options: list[Any], answer: str) -> dict[str, Any]:
    word = answer.strip()
    if word.isascii() and word.isdecimal() and 1 <= int(word) <= len(options):
        return {"optionId": options[int(word) - 1]["optionId"]}
    for name in ("optionId", "name"):
        for option in options:
            if str(option.get(name) or "").strip().lower() == word.lower():
                return {"optionId": option["optionId"]}
    if decision := DECISIONS.get(word.lower().replace("_", " ").replace("-", " ")):
        return {"decision": decision}
    names = ", ".join(f"{number} {printable(str(one.get('name') or ''))}" for number, one in enumerate(options, 1))
    raise CommandError(f"{printable(word)!r} is none of the answers: {names}.")


def choices_of(field: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Value and label of each answer that a field may have; none: any."""
    if isinstance(field.get("enum"), list):
        names = field.get("enumNames")
        labels = names if isinstance(names, list) and len(names) == len(field["enum"]) else field["enum"]
        return [(value, str(label)) for value, label in zip(field["enum"], labels, strict=True)]
    found = field.get("oneOf") or field.get("anyOf")
    if isinstance(found, list):
        return [(one["const"], str(one.get("title") or one["const"])) for one in found if "const" in one]
    return []


def value_of(field: Mapping[str, Any], text: str) -> Any:
    """What somebody typed, as the form wants it."""
    word = text.strip()
    if choices := choices_of(field):
        return _choice(choices, word)
    kind = field.get("type")
    if kind in {"integer", "number"}:
        try:
            return int(word) if kind == "integer" else float(word)
        except ValueError:
            raise CommandError(f"{printable(word)!r} is not a number.") from None
    if kind == "boolean":
        if word.lower() not in TRUE | FALSE:
            raise CommandError("Answer yes or no.")
        return word.lower() in TRUE
    if kind == "array":
        inner = field.get("items")
        return [value_of(inner if isinstance(inner, dict) else {}, one) for one in word.split(",") if one.strip()]
    return text


def _choice(choices: list[tuple[Any, str]], word: str) -> Any:
    if word.isascii() and word.isdecimal() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1][0]
    for value, label in choices:
        if word.lower() in {str(value).lower(), label.lower()}:
            return value
    raise CommandError(f"{printable(word)!r} is none of the answers: {', '.join(label for _, label in choices)}.")


class Answering:
    """Shows what is asked while somebody follows; on a terminal, takes what they type as the answer. `command`: how else to answer."""

    def __init__(self, client: Client, screen: Screen, whose: Mapping[str, str], command: str, *, typing: bool) -> None:
        self._client = client
        self._screen = screen
        self._whose = whose
        self._command = command
        self._typing = typing
        self._shown: set[str] = set()
        self._ask: Any = None
        self._fields: list[str] = []
        self._content: dict[str, Any] = {}

    @property
    def open(self) -> bool:
        """Whether somebody is expected to type."""
        return self._ask is not None

    def look(self) -> None:
        asks = pending(self._client, self._whose)
        if self._ask is not None and self._ask["id"] not in {ask["id"] for ask in asks}:
            self._close()
            self._screen.note("That is settled already.")
        for ask in asks:
            if self._ask is not None or ask["id"] in self._shown:
                continue
            self._shown.add(ask["id"])
            for line in described(ask):
                self._screen.note(line.text, **line.style)
            if self._typing:
                self._ask, self._content = ask, {}
                self._fields = list(fields_of(ask)) if not options_of(ask) else []
                self._invite()
            else:
                self._screen.note(f"  Answer with: sandyard {self._command} ANSWER --ask {ask['id']}")

    def typed(self) -> None:
        """Take the line that was typed, if one was."""
        if self._ask is None or not select.select([sys.stdin], [], [], 0)[0]:
            return
        text = sys.stdin.readline()
        if not text:
            self._typing = False
            ask = self._ask
            self._close()
            self._screen.note(f"  Answer with: sandyard {self._command} ANSWER --ask {ask['id']}")
            return
        try:
            self._take(text.strip("\r\n"))
        except CommandError as error:
            self._screen.note(error.message, fg="red")
            if self._ask is not None:
                self._invite()

    def _take(self, text: str) -> None:
        ask = self._ask
        if len(fields_of(ask)) > 1 and self._fields:
            name = self._fields[0]
            self._content[name] = value_of(fields_of(ask)[name], text)
            del self._fields[0]
            if self._fields:
                self._invite()
                return
            body: dict[str, Any] = {"content": self._content}
        else:
            body = body_of(ask, text)
        try:
            self._client.post(f"/asks/{segment(ask['id'])}/answer", body)
        except ApiError as error:
            if error.http_status not in {404, 409, 410}:
                raise
            self._screen.note(error.message)
        self._close()
        self.look()

    def _invite(self) -> None:
        self._screen.held = True
        several = len(fields_of(self._ask)) > 1 and self._fields
        what = f"{printable(self._fields[0])}: " if several else "> "
        sys.stderr.write(what)
        sys.stderr.flush()

    def _close(self) -> None:
        self._ask = None
        self._screen.held = False
