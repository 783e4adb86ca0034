"""What can be done about something that git would not do, as commands to copy."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from sandyard.cli.errors import ApiError
from sandyard.cli.output import echo, printable

SHOWN = 50
REMEDIES = {
    "branch_moved": "Bring its commits in, then push again: sandyard git update {name} --source branch",
    "branch_gone": "Begin a new one here: sandyard git branch {name} NAME; or from the base: --start main",
    "rebase_refused": "Merge: sandyard git update {name} --merge",
    "no_checkout": "Make one, in a sandbox of a project: sandyard git clone {name}",
    "not_in_project": "Start in the project: sandyard session create --project PROJECT; or: sandyard sandbox create --project PROJECT",
    "remote_refused": "See what is wrong: sandyard project test PROJECT; a new token: sandyard project token PROJECT",
    "remote_missing": "See what is wrong: sandyard project test PROJECT",
    "nothing_to_commit": "See what there is: sandyard git status {name}",
}


def fail(error: ApiError, workplace: str, verb: str, asked: Mapping[str, object]) -> NoReturn:
    """Say it as every error is said, and below it what can be done; ends this process. `asked`: the request's body."""
    echo(f"sandyard: {error.message}", err=True)
    for line in explain(error, workplace, verb, asked):
        echo(line, err=True)
    sys.exit(error.exit_code)


@contextlib.contextmanager
def advised(workplace: str) -> Iterator[None]:
    """The same, of whatever is read in here."""
    try:
        yield
    except ApiError as error:
        fail(error, workplace, "read", {})


def explain(error: ApiError, workplace: str, verb: str, asked: Mapping[str, object]) -> Iterator[str]:
    """Lines to be read below the error's sentence; none for what that says already. `asked`: the request's body."""
    name = shlex.quote(workplace)
    suggestion = error.details.get("suggestion")
    if suggestion and verb == "commit":
        yield f"Try: sandyard git commit {name} -m {shlex.quote(printable(str(suggestion)))}"
    if error.problem_code == "conflicts":
        yield from conflicts(error.details.get("files"))
        if verb == "update":
            yield "What can be done:"
            yield from _columns(_choices(name, error.details.get("choices"), str(asked.get("how") or "rebase")))
    elif (remedy := REMEDIES.get(error.problem_code or "")) and verb != "restore":
        yield remedy.format(name=name)


def conflicts(files: object) -> Iterator[str]:
    """A line for each file."""
    found = [file for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    for file in found[:SHOWN]:
        yield f"  {printable(str(file.get('path') or ''))} ({printable(str(file.get('kind') or 'content'))})"
    if len(found) > SHOWN:
        yield f"  and {len(found) - SHOWN} more"


def _choices(name: str, choices: Any, how: str) -> Iterator[tuple[str, str]]:
    update = f"sandyard git update {name}"
    known = choices if isinstance(choices, list) else []
    if "merge" in known and how == "rebase":
        yield f"{update} --merge", "merge instead: that has each conflict once at most, and sometimes none"
    if "agent" in known:
        yield f"{update} --agent", "put both sides into the files, and tell the session's agent to solve them"
        yield f"sandyard sandbox shell {name}", "then look in there, or solve them yourself"
    if "give_up" in known:
        yield f"{update} --give-up", "end such a merge again, as if it never was"


def _columns(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    table = list(rows)
    width = max((len(command) for command, _ in table), default=0)
    yield from (f"  {command:<{width}}   {words}" for command, words in table)
