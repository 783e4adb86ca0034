"""Suggest commands that fix a failed git operation."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from sandyard.cli.errors import ApiError
from sandyard.cli.output import echo, escape

MAX_SHOWN_FILES = 50
REMEDIES = {
    "branch_moved": "Get the new commits, then push again: sandyard git update {name} --source branch",
    "branch_gone": "Create a new branch: sandyard git branch {name} NAME (from the base branch: --start main)",
    "ci_files": "To review them: sandyard git diff {name}. To allow such changes: sandyard project set PROJECT --ci-files allow",
    "rebase_refused": "Merge instead: sandyard git update {name} --merge",
    "no_checkout": "To create one in a sandbox of a project: sandyard git clone {name}",
    "not_in_project": "Use a project: sandyard session create --project PROJECT, or sandyard sandbox create --project PROJECT",
    "remote_refused": "To find the cause: sandyard project test PROJECT. To set a new token: sandyard project token PROJECT",
    "remote_missing": "To find the cause: sandyard project test PROJECT",
    "nothing_to_commit": "To see the current state: sandyard git status {name}",
}


def print_error_and_exit(error: ApiError, target: str, verb: str, body: Mapping[str, object]) -> NoReturn:
    """Print the error and what to do about it, and exit. `body` is the request's body."""
    echo(f"sandyard: {error.message}", err=True)
    for line in explain(error, target, verb, body):
        echo(line, err=True)
    sys.exit(error.exit_code)


@contextlib.contextmanager
def print_advice_on_error(target: str) -> Iterator[None]:
    """Handle errors of the enclosed requests like `print_error_and_exit`."""
    try:
        yield
    except ApiError as error:
        print_error_and_exit(error, target, "read", {})


def explain(error: ApiError, target: str, verb: str, body: Mapping[str, object]) -> Iterator[str]:
    """Yield lines to print below the error message. Nothing if the message is sufficient. `body` is the request's body."""
    name = shlex.quote(target)
    suggestion = error.details.get("suggestion")
    if suggestion and verb == "commit":
        yield f"Try: sandyard git commit {name} -m {shlex.quote(escape(str(suggestion)))}"
    if error.problem_code == "conflicts":
        yield from format_conflicts(error.details.get("files"))
        if verb == "update":
            yield "To resolve this, run one of:"
            yield from _align_columns(
                _list_choices(name, error.details.get("choices"), str(body.get("how") or "rebase"))
            )
    elif (remedy := REMEDIES.get(error.problem_code or "")) and verb != "restore":
        yield remedy.format(name=name)


def format_conflicts(files: object) -> Iterator[str]:
    """Yield a line for each file."""
    conflicts = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    for file in conflicts[:MAX_SHOWN_FILES]:
        yield f"  {escape(str(file.get('path') or ''))} ({escape(str(file.get('kind') or 'content'))})"
    if len(conflicts) > MAX_SHOWN_FILES:
        yield f"  and {len(conflicts) - MAX_SHOWN_FILES} more"


def _list_choices(name: str, choices: Any, how: str) -> Iterator[tuple[str, str]]:
    update = f"sandyard git update {name}"
    offered = choices if isinstance(choices, list) else []
    if "merge" in offered and how == "rebase":
        yield f"{update} --merge", "merge instead: each conflict appears at most once"
    if "agent" in offered:
        yield f"{update} --agent", "write conflict markers and let the session's agent resolve them"
        yield f"sandyard sandbox shell {name}", "then inspect or resolve them yourself"
    if "give_up" in offered:
        yield f"{update} --give-up", "abort such a merge and restore the previous state"


def _align_columns(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    table = list(rows)
    width = max((len(command) for command, _ in table), default=0)
    yield from (f"  {command:<{width}}   {text}" for command, text in table)
