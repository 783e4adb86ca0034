"""Suggest commands that fix a failed git operation."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from sandyard.cli.errors import ApiError
from sandyard.cli.output import echo, escape

SHOWN = 50
REMEDIES = {
    "branch_moved": "Get the new commits, then push again: sandyard git update {name} --source branch",
    "branch_gone": "Create a new branch: sandyard git branch {name} NAME (from the base branch: --start main)",
    "rebase_refused": "Merge instead: sandyard git update {name} --merge",
    "no_checkout": "To create one in a sandbox of a project: sandyard git clone {name}",
    "not_in_project": "Use a project: sandyard session create --project PROJECT, or sandyard sandbox create --project PROJECT",
    "remote_refused": "To find the cause: sandyard project test PROJECT. To set a new token: sandyard project token PROJECT",
    "remote_missing": "To find the cause: sandyard project test PROJECT",
    "nothing_to_commit": "To see the current state: sandyard git status {name}",
}


def fail(error: ApiError, target: str, verb: str, asked: Mapping[str, object]) -> NoReturn:
    """Print the error and what to do about it, and exit. `asked` is the request's body."""
    echo(f"sandyard: {error.message}", err=True)
    for line in explain(error, target, verb, asked):
        echo(line, err=True)
    sys.exit(error.exit_code)


@contextlib.contextmanager
def print_advice_on_error(target: str) -> Iterator[None]:
    """Handle errors of the enclosed requests like `fail`."""
    try:
        yield
    except ApiError as error:
        fail(error, target, "read", {})


def explain(error: ApiError, target: str, verb: str, asked: Mapping[str, object]) -> Iterator[str]:
    """Yield lines to print below the error message. Nothing if the message is sufficient. `asked` is the request's body."""
    name = shlex.quote(target)
    suggestion = error.details.get("suggestion")
    if suggestion and verb == "commit":
        yield f"Try: sandyard git commit {name} -m {shlex.quote(escape(str(suggestion)))}"
    if error.problem_code == "conflicts":
        yield from format_conflicts(error.details.get("files"))
        if verb == "update":
            yield "To resolve this, run one of:"
            yield from _columns(_choices(name, error.details.get("choices"), str(asked.get("how") or "rebase")))
    elif (remedy := REMEDIES.get(error.problem_code or "")) and verb != "restore":
        yield remedy.format(name=name)


def format_conflicts(files: object) -> Iterator[str]:
    """Yield a line for each file."""
    found = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    for file in found[:SHOWN]:
        yield f"  {escape(str(file.get('path') or ''))} ({escape(str(file.get('kind') or 'content'))})"
    if len(found) > SHOWN:
        yield f"  and {len(found) - SHOWN} more"


def _choices(name: str, choices: Any, how: str) -> Iterator[tuple[str, str]]:
    update = f"sandyard git update {name}"
    known = choices if isinstance(choices, list) else []
    if "merge" in known and how == "rebase":
        yield f"{update} --merge", "merge instead: each conflict appears at most once"
    if "agent" in known:
        yield f"{update} --agent", "write conflict markers and let the session's agent resolve them"
        yield f"sandyard sandbox shell {name}", "then inspect or resolve them yourself"
    if "give_up" in known:
        yield f"{update} --give-up", "abort such a merge and restore the previous state"


def _columns(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    table = list(rows)
    width = max((len(command) for command, _ in table), default=0)
    yield from (f"  {command:<{width}}   {words}" for command, words in table)
