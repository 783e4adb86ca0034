"""`sandyard git clone, push, update`: between a checkout and its remote."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sandyard.cli.completion import project_ids
from sandyard.cli.connection import connect, project_of
from sandyard.cli.errors import FAILED
from sandyard.cli.git.failures import conflicts
from sandyard.cli.git.running import carry_out
from sandyard.cli.git.told import counted, short, told
from sandyard.cli.git.workplace import workplace_argument
from sandyard.cli.options import given
from sandyard.cli.output import echo, output_option

F = TypeVar("F", bound=Callable[..., Any])
HOW = {
    "rebase": "Put its commits on top of the base's newest.  [default]",
    "merge": "Merge the base in: for branches that were pushed, which are not rebased any more.",
    "check": "Only say what is new, and whether there would be conflicts.",
    "agent": "Merge; conflicts are put into the files, and the session's agent is told to solve them.",
    "give_up": "End a merge or rebase that is under way, and put everything back.",
}


@click.command()
@workplace_argument
@click.option("--project", shell_complete=project_ids, help="Fail unless the sandbox belongs to this project.")
@click.option("--base", help="The branch to start from.  [default: the project's]")
@click.option("--branch", help="The branch to work on.  [default: a new one]")
@output_option
def clone(workplace: str, project: str | None, base: str | None, branch: str | None, output: str | None) -> None:
    """Check out the repository of a sandbox's project in it. Sessions of a project have their checkout already."""
    with connect() as client:
        project_id = project_of(client, project) if project else None
        done = carry_out(client, "clone", workplace, given(projectId=project_id, baseBranch=base, branch=branch))
    detail = done["detail"]
    told(done, f"On branch {detail.get('branch')}, from {detail.get('baseBranch')}, in {detail.get('folder')}.", output)


@click.command()
@workplace_argument
@output_option
def push(workplace: str, output: str | None) -> None:
    """Send the commits of a checkout's branch to the remote. Never by force: what others pushed there stays."""
    with connect() as client:
        done = carry_out(client, "push", workplace)
    detail = done["detail"]
    told(done, pushed(detail), output)
    if found := detail.get("conflicts"):
        echo("It cannot be merged as it is: its base has changed the same lines.", err=True)
        for line in conflicts(found):
            echo(line, err=True)
        echo(f"What can be done: sandyard git update {workplace} --agent", err=True)


def pushed(detail: dict[str, Any]) -> str:
    branch, commit = detail.get("branch"), short(detail.get("commit"))
    if detail.get("upToDate"):
        return f"Nothing is new: {branch} is at {commit} on the remote already."
    number = detail.get("commits")
    size = f", {counted(number, 'commit')} from its base" if isinstance(number, int) else ""
    return f"Pushed {branch}, now at {commit}{size}."


def _how(function: F) -> F:
    for name, text in reversed(HOW.items()):
        function = click.option(f"--{name.replace('_', '-')}", "how", flag_value=name, type=str, help=text)(function)
    return function


@click.command()
@workplace_argument
@_how
@click.option(
    "--source",
    type=click.Choice(["base", "branch"]),
    help="branch: bring in what others have pushed to this very branch.  [default: base]",
)
@output_option
def update(workplace: str, how: str | None, source: str | None, output: str | None) -> None:
    """Bring in what is new on the base branch.

    On conflicts nothing is changed, and the choice is yours. With --check the exit code is 1 when there would be some.
    """
    with connect() as client:
        done = carry_out(client, "update", workplace, given(how=how, source=source))
    detail = done["detail"]
    told(done, updated(how or "rebase", detail), output)
    found = detail.get("conflicts") or []
    for line in conflicts(found):
        echo(line, err=True)
    if found and how == "check":
        sys.exit(FAILED)


def updated(how: str, detail: dict[str, Any]) -> str:
    source, behind = detail.get("source") or "the base", detail.get("behind")
    shown, number = len(detail.get("conflicts") or []), detail.get("conflictCount")
    files = counted(number if isinstance(number, int) else shown, "file")
    if how == "give_up":
        return "Everything is as it was before." if detail.get("ended") else "There was no merge or rebase under way."
    if behind == 0:
        return f"Nothing is new on {source}."
    news = counted(behind, "commit") if isinstance(behind, int) else "what is new"
    if how == "check":
        would = f"There would be conflicts in {files}" if detail.get("conflicts") else "There would be no conflicts"
        return f"{source} has {news} more. {would}."
    if detail.get("conflicts"):
        return f"The merge of {source} has stopped at conflicts in {files}, which the session's agent is told to solve."
    return f"Brought in {news} of {source}; now at {short(detail.get('head'))}."
