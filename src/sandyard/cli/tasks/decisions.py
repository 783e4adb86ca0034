"""Commands for decisions about a task: answer, stop, retry, move, pick, remove. Also shows its pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_agents
from sandyard.cli.connection import connect, quote_segment
from sandyard.cli.errors import ApiError
from sandyard.cli.live.asks import allow_denied, answer_options, answer_or_list
from sandyard.cli.options import drop_missing
from sandyard.cli.output import echo, escape, output_option, print_json, text_option, wants_json
from sandyard.cli.pull_requests import describe_checks_and_comments, format_summary
from sandyard.cli.tasks.lookup import find_attempt, find_task, task_argument
from sandyard.cli.tasks.progress import follow_task, get_shown_state
from sandyard.cli.tasks.views import COLUMNS, get_task_state

if TYPE_CHECKING:
    from sandyard.cli.client import Client

follow_option = click.option("-f", "--follow", "following", is_flag=True, help="Follow the progress.")


@click.command()
@task_argument
@answer_options
@text_option
def answer(task: str, output: str, **given: Any) -> None:
    """Answer the agent's question or permission request. Without ANSWER, show it.

    ANSWER is an option's number or name, or allow or reject; for a question it is free text.
    For several questions at once, use NAME=ANSWER for each, or one answer for each in order.
    """
    with connect() as client:
        found = find_task(client, task)
        answer_or_list(client, {"taskId": found["id"]}, found["id"], as_json=output == "json", **given)


@click.command()
@task_argument
@follow_option
@text_option
def allow(task: str, following: bool, output: str) -> None:
    """Allow what the project's policy denied, and continue. Applies to the rest of the session."""
    with connect() as client:
        found = find_task(client, task)
        seen = get_shown_state(client, found) if following else None
        allow_denied(client, {"taskId": found["id"]}, found["id"], as_json=output == "json")
        if following:
            current = client.get(f"/tasks/{quote_segment(found['id'])}")
            follow_task(client, current, as_json=output == "json", seen=seen)


@click.command()
@task_argument
@output_option
def stop(task: str, output: str | None) -> None:
    """Stop all work on a task. Its branch and its transcript are kept."""
    with connect() as client:
        done = client.post(f"/tasks/{quote_segment(find_task(client, task)['id'])}/stop")
    print_task(done, output)


@click.command()
@task_argument
@click.option("-m", "--message", help="Message to the agent.")
@click.option("--agent", shell_complete=complete_agents, help="Agent that continues.  [default: the task's]")
@click.option("--model", help="Model to use.")
@follow_option
@output_option
def retry(
    task: str, *, message: str | None, agent: str | None, model: str | None, following: bool, output: str | None
) -> None:
    """Retry a failed or stopped task. It continues where it was, with the same or another agent. A task that is done starts over."""
    with connect() as client:
        found = find_task(client, task)
        if agent is not None or model is not None:
            _change_agent(client, found, agent, model)
        seen = get_shown_state(client, found) if following else None
        done = client.post(f"/tasks/{quote_segment(found['id'])}/retry", drop_missing(message=message) or None)
        if following:
            follow_task(client, done, as_json=output == "json", seen=seen)
            return
    print_task(done, output)


def _change_agent(client: Client, task: Any, agent: str | None, model: str | None) -> None:
    if len(task.get("wanted") or []) > 1:
        raise click.UsageError("This task has several parallel agents. Use Edit on the task's web page to change them.")
    wanted = {"agent": task.get("agent"), "model": task.get("model"), **((task.get("wanted") or [{}])[0])}
    if agent is not None and agent != wanted["agent"]:
        wanted = {"agent": agent, "model": None}  # the old model belongs to another agent
    change = {"agent": wanted["agent"], "model": model or wanted["model"], "attempts": []}
    client.patch(f"/tasks/{quote_segment(task['id'])}", change)


def _parse_column(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Parse a column such as `in_review`, also written in-review or "In review"."""
    name = "_".join(value.lower().replace("-", " ").replace("_", " ").split())
    if name not in COLUMNS:
        raise click.BadParameter(f"there is no column {value!r}. Use one of {', '.join(COLUMNS)}.")
    return name


@click.command()
@task_argument
@click.argument("column", metavar="COLUMN", callback=_parse_column)
@click.option("--feedback", help="Message to the agent. Required to move a task back from review.")
@click.option("--position", type=click.IntRange(0), help="Position in the column; 0 is the top.")
@follow_option
@output_option
def move(
    *, task: str, column: str, feedback: str | None, position: int | None, following: bool, output: str | None
) -> None:
    """Move a task to COLUMN.

    COLUMN is backlog, in_progress, in_review, done or cancelled. Moving to in_progress starts the task. Moving back from in_review needs
    --feedback.
    """
    with connect() as client:
        found = find_task(client, task)
        seen = get_shown_state(client, found) if following else None
        body = drop_missing(status=column, feedback=feedback, position=position)
        done = client.post(f"/tasks/{quote_segment(found['id'])}/move", body)
        if following:
            follow_task(client, done, as_json=output == "json", seen=seen)
            return
    print_task(done, output)


@click.command()
@task_argument
@click.argument("attempt", type=click.IntRange(1))
@follow_option
@output_option
def pick(task: str, attempt: int, following: bool, output: str | None) -> None:
    """Choose one of several attempts. It becomes the pull request, and the others are archived."""
    with connect() as client:
        found = find_task(client, task)
        chosen = find_attempt(found, attempt)
        seen = get_shown_state(client, found) if following else None
        done = client.post(f"/tasks/{quote_segment(found['id'])}/pick", {"attemptId": chosen["id"]})
        if following:
            follow_task(client, done, number=attempt, as_json=output == "json", seen=seen)
            return
    print_task(done, output)


@click.command()
@task_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(task: str, yes: bool) -> None:
    """Delete a task with its attempts. Branches and pull requests are kept."""
    with connect() as client:
        found = find_task(client, task)
        if not yes:
            click.confirm(f"Delete {found['id']} {escape(found['title'])}?", abort=True, err=True)
        client.delete(f"/tasks/{quote_segment(found['id'])}")


@click.command("pr")
@task_argument
@text_option
def pull_request(task: str, output: str) -> None:
    """Show a task's pull request. Prints its state on standard error and its URL on standard output."""
    with connect() as client:
        found = find_task(client, task)
        try:
            pull = client.get(f"/tasks/{quote_segment(found['id'])}/pull-request")
        except ApiError as error:
            if error.http_status != 404:
                raise
            raise ApiError(f"{found['id']} has no pull request{_explain_missing(found)}.", 404) from None
    if output == "json":
        print_json(pull)
        return
    echo(format_summary(pull), err=True)
    for line in describe_checks_and_comments(pull.get("detail") or {}):
        echo(line, err=True)
    echo(escape(pull["url"]))


def _explain_missing(task: Any) -> str:
    ready = [str(attempt["number"]) for attempt in task.get("attempts") or [] if attempt["status"] == "ready"]
    if len(ready) > 1:
        return f": pick one of its attempts first with `sandyard task pick {task['id']} {ready[0]}`"
    return " yet" if task["status"] in {"backlog", "in_progress"} else ""


def print_task(task: Any, output: str | None) -> None:
    if wants_json(output):
        print_json(task)
        return
    for line in _describe_task(task):
        echo(line)


def _describe_task(task: Any) -> Iterator[str]:
    state = get_task_state(task)
    yield escape(f"{task['id']} {task['title']}: {task['status'].replace('_', ' ')}{f' ({state})' if state else ''}")
    if task.get("error"):
        yield escape(str(task["error"]))
