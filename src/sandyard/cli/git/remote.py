"""`sandyard git clone, push, update`: exchange commits between a checkout and its remote."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sandyard.cli.completion import complete_projects
from sandyard.cli.connection import connect, get_project_id
from sandyard.cli.errors import FAILED
from sandyard.cli.git.checkout import target_argument
from sandyard.cli.git.failures import format_conflicts
from sandyard.cli.git.operations import print_result, run_operation, shorten_commit
from sandyard.cli.options import drop_missing
from sandyard.cli.output import echo, output_option, pluralize

F = TypeVar("F", bound=Callable[..., Any])
UPDATE_METHODS = {
    "rebase": "Rebase the branch onto the latest base branch.  [default]",
    "merge": "Merge the base branch instead. Needed for pushed branches, which cannot be rebased.",
    "check": "Only report new commits and whether there would be conflicts.",
    "agent": "Merge, write conflict markers and let the session's agent resolve them.",
    "give_up": "Abort a merge or rebase that is in progress and restore the previous state.",
}


@click.command()
@target_argument
@click.option("--project", shell_complete=complete_projects, help="Fail unless the sandbox belongs to this project.")
@click.option("--base", help="Branch to start from.  [default: the project's base branch]")
@click.option("--branch", help="Branch to work on.  [default: a new branch]")
@output_option
def clone(target: str, project: str | None, base: str | None, branch: str | None, output: str | None) -> None:
    """Check out the project's repository in a sandbox. Sessions of a project already have a checkout."""
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        operation = run_operation(
            client, "clone", target, drop_missing(projectId=project_id, baseBranch=base, branch=branch)
        )
    detail = operation["detail"]
    print_result(
        operation,
        f"On branch {detail.get('branch')}, from {detail.get('baseBranch')}, in {detail.get('folder')}.",
        output,
    )


@click.command()
@target_argument
@output_option
def push(target: str, output: str | None) -> None:
    """Push the commits of a checkout's branch to the remote. Never force-pushes."""
    with connect() as client:
        operation = run_operation(client, "push", target)
    detail = operation["detail"]
    print_result(operation, describe_push(detail), output)
    if conflicts := detail.get("conflicts"):
        echo("The branch has conflicts with its base branch.", err=True)
        for line in format_conflicts(conflicts):
            echo(line, err=True)
        echo(f"To resolve them: sandyard git update {target} --agent", err=True)


def describe_push(detail: dict[str, Any]) -> str:
    branch, commit = detail.get("branch"), shorten_commit(detail.get("commit"))
    if detail.get("upToDate"):
        return f"Everything up to date: {branch} is already at {commit} on the remote."
    number = detail.get("commits")
    size = f", {pluralize(number, 'commit')} ahead of its base" if isinstance(number, int) else ""
    return f"Pushed {branch}, now at {commit}{size}."


def _method_options(function: F) -> F:
    for name, text in reversed(UPDATE_METHODS.items()):
        function = click.option(f"--{name.replace('_', '-')}", "how", flag_value=name, type=str, help=text)(function)
    return function


@click.command()
@target_argument
@_method_options
@click.option(
    "--source",
    type=click.Choice(["base", "branch"]),
    help="branch: get commits that others pushed to this branch.  [default: base]",
)
@output_option
def update(target: str, how: str | None, source: str | None, output: str | None) -> None:
    """Update a branch with new commits of its base branch.

    On conflicts nothing is changed and the options are listed. With --check, the exit code is 1 if there would be conflicts.
    """
    with connect() as client:
        operation = run_operation(client, "update", target, drop_missing(how=how, source=source))
    detail = operation["detail"]
    print_result(operation, describe_update(how or "rebase", detail), output)
    conflicts = detail.get("conflicts") or []
    for line in format_conflicts(conflicts):
        echo(line, err=True)
    if conflicts and how == "check":
        sys.exit(FAILED)


def describe_update(how: str, detail: dict[str, Any]) -> str:
    source, behind = detail.get("source") or "the base", detail.get("behind")
    shown, number = len(detail.get("conflicts") or []), detail.get("conflictCount")
    files = pluralize(number if isinstance(number, int) else shown, "file")
    if how == "give_up":
        return "Restored the previous state." if detail.get("ended") else "No merge or rebase is in progress."
    if behind == 0:
        return f"No new commits on {source}."
    new_commits = pluralize(behind, "commit") if isinstance(behind, int) else "new commits"
    if how == "check":
        conflict_text = (
            f"There would be conflicts in {files}" if detail.get("conflicts") else "There would be no conflicts"
        )
        return f"{source} is {new_commits} ahead. {conflict_text}."
    if detail.get("conflicts"):
        return f"Merging {source} caused conflicts in {files}. The session's agent was told to resolve them."
    return f"Added {new_commits} from {source}; now at {shorten_commit(detail.get('head'))}."
