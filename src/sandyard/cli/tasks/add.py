"""`sandyard task add`: create a task and start it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.advice import NO_MODEL, get_advice
from sandyard.cli.completion import complete_agents, complete_projects, complete_tasks
from sandyard.cli.connection import connect, get_project_id, quote_segment
from sandyard.cli.errors import CommandError
from sandyard.cli.options import drop_missing
from sandyard.cli.output import echo, escape, print_json, text_option
from sandyard.cli.tasks.lookup import AgentNames, find_task
from sandyard.cli.tasks.progress import follow_task

if TYPE_CHECKING:
    from sandyard.cli.client import Client

MAX_ATTEMPTS = 8
PRIORITY = click.IntRange(-100, 100)


@click.command()
@click.argument("text", required=False)
@click.option(
    "--project",
    shell_complete=complete_projects,
    help="Project of the task. Required without --from-session.  [default: the session's]",
)
@click.option(
    "-F",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read TEXT from a local file; `-` reads standard input.",
)
@click.option("--agent", shell_complete=complete_agents, help="Agent to use.  [default: the project's]")
@click.option("--model", help="Model to use.  [default: the project's]")
@click.option(
    "--attempts", type=click.IntRange(1, MAX_ATTEMPTS), help="Number of parallel attempts, of which you pick one."
)
@click.option(
    "--attempt",
    "wanted",
    multiple=True,
    metavar="AGENT[:MODEL]",
    shell_complete=complete_agents,
    help="Agent and model of one of several attempts. Repeatable.",
)
@click.option(
    "--from-session",
    metavar="SESSION",
    help="Start each attempt from a copy of this session's sandbox, with its commits and uncommitted files, and in a gVisor "
    "sandbox its running processes.",
)
@click.option("--base", help="Branch to start from and to merge into.  [default: the project's base branch]")
@click.option("--priority", type=PRIORITY, help="Tasks with a higher priority start first.  [default: 0]")
@click.option("--needs", multiple=True, shell_complete=complete_tasks, help="Task that must be done first. Repeatable.")
@click.option(
    "--budget-usd", type=click.FloatRange(min=0, min_open=True), help="Stop when models have cost this many US dollars."
)
@click.option("--backlog", is_flag=True, help="Add it to the backlog without starting it.")
@click.option("-f", "--follow", "following", is_flag=True, help="Follow the progress.")
@text_option
def add(
    *,
    text: str | None,
    project: str | None,
    file: str | None,
    from_session: str | None,
    wanted: tuple[str, ...],
    attempts: int | None,
    needs: tuple[str, ...],
    backlog: bool,
    following: bool,
    output: str,
    **options: Any,
) -> None:
    """Add a task. The first line of TEXT is its title, the rest its description; `-` reads it from standard input.

    It starts immediately, unless --backlog is given. Its id is printed on standard output; with --follow, before
    anything else.
    """
    if attempts is not None and wanted:
        raise click.UsageError("Use either --attempts or --attempt, not both.")
    if backlog and following:
        raise click.UsageError("A task in the backlog makes no progress. Use either --backlog or --follow, not both.")
    if project is None and from_session is None:
        raise click.UsageError("Use --project to name the task's project, or --from-session to use that of a session.")
    if from_session is not None and options.get("base") is not None:
        raise click.UsageError(
            "The branch starts at the session's commit. Use either --from-session or --base, not both."
        )
    title, description = split_title(read_text(text, file))
    with connect() as client:
        body = make_task_body(title, description, attempts=attempts, wanted=wanted, **options)
        body |= drop_missing(
            projectId=_get_session_project(client, from_session or "")
            if project is None
            else get_project_id(client, project),
            fromSessionId=from_session,
            needs=[find_task(client, name)["id"] for name in needs] or None,
            start=not backlog,
        )
        task = client.post("/tasks", body)
        if output == "json":
            print_json(task, compact=following)
        else:
            echo(task["id"])
            for line in _describe_missing_keys(client, task):
                echo(line, err=True)
        if following:
            follow_task(client, task, as_json=output == "json")
        elif output != "json":
            for line in describe_next_steps(client, task):
                echo(line, err=True)


def _get_session_project(client: Client, session_id: str) -> str:
    project_id = client.get(f"/sessions/{quote_segment(session_id)}")["projectId"]
    if project_id is None:
        raise CommandError(f"Session {escape(session_id)} is not in a project, so no task can start from it.")
    return str(project_id)


def _describe_missing_keys(client: Client, task: Any) -> Iterator[str]:
    """Yield a warning for each agent of the task that will fail because no key is set up for it."""
    agents, chosen = AgentNames(client), [task, *(task.get("wanted") or []), *(task.get("attempts") or [])]
    names = dict.fromkeys(choice.get("agent") for choice in chosen)
    missing = [escape(str(name)) for name in names if agents.needs_key(name, task["projectId"])]
    for name in missing:
        yield f"Warning: no API key is set up for {name}, so it will fail."
    if missing:
        yield get_advice(NO_MODEL) or ""


def read_text(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise click.UsageError("Give the task as TEXT, as `-` for standard input, or with --file.")
    if text == "-" or file == "-":
        return sys.stdin.read()
    return text if text is not None else Path(file or "").read_text()


def split_title(text: str) -> tuple[str, str]:
    """Return the first non-empty line as the title, and the rest. A title that is too long is also part of the description."""
    title, _, rest = text.strip().partition("\n")
    title = title.strip()
    if not title:
        raise CommandError("The task is empty. Its first line must be the title.")
    if len(title) > 300:
        return f"{title[:297]}…", text.strip()
    return title, rest.strip("\n").rstrip()


def make_task_body(
    title: str,
    description: str = "",
    *,
    agent: str | None = None,
    model: str | None = None,
    attempts: int | None = None,
    wanted: tuple[str, ...] = (),
    base: str | None = None,
    priority: int | None = None,
    budget_usd: float | None = None,
) -> dict[str, Any]:
    """Return the request body for a new task, without its project."""
    attempt_bodies: list[dict[str, Any]] = [drop_missing(agent=agent, model=model) for _ in range(attempts or 0)]
    for argument in wanted:
        name, _, attempt_model = argument.partition(":")
        if not name:
            raise click.BadParameter(f"{argument!r} is not AGENT or AGENT:MODEL.")
        attempt_bodies.append(drop_missing(agent=name, model=attempt_model or model))
    return drop_missing(
        title=title,
        description=description or None,
        agent=agent,
        model=model,
        attempts=attempt_bodies if len(attempt_bodies) > 1 or wanted else None,
        baseBranch=base,
        priority=priority,
        budget={"usd": budget_usd} if budget_usd is not None else None,
    )


def describe_next_steps(client: Client, task: Any) -> list[str]:
    """Return suggestions for what to do next."""
    name = task["id"]
    if task["status"] == "backlog":
        if task.get("startWhenReady"):
            blocked = ", ".join(task.get("blockedBy") or [])
            return [f"It starts automatically when {f'{blocked} is done' if blocked else 'its column has room'}."]
        return [f"To start it: sandyard task move {name} in_progress"]
    agents = AgentNames(client)
    who = ", ".join(agents.format_label(attempt["agent"]) for attempt in task.get("attempts") or [])
    return [
        f"Started: {escape(task['title'])}{f', by {who}' if who else ''}.",
        f"To follow it: sandyard task logs {name} --follow",
        f"To see it: sandyard task show {name}",
    ]
