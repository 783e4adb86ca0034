"""`sandyard task list`, `show`, `queue` and `compare`: commands that show tasks."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.advice import get_advice
from sandyard.cli.completion import complete_projects
from sandyard.cli.connection import MAX_ITEMS, connect, get_project_id, quote_segment
from sandyard.cli.errors import ApiError
from sandyard.cli.live.asks import describe_ask, list_pending
from sandyard.cli.live.screen import format_duration
from sandyard.cli.options import limit_option
from sandyard.cli.output import (
    echo,
    escape,
    escape_line,
    fit_column,
    format_age,
    is_terminal,
    make_console,
    output_option,
    print_json,
    show_list,
    show_one,
    wants_colour,
    wants_json,
)
from sandyard.cli.pull_requests import format_summary
from sandyard.cli.tasks.lookup import AgentNames, find_task, task_argument
from sandyard.cli.tasks.progress import describe_review, get_pull, get_repository
from sandyard.cli.tasks.steps import STEP_COLOURS, format_step, get_step_label, get_step_state

if TYPE_CHECKING:
    from sandyard.cli.client import Client


COLUMNS = ["backlog", "in_progress", "in_review", "done", "cancelled"]
COLUMN_ORDER = {"in_progress": 0, "in_review": 1, "backlog": 2, "done": 3, "cancelled": 4}
"""Sort order of the columns: active tasks first."""
LIST_COLUMNS = {
    "ID": "id",
    "COLUMN": "column",
    "STATE": "status",
    "TITLE": "title",
    "PRIORITY": "priority",
    "AGENT": "agent",
    "PR": "pull",
    "PROJECT": "project",
    "CHANGED": "updatedAt",
}
NARROW_COLUMNS = {"ID": "id", "STATUS": "short", "TITLE": "title", "PR": "pull", "CHANGED": "updatedAt"}
FULL_WIDTH = 120
"""Minimum terminal width for showing all columns."""
QUEUE_COLUMNS = {"POSITION": "position", "TASK": "taskId", "ATTEMPT": "number", "TITLE": "title", "REASON": "reason"}
COMPARISON_COLUMNS = {
    "ATTEMPT": "number",
    "AGENT": "agent",
    "MODEL": "model",
    "STATUS": "status",
    "VERIFIED": "verified",
    "FILES": "files",
    "LINES": "lines",
    "COST": "cost",
    "TOKENS": "tokens",
    "TIME": "time",
}
FIELDS = {
    "id": "id",
    "title": "title",
    "column": "column",
    "state": "status",
    "project": "project",
    "agent": "agent",
    "model": "model",
    "base": "baseBranch",
    "from session": "fromSessionId",
    "priority": "priority",
    "budget": "budget",
    "needs": "needs",
    "blocked by": "blockedBy",
    "not started": "startError",
    "created by": "source",
    "created": "createdAt",
    "started": "startedAt",
    "finished": "finishedAt",
    "error": "error",
}


@click.command("list")
@click.option("--project", shell_complete=complete_projects, help="Only tasks of this project.")
@click.option(
    "--status", "statuses", type=click.Choice(COLUMNS), multiple=True, help="Only tasks in this column. Repeatable."
)
@click.option("-q", "--search", "words", help="Only tasks whose title or description contains this.")
@limit_option()
@output_option
def list_tasks(
    project: str | None, statuses: tuple[str, ...], words: str | None, limit: int, output: str | None
) -> None:
    """List tasks, active ones first."""
    with connect() as client:
        project_id = get_project_id(client, project) if project else None
        if wants_json(output):
            print_json(_fetch_tasks(client, limit, statuses, projectId=project_id, q=words))
            return
        agents = AgentNames(client)
        with ThreadPoolExecutor(4) as pool:  # in parallel, because a busy server is slow
            names_future = pool.submit(_fetch_project_names, client) if project_id is None else None
            asks_future, demos_future = pool.submit(list_pending, client, {}), pool.submit(agents.list_demos)
            page = _fetch_tasks(client, limit, statuses, projectId=project_id, q=words)
            demos_future.result()
            names, asks = names_future.result() if names_future else {}, asks_future.result()
        tasks = sorted(page["items"], key=lambda task: COLUMN_ORDER.get(task["status"], 9))
        asking = _find_tasks_waiting_for_answer(tasks, asks)
        rows = [_format_row(task, names, agents, asking) for task in tasks]
    columns = LIST_COLUMNS
    if is_terminal():
        width = make_console().width
        columns = LIST_COLUMNS if width >= FULL_WIDTH else NARROW_COLUMNS
        rows = fit_column(rows, columns, "title", width)
    show_list({**page, "items": rows}, columns, "table", empty_message="No tasks. To add one: sandyard task add TEXT")


def _fetch_tasks(client: Client, limit: int, statuses: tuple[str, ...], **params: object) -> Any:
    """Return tasks of several columns. The API only filters by one column at a time."""
    if len(statuses) < 2:
        return client.list_items("/tasks", limit, status=statuses[0] if statuses else None, **params)
    items: list[Any] = []
    more = None
    for status in statuses:
        if len(items) < limit:
            page = client.list_items("/tasks", limit - len(items), status=status, **params)
            items += page["items"]
            more = more or page.get("nextCursor")
    return {"items": items, "nextCursor": more}


def _format_row(task: Any, projects: dict[str, str], agents: AgentNames, asking: set[str]) -> dict[str, Any]:
    attempts = task.get("attempts") or []
    pull = get_pull(task) or {}
    names = dict.fromkeys(agents.format_label(attempt.get("agent")) for attempt in attempts if attempt.get("agent"))
    number = pull.get("number")
    column = str(task["status"]).replace("_", " ")
    state = "needs you" if task["id"] in asking else get_task_state(task)
    return {
        **task,
        "column": column,
        "status": state,
        "short": state or column,
        "priority": task.get("priority") or None,
        "agent": ", ".join(names) or agents.format_label(task.get("agent")),
        "pull": f"#{number}"
        if number is not None
        else ("merged" if pull.get("state") == "merged" else "pushed")
        if pull
        else None,
        "project": projects.get(task["projectId"]) if len(projects) > 1 else None,
    }


def _find_tasks_waiting_for_answer(tasks: list[Any], asks: list[Any]) -> set[str]:
    """Return the ids of the tasks whose agent waits for an answer."""
    running = {
        str(attempt["sessionId"]): str(task["id"])
        for task in tasks
        for attempt in task.get("attempts") or []
        if attempt["status"] == "running" and attempt.get("sessionId")
    }
    return {running[ask["sessionId"]] for ask in asks if ask["sessionId"] in running}


def _get_backlog_state(task: Any) -> str:
    if task.get("startError"):
        return "not started"
    return "blocked" if task.get("blockedBy") else "waiting" if task.get("startWhenReady") else ""


def get_task_state(task: Any) -> str:
    """Return a word for the state within the column: `agent`, `waiting`, `failed` …"""
    if task["status"] == "backlog":
        return _get_backlog_state(task)
    if task["status"] != "in_progress":
        return ""
    attempts = task.get("attempts") or []
    running = [attempt for attempt in attempts if attempt["status"] == "running"]
    if any(attempt.get("stopping") for attempt in attempts):
        return "stopping"
    if running:
        return ", ".join(dict.fromkeys(get_step_label(attempt.get("step") or "starting") for attempt in running))
    for status in ("queued", "ready", "failed"):
        if any(attempt["status"] == status for attempt in attempts):
            return status
    return ""


def _fetch_project_names(client: Client) -> dict[str, str]:
    return {project["id"]: escape(project["name"]) for project in client.list_items("/projects", MAX_ITEMS)["items"]}


@click.command()
@output_option
def queue(output: str | None) -> None:
    """List waiting attempts in order, and what they wait for."""
    with connect() as client:
        found = client.get("/queue")
    show_list(found, QUEUE_COLUMNS, output, empty_message="The queue is empty.")


@click.command()
@task_argument
@output_option
def compare(task: str, output: str | None) -> None:
    """Compare attempts side by side. Shows changes, verification, cost and time."""
    with connect() as client:
        found = find_task(client, task)
        attempts = found.get("attempts") or []
        if wants_json(output):
            print_json({"items": attempts, "nextCursor": None})
            return
        agents = AgentNames(client)
        rows = [make_comparison_row(attempt, agents) for attempt in attempts]
    show_list({"items": rows}, COMPARISON_COLUMNS, "table", empty_message=f"{found['id']} has not started yet.")
    _show_errors(attempts)
    if len([attempt for attempt in attempts if attempt["status"] == "ready"]) > 1:
        echo(f"To see one:  sandyard task diff {found['id']} --attempt N", err=True)
        echo(f"To pick one: sandyard task pick {found['id']} N", err=True)


def make_comparison_row(attempt: Any, agents: AgentNames) -> dict[str, Any]:
    diff, spent = attempt.get("diff") or {}, attempt.get("spent") or {}
    verified, seconds = _get_verified(attempt), attempt.get("seconds")
    return {
        "number": str(attempt["number"]),
        "agent": agents.format_label(attempt["agent"]),
        "model": attempt.get("model"),
        "status": str(attempt["status"]).replace("_", " "),
        "verified": None if verified is None else "yes" if verified else "no",
        "files": str(diff["files"]) if diff.get("files") is not None else None,
        "lines": f"+{diff.get('added') or 0} -{diff.get('removed') or 0}" if diff else None,
        "cost": format_cost(spent),
        "tokens": str(tokens) if (tokens := count_tokens(spent)) else None,
        "time": format_duration(seconds) if seconds is not None else None,
    }


def _show_errors(attempts: list[Any]) -> None:
    """Print errors below the table, where there is room for sentences."""
    from rich.padding import Padding  # noqa: PLC0415 - slow to load
    from rich.text import Text  # noqa: PLC0415

    screen = make_console()
    for attempt in attempts:
        if error := str(attempt.get("error") or "").strip():
            lines = "\n".join(escape_line(line) for line in error.split("\n"))
            screen.print(Text(f"\nAttempt {attempt['number']}:"))
            screen.print(Padding(Text(lines), (0, 0, 0, 2), expand=False))


def format_cost(spent: Any) -> str | None:
    """Return None if no model was used or its price is unknown. ≈ marks a cost that contains an estimate, + one that is incomplete."""
    found = spent.get("costUsd")
    if found is None or not spent.get("calls"):
        return None
    suffix = "+" if spent.get("unpriced") else ""
    prefix = "≈ " if spent.get("estimated") else ""
    return f"{prefix}${found:.2f}{suffix}" if found >= 0.1 or found == 0 else f"{prefix}${found:.4f}{suffix}"


def count_tokens(spent: Any) -> int:
    return int(spent.get("inputTokens") or 0) + int(spent.get("outputTokens") or 0)


@click.command()
@task_argument
@output_option
def show(task: str, output: str | None) -> None:
    """Show a task. Includes its attempts with every step, open questions and its pull request."""
    with connect() as client:
        found = find_task(client, task)
        if wants_json(output):
            print_json(found)
            return
        agents = AgentNames(client)
        asks = _list_asks(client, found["id"])
        card = {**_make_card(found, agents), "project": _format_project(client, found["projectId"])}
        show_one(card, FIELDS, output)
        for line in _format_details(found, agents):
            echo(line)
        for line in describe_review(found, get_repository(client, found)):
            echo(f"  {line}")
    for ask in asks:
        echo()
        for ask_line in describe_ask(ask):
            echo(click.style(ask_line.text, **ask_line.style) if wants_colour() else ask_line.text)
        which = f" --ask {ask['id']}" if len(asks) > 1 else ""
        echo(f"  To answer: sandyard task answer {found['id']} ANSWER{which}")


def _format_project(client: Any, project_id: str) -> str:
    """Return, for example, `website (prj_…)`."""
    with contextlib.suppress(ApiError):
        return f"{client.get(f'/projects/{quote_segment(project_id)}')['name']} ({project_id})"
    return project_id


def _list_asks(client: Any, task_id: str) -> list[Any]:
    try:
        return list_pending(client, {"taskId": task_id})
    except ApiError as error:
        if error.http_status != 404:
            raise
        return []


def _make_card(task: Any, agents: AgentNames) -> dict[str, Any]:
    budget = task.get("budget") or {}
    limits = [f"${budget['usd']:g}"] if budget.get("usd") is not None else []
    limits += [f"{budget['tokens']} tokens"] if budget.get("tokens") is not None else []
    source = task.get("source") or {}
    return {
        **task,
        "column": str(task["status"]).replace("_", " "),
        "status": get_task_state(task) or None,
        "agent": agents.format_label(task.get("agent")) or None,
        "priority": task.get("priority") or None,
        "budget": ", ".join(limits) or None,
        "source": _format_source(source),
    }


def _format_source(source: Any) -> str | None:
    kind = source.get("kind") or source.get("type") if isinstance(source, dict) else None
    if kind in {None, "person"}:
        return None
    name = source.get("url") or source.get("name") or source.get("scheduleId") or ""
    return escape(f"{kind} {name}".strip())


def _format_details(task: Any, agents: AgentNames) -> Iterator[str]:
    if task.get("description"):
        yield ""
        yield textwrap.indent("\n".join(escape_line(line) for line in task["description"].split("\n")), "  ")
    for attempt in task.get("attempts") or []:
        yield ""
        yield from _format_attempt(attempt, agents)
    if pull := get_pull(task):
        yield ""
        yield _format_pull(pull)
        if pull.get("number") is not None:
            yield f"  {escape(str(pull.get('url') or ''))}"


def _format_pull(pull: Any) -> str:
    if pull.get("number") is not None:
        return f"Pull request {format_summary(pull)}"
    return escape(f"Pushed: {pull['title']}: {pull['headBranch']} into {pull['baseBranch']}")


def _format_attempt(attempt: Any, agents: AgentNames) -> Iterator[str]:
    model = f", {escape(attempt['model'])}" if attempt.get("model") else ""
    status = str(attempt["status"]).replace("_", " ")
    position = f", position {attempt['queuePosition']} in the queue" if attempt.get("queuePosition") else ""
    head = f"Attempt {attempt['number']}: {agents.format_label(attempt['agent'])}{model}: {status}{position}"
    yield click.style(head, bold=True) if wants_colour() else head
    if facts := list(_list_facts(attempt)):
        yield f"  {', '.join(facts)}"
    round_number = 0
    for step in attempt.get("steps") or []:
        if int(step.get("round") or 1) != round_number:
            round_number = int(step.get("round") or 1)
            if round_number > 1:
                yield f"  round {round_number}"
        text = format_step(step)
        yield f"  {click.style(text, fg=STEP_COLOURS.get(get_step_state(step))) if wants_colour() else text}"
    if attempt.get("error"):
        text = f"  {escape(str(attempt['error']))}"
        yield click.style(text, fg="red") if wants_colour() else text
        if (advice := get_advice(attempt.get("errorCode"))) is not None:
            yield f"  {advice}"


def _get_verified(attempt: Any) -> bool | None:
    """Return whether the verify command passed. None if it was not run, or if the attempt failed for another reason."""
    verified: bool | None = attempt.get("verified")
    return None if verified and attempt["status"] == "failed" else verified


def _list_facts(attempt: Any) -> Iterator[str]:
    spent, diff = attempt.get("spent") or {}, attempt.get("diff") or {}
    if attempt.get("sessionId"):
        yield str(attempt["sessionId"])
    if attempt.get("startedAt"):
        yield f"started {format_age(attempt['startedAt'])}"
    if attempt.get("seconds") is not None:
        yield format_duration(attempt["seconds"])
    if diff.get("files"):
        yield f"{diff['files']} {'file' if diff['files'] == 1 else 'files'}, +{diff.get('added') or 0} -{diff.get('removed') or 0}"
    if (verified := _get_verified(attempt)) is not None:
        yield "verified" if verified else "not verified"
    if tokens := count_tokens(spent):
        yield f"{tokens} tokens"
    if money := format_cost(spent):
        yield money
