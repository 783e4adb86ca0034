"""`sandyard pr`: open, show and merge pull requests of sessions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_projects, complete_pull_requests, complete_targets
from sandyard.cli.connection import connect, get_project_id, get_sandbox_id, quote_segment
from sandyard.cli.errors import ApiError, CommandError
from sandyard.cli.git.checkout import get_session_id
from sandyard.cli.git.failures import print_error_and_exit
from sandyard.cli.git.progress import ProgressLine
from sandyard.cli.options import drop_missing, limit_option
from sandyard.cli.output import (
    echo,
    escape,
    escape_line,
    output_option,
    print_json,
    show_list,
    show_one,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {
    "NUMBER": "number",
    "STATE": "state",
    "DRAFT": "draft",
    "TITLE": "title",
    "CHECKS": "checks",
    "REVIEW": "review",
    "SESSION": "sessionId",
    "UPDATED": "updatedAt",
}
FIELDS = {
    "number": "number",
    "title": "title",
    "state": "state",
    "draft": "draft",
    "from": "headBranch",
    "into": "baseBranch",
    "mergeable": "mergeable",
    "review": "review",
    "checks": "checks",
    "session": "sessionId",
    "task": "taskId",
    "project": "projectId",
    "created": "createdAt",
    "merged": "mergedAt",
    "closed": "closedAt",
    "refreshed": "lookedAt",
    "URL": "url",
}
STATES = ["open", "closed", "merged", "pushed"]
API_PATH = "/github/pull-requests"
MAX_SHOWN_COMMENTS = 20
MARKS = {"success": "✓", "neutral": "-", "skipped": "-", None: "…"}

pull_argument = click.argument("pull", metavar="NUMBER|SESSION", shell_complete=complete_pull_requests)
project_option = click.option(
    "--project",
    shell_complete=complete_projects,
    help="Project of the pull request, if several projects have one with this number.",
)


@click.group("pr")
def pull_request() -> None:
    """Manage pull requests of sessions. Give the number, or the session's or task's id."""


@pull_request.command("open")
@click.argument("target", metavar="SESSION", shell_complete=complete_targets)
@click.option("--title", help="Title.  [default: from the commits or the task]")
@click.option("--body", help="Description.  [default: from the commits, the task and the checks]")
@click.option(
    "--body-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the description from a local file; `-` reads standard input.",
)
@click.option(
    "--draft/--ready", default=None, help="Open as a draft or ready for review.  [default: the project's setting]"
)
@click.option("--label", "labels", multiple=True, help="Label, in addition to the project's. Repeatable.")
@click.option("--reviewer", "reviewers", multiple=True, help="Reviewer, in addition to the project's. Repeatable.")
@click.option("--assignee", "assignees", multiple=True, help="Assignee, in addition to the project's. Repeatable.")
@click.option("--base", help="Branch to merge into.  [default: the branch it started from]")
@text_option
def open_pull(
    *, target: str, body: str | None, body_file: str | None, base: str | None, output: str, **options: Any
) -> None:
    """Open a pull request, or update the existing one.

    Unpushed commits are pushed first. The last line on standard output is the pull request's URL.
    """
    if body is not None and body_file is not None:
        raise click.UsageError("Use either --body or --body-file, not both.")
    if body_file is not None:
        body = sys.stdin.read() if body_file == "-" else Path(body_file).read_text()
    with connect() as client:
        request = drop_missing(sandboxId=get_sandbox_id(client, target), body=body, base=base, **options)
        try:
            with ProgressLine() as line:
                line.show_progress("pushing and opening the pull request", None)
                pull = client.post(API_PATH, request)
        except ApiError as error:
            print_error_and_exit(error, target, "pull-requests", request)
    if output == "json":
        print_json(pull)
        return
    for warning in (pull.get("detail") or {}).get("warnings") or []:
        echo(f"Note: {escape(str(warning))}", err=True)
    echo(format_summary(pull), err=True)
    echo(escape(pull["url"]))


@pull_request.command("list")
@click.option("--project", shell_complete=complete_projects, help="Only pull requests of this project.")
@click.option("--state", type=click.Choice(STATES), help="Only pull requests in this state.")
@limit_option()
@output_option
def list_pulls(project: str | None, state: str | None, limit: int, output: str | None) -> None:
    """List pull requests, newest first. Shows the state last reported by the forge."""
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        page = client.list_items(API_PATH, limit, projectId=project_id, state=state)
    show_list(page, COLUMNS, output, empty_message="No pull requests. To open one: sandyard pr open SESSION")


@pull_request.command()
@pull_argument
@project_option
@click.option("--refresh", is_flag=True, help="Refresh from the forge first.")
@output_option
def show(pull: str, project: str | None, refresh: bool, output: str | None) -> None:
    """Show a pull request with its checks and reviews."""
    with connect() as client:
        found = find_pull_request(client, pull, project)
        if refresh:
            found = _perform(client, found, "refresh")
    _print_pull(found, output)


@pull_request.command()
@pull_argument
@project_option
@click.option(
    "--method", type=click.Choice(["squash", "merge", "rebase"]), help="Merge method.  [default: the project's setting]"
)
@output_option
def merge(pull: str, project: str | None, method: str | None, output: str | None) -> None:
    """Merge a pull request. Also merges a branch that was pushed to a remote without pull requests."""
    with connect() as client:
        done = _perform(client, find_pull_request(client, pull, project), "merge", method=method)
    _print_summary(done, output)


def _add_command(name: str, help_text: str) -> None:
    @pull_request.command(name, help=help_text)
    @pull_argument
    @project_option
    @output_option
    def verb(pull: str, project: str | None, output: str | None) -> None:
        with connect() as client:
            done = _perform(client, find_pull_request(client, pull, project), name)
        _print_summary(done, output)


_add_command("ready", "Mark a draft as ready for review.")
_add_command("close", "Close a pull request without merging it. The branch is kept.")
_add_command("refresh", "Refresh a pull request from the forge.")


def find_pull_request(client: Client, name: str, project: str | None) -> Any:
    """Return a pull request, given its number, its session (or the session's sandbox) or its task."""
    number = name.removeprefix("#")
    if number.isascii() and number.isdecimal():
        project_id = get_project_id(client, project) if project else None
        return client.get(f"{API_PATH}/{int(number)}", projectId=project_id)
    if name.startswith(("ses_", "sbx_")):
        return client.get(f"/sessions/{quote_segment(get_session_id(client, name))}/pull-request")
    return client.get(f"/tasks/{quote_segment(name)}/pull-request")


def format_summary(pull: Any) -> str:
    """Return, for example, `#7 fix: the login (open, draft): task-1 into main, checks pending, review none`."""
    number = f"#{pull['number']} " if pull.get("number") is not None else ""
    state = f"{pull['state']}, draft" if pull.get("draft") else pull["state"]
    text = f"{number}{pull['title']} ({state}): {pull['headBranch']} into {pull['baseBranch']}"
    if pull.get("checks") not in {None, "none"}:
        text += f", checks {pull['checks']}"
    if pull.get("review") not in {None, "none"}:
        text += f", review {str(pull['review']).replace('_', ' ')}"
    return escape(text)


def _perform(client: Client, pull: Any, verb: str, **body: object) -> Any:
    if pull.get("number") is None:
        if verb not in {"merge", "refresh"}:
            raise CommandError(
                f"The branch {pull['headBranch']} is on a plain Git remote, which does not support pull requests. "
                f"To merge it: sandyard pr merge {pull.get('taskId') or pull.get('sessionId')}"
            )
        return client.post(f"/pull-requests/{quote_segment(pull['id'])}/{verb}", drop_missing(**body))
    return client.post(f"{API_PATH}/{pull['number']}/{verb}", drop_missing(projectId=pull["projectId"], **body))


def _print_summary(pull: Any, output: str | None) -> None:
    print_json(pull) if wants_json(output) else echo(format_summary(pull))


def _print_pull(pull: Any, output: str | None) -> None:
    show_one(pull, FIELDS, output)
    if not wants_json(output):
        for line in describe_checks_and_comments(pull.get("detail") or {}):
            echo(line)


def describe_checks_and_comments(detail: Any) -> Iterator[str]:
    """Yield the checks and the latest comments, oldest first."""
    if runs := detail.get("runs"):
        yield "\nChecks"
        for run in runs:
            mark = MARKS.get(run.get("conclusion"), "✗")
            outcome = run.get("conclusion") or run.get("status") or ""
            tail = f"  {escape(run['url'])}" if run.get("url") else ""
            yield f"  {mark} {escape(run['name'])}: {escape(outcome.replace('_', ' '))}{tail}"
            if mark == "✗" and run.get("summary"):
                yield f"    {escape(run['summary'])}"
    remarks = [remark for remark in detail.get("remarks") or [] if remark.get("kind") != "check"]
    if remarks:
        yield "\nComments"
        if len(remarks) > MAX_SHOWN_COMMENTS:
            yield f"  … {len(remarks) - MAX_SHOWN_COMMENTS} earlier comments"
        for remark in remarks[-MAX_SHOWN_COMMENTS:]:
            yield from _format_remark(remark)


def _format_remark(remark: Any) -> Iterator[str]:
    state = f" ({escape(remark['state'].lower().replace('_', ' '))})" if remark.get("state") else ""
    line = f":{remark['line']}" if remark.get("line") else ""
    location = f" on {escape(remark['path'])}{line}" if remark.get("path") else ""
    yield f"  {escape(remark['author'])}{state}{location}:"
    yield from (f"    {escape_line(line)}" for line in (remark.get("text") or "").splitlines())
