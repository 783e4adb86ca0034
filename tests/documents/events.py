"""The reference of events: what events.toml says, compared with every place in the platform that emits one."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sandyard.platform.domain.agents.model import AskStatus, TurnStatus
from sandyard.platform.domain.tasks.model import AttemptStatus
from tests.documents.tables import make_table

NOTES = Path(__file__).with_name("events.toml")
DOMAIN = Path(__file__).parents[2] / "src/sandyard/platform/domain"
IDS = frozenset(("owner_id", "project_id", "task_id", "session_id", "sandbox_id"))
"""Columns of an event, which every kind can have."""
STATUSES: Mapping[str, frozenset[str]] = {
    "turn": frozenset(TurnStatus),
    "ask": frozenset(AskStatus),
    "attempt": frozenset(AttemptStatus),
    "pull_request": frozenset(("merged", "closed", "reopened")),
}
"""Values of the `{status}` in kinds such as `turn.{status}`, of which some have no event."""
WRAPPED = frozenset(("kind", "event"))
"""Names of the parameter that is the kind, in functions that emit an event of any kind."""
KIND = re.compile(r"[a-z_]+\.[a-z_]+")

INTRODUCTION = """# Events

Every change in the platform is an event with a number that increases. `GET /api/v1/events` streams them as server-sent events and
`GET /api/v1/events/history` lists past ones; `sandyard events --follow` shows them. A reader that was disconnected sends the number of the
last event it got (`Last-Event-ID`, or `?after=`) and misses nothing, within `SANDYARD_EVENTS_KEPT_DAYS`.

Every event has `seq` (its number), `at`, `kind`, the ids that apply (`ownerId`, `projectId`, `taskId`, `sessionId`, `sandboxId`), and
`data` with the fields below. Fields can be missing or null where they make no sense. Ignore kinds and fields that you do not know: there
will be more. Users get their own events and those of their projects, administrators all.
"""
TITLES = {
    "pull_request": "Pull requests",
    "git": "Git",
    "settings": "Settings of projects and agents",
    "user": "Users and tokens",
}


@dataclass(frozen=True)
class Note:
    group: str
    kind: str
    text: str
    fields: tuple[str, ...]


def read_notes() -> list[Note]:
    """Return what events.toml says."""
    groups = tomllib.loads(NOTES.read_text())
    return [
        Note(group, kind, text, tuple(names))
        for group, kinds in groups.items()
        for kind, (text, *names) in kinds.items()
    ]


@dataclass
class Emitted:
    """The events that the code emits: kinds with the fields that are certain, and prefixes of kinds that end with a status."""

    kinds: dict[str, set[str]] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    """Kinds that are written anywhere, such as in a table of kinds."""
    prefixes: set[str] = field(default_factory=set)

    def add(self, argument: ast.expr, fields: set[str]) -> None:
        """Add the kinds that an argument can be."""
        for node in ast.walk(argument):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and KIND.fullmatch(node.value):
                self.kinds.setdefault(node.value, set()).update(fields - IDS)

    def mention(self, node: ast.AST) -> None:
        """Add a string that is a kind, or the beginning of one."""
        if isinstance(node, ast.JoinedStr):
            first = node.values[0]
            if isinstance(first, ast.Constant) and str(first.value).endswith("."):
                self.prefixes.add(str(first.value).removesuffix("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and KIND.fullmatch(node.value):
            self.mentioned.add(node.value)


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Wrapper:
    """A function that emits an event whose kind is one of its parameters."""

    fields: frozenset[str]
    passes_on: bool
    """Whether its further keyword arguments become fields."""


@cache
def find_emitted() -> Emitted:
    """Return what the platform emits, from its source."""
    nodes = {path: list(ast.walk(ast.parse(text))) for path, text in _read_sources()}
    functions = [(path, node) for path, found in nodes.items() for node in found if isinstance(node, Function)]
    keys = {node.name: keys for _, node in functions if (keys := _returned_keys(node))}
    wrappers: dict[tuple[Path | None, str], Wrapper] = {}
    for path, node in functions:
        if (wrapper := _find_wrapper(node, keys)) is not None:
            wrappers[path, node.name] = wrapper
            if not node.name.startswith("_"):
                wrappers[None, node.name] = wrapper
    emitted = Emitted()
    for path, found in nodes.items():
        for item in found:
            emitted.mention(item)
            if isinstance(item, ast.Call):
                _add_call(emitted, item, path, wrappers, keys)
    return emitted


def _read_sources() -> Iterator[tuple[Path, str]]:
    """Yield the files that emit events, name kinds, or define fields of events."""
    for path in sorted(DOMAIN.rglob("*.py")):
        text = path.read_text()
        if re.search(r"""emit|["'][a-z_]+\.[a-z_{]+|_fields\(row""", text) and "sample-repository" not in path.parts:
            yield path, text


