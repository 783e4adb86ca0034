"""`sandyard task show`: show a task, its attempts with every step, open questions and the pull request."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from sandyard.cli.advice import advice_for
from sandyard.cli.asks import described as asked
from sandyard.cli.asks import pending
from sandyard.cli.connection import connect, segment
from sandyard.cli.errors import ApiError
from sandyard.cli.output import ago, as_json, echo, in_colour, output_option, print_json, printable, show_one, visible
from sandyard.cli.pull_requests import summary
from sandyard.cli.tasks.ending import pull_of, repository_of, where
from sandyard.cli.tasks.finding import Agents, find_task, task_argument
from sandyard.cli.tasks.listing import cost, state_of, tokens_of
from sandyard.cli.tasks.screen import duration
from sandyard.cli.tasks.steps import STEP_COLOURS, described
from sandyard.cli.tasks.steps import state_of as step_state

FIELDS = {
    "id": "id",
    "title": "title",
    "column": "column",
    "state": "status",
    "project": "project",
    "agent": "agent",
    "model": "model",
    "base": "baseBranch",
    "priority": "priority",
    "budget": "budget",
    "needs": "needs",
    "blocked by": "blockedBy",
    "created by": "source",
    "created": "createdAt",
    "started": "startedAt",
    "finished": "finishedAt",
    "error": "error",
}


@click.command()
@task_argument
@output_option
def show(task: str, output: str | None) -> None:
    """Show a task. Includes its attempts with every step, open questions and its pull request."""
    with connect() as client:
        found = find_task(client, task)
        if as_json(output):
            print_json(found)
            return
        agents = Agents(client)
        asks = _asks(client, found["id"])
        card = {**_card(found, agents), "project": _project(client, found["projectId"])}
        show_one(card, FIELDS, output)
        for line in _details(found, agents):
            echo(line)
        for line in where(found, repository_of(client, found)):
            echo(f"  {line}")
    for ask in asks:
        echo()
        for one in asked(ask):
            echo(click.style(one.text, **one.style) if in_colour() else one.text)
        which = f" --ask {ask['id']}" if len(asks) > 1 else ""
        echo(f"  To answer: sandyard task answer {found['id']} ANSWER{which}")


def _project(client: Any, project_id: str) -> str:
    """Return, for example, `website (prj_…)`."""
    with contextlib.suppress(ApiError):
        return f"{client.get(f'/projects/{segment(project_id)}')['name']} ({project_id})"
    return project_id


def _asks(client: Any, task_id: str) -> list[Any]:
    try:
        return pending(client, {"taskId": task_id})
    except ApiError as error:
        if error.http_status != 404:
            raise
        return []


def _card(task: Any, agents: Agents) -> dict[str, Any]:
    budget = task.get("budget") or {}
    words = [f"${budget['usd']:g}"] if budget.get("usd") is not None else []
    words += [f"{budget['tokens']} tokens"] if budget.get("tokens") is not None else []
    source = task.get("source") or {}
    return {
        **task,
        "column": str(task["status"]).replace("_", " "),
        "status": state_of(task) or None,
        "agent": agents.label(task.get("agent")) or None,
        "priority": task.get("priority") or None,
        "budget": ", ".join(words) or None,
        "source": _source(source),
    }


def _source(source: Any) -> str | None:
    kind = source.get("kind") or source.get("type") if isinstance(source, dict) else None
    if kind in {None, "person"}:
        return None
    name = source.get("url") or source.get("name") or source.get("scheduleId") or ""
    return printable(f"{kind} {name}".strip())


def _details(task: Any, agents: Agents) -> Iterator[str]:
    if task.get("description"):
        yield ""
        yield textwrap.indent("\n".join(visible(line) for line in task["description"].split("\n")), "  ")
    for attempt in task.get("attempts") or []:
        yield ""
        yield from _attempt(attempt, agents)
    if pull := pull_of(task):
        yield ""
        yield _pull(pull)
        if pull.get("number") is not None:
            yield f"  {printable(str(pull.get('url') or ''))}"


def _pull(pull: Any) -> str:
    if pull.get("number") is not None:
        return f"Pull request {summary(pull)}"
    return printable(f"Pushed: {pull['title']}: {pull['headBranch']} into {pull['baseBranch']}")


def _attempt(attempt: Any, agents: Agents) -> Iterator[str]:
    model = f", {printable(attempt['model'])}" if attempt.get("model") else ""
    status = str(attempt["status"]).replace("_", " ")
    place = f", position {attempt['queuePosition']} in the queue" if attempt.get("queuePosition") else ""
    head = f"Attempt {attempt['number']}: {agents.label(attempt['agent'])}{model}: {status}{place}"
    yield click.style(head, bold=True) if in_colour() else head
    if facts := list(_facts(attempt)):
        yield f"  {', '.join(facts)}"
    number = 0
    for step in attempt.get("steps") or []:
        if int(step.get("round") or 1) != number:
            number = int(step.get("round") or 1)
            if number > 1:
                yield f"  round {number}"
        words = described(step)
        yield f"  {click.style(words, fg=STEP_COLOURS.get(step_state(step))) if in_colour() else words}"
    if attempt.get("error"):
        words = f"  {printable(str(attempt['error']))}"
        yield click.style(words, fg="red") if in_colour() else words
        if (advice := advice_for(attempt.get("errorCode"))) is not None:
            yield f"  {advice}"


def _facts(attempt: Any) -> Iterator[str]:
    spent, diff = attempt.get("spent") or {}, attempt.get("diff") or {}
    if attempt.get("sessionId"):
        yield str(attempt["sessionId"])
    if attempt.get("startedAt"):
        yield f"started {ago(attempt['startedAt'])}"
    if attempt.get("seconds") is not None:
        yield duration(attempt["seconds"])
    if diff.get("files"):
        yield f"{diff['files']} {'file' if diff['files'] == 1 else 'files'}, +{diff.get('added') or 0} -{diff.get('removed') or 0}"
    if attempt.get("verified") is not None:
        yield "verified" if attempt["verified"] else "not verified"
    if tokens := tokens_of(spent):
        yield f"{tokens} tokens"
    if money := cost(spent):
        yield money