def _add_call(
    found: Emitted,
    call: ast.Call,
    path: Path,
    wrappers: Mapping[tuple[Path | None, str], Wrapper],
    keys: Mapping[str, set[str]],
) -> None:
    name = _called(call)
    if name == "emit" and call.args:
        found.add(call.args[0], _list_fields(call, keys))
        return
    wrapper = wrappers.get((path, name)) or wrappers.get((None, name))
    if wrapper is None:
        return
    given = [argument for argument in call.args if isinstance(argument, ast.Constant | ast.JoinedStr | ast.IfExp)]
    fields = set(wrapper.fields) | (_list_fields(call, keys) if wrapper.passes_on else set())
    for argument in given:
        found.add(argument, fields)


def _called(call: ast.Call) -> str:
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def _list_fields(call: ast.Call, keys: Mapping[str, set[str]]) -> set[str]:
    """Return the names of keyword arguments, also of dictionaries that are unpacked, if it can be seen what is in them."""
    fields = set[str]()
    for keyword in call.keywords:
        if keyword.arg is not None:
            fields.add(keyword.arg)
        elif isinstance(keyword.value, ast.Call):
            fields |= keys.get(_called(keyword.value), set())
        elif isinstance(keyword.value, ast.Dict):
            fields |= {str(key.value) for key in keyword.value.keys if isinstance(key, ast.Constant)}
    return fields


def _returned_keys(function: Function) -> set[str]:
    """Return the keys of the dictionary that a function returns, if it consists of nothing else."""
    last = function.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Dict) or "field" not in function.name:
        return set()
    return {str(key.value) for key in last.value.keys if isinstance(key, ast.Constant)}


def _find_wrapper(function: Function, keys: Mapping[str, set[str]]) -> Wrapper | None:
    parameters = [item.arg for item in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    if not WRAPPED & set(parameters):
        return None
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and _called(call) == "emit" and call.args and isinstance(call.args[0], ast.Name):
            further = function.args.kwarg and function.args.kwarg.arg
            passes_on = any(isinstance(item.value, ast.Name) and item.value.id == further for item in call.keywords)
            if call.args[0].id in parameters:
                return Wrapper(frozenset(_list_fields(call, keys)), passes_on)
    return None


def list_possible_kinds() -> Iterator[str]:
    """Yield every string in the code that can be a kind: those with a status, if it is a value of that status."""
    emitted = find_emitted()
    yield from emitted.mentioned
    for prefix in emitted.prefixes:
        yield from (f"{prefix}.{status}" for status in STATUSES.get(prefix, ()))


def render() -> str:
    """Return docs/reference/events.md."""
    text = INTRODUCTION
    notes = read_notes()
    for group in dict.fromkeys(note.group for note in notes):
        rows = [
            (f"`{note.kind}`", note.text, ", ".join(f"`{name}`" for name in note.fields) or "none")
            for note in notes
            if note.group == group
        ]
        text += f"\n## {TITLES.get(group, f'{group[0].upper()}{group[1:]}s')}\n" + make_table(
            ("Kind", "Meaning", "Fields of `data`"), rows
        )
    return text
