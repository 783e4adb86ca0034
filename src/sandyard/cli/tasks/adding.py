"""`sandyard task add`: write a card, and have it begun."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import agent_names, project_ids, task_ids
from sandyard.cli.connection import connect, project_of
from sandyard.cli.errors import CommandError
from sandyard.cli.options import given
from sandyard.cli.output import echo, print_json, printable, text_option
from sandyard.cli.tasks.ending import follow_to_the_end
from sandyard.cli.tasks.finding import Agents, find_task

if TYPE_CHECKING:
    from sandyard.cli.client import Client

MOST_ATTEMPTS = 8
PRIORITY = click.IntRange(-100, 100)


@click.command()
@click.argument("text", required=False)
@click.option("--project", required=True, shell_complete=project_ids, help="The project it belongs to.")
@click.option(
    "-F",
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read TEXT from a file of this machine; `-` is standard input.",
)
@click.option("--agent", shell_complete=agent_names, help="Who does it.  [default: as the project says]")
@click.option("--model", help="With which model.  [default: as the project says]")
@click.option(
    "--attempts", type=click.IntRange(1, MOST_ATTEMPTS), help="So many sessions do it side by side; you pick one."
)
@click.option(
    "--attempt",
    "wanted",
    multiple=True,
    metavar="AGENT[:MODEL]",
    shell_complete=agent_names,
    help="One of several attempts. Repeatable.",
)
@click.option("--base", help="The branch to start from and to merge into.  [default: the project's]")
@click.option("--priority", type=PRIORITY, help="Higher ones start first.  [default: 0]")
@click.option("--needs", multiple=True, shell_complete=task_ids, help="Not begun before this task is done. Repeatable.")
@click.option(
    "--budget-usd", type=click.FloatRange(min=0, min_open=True), help="It stops when models have cost this much."
)
@click.option("--backlog", is_flag=True, help="Do not begin it yet.")
@click.option("-f", "--follow", "following", is_flag=True, help="Stay, and show what happens.")
@text_option
def add(
    *,
    text: str | None,
    project: str,
    file: str | None,
    wanted: tuple[str, ...],
    attempts: int | None,
    needs: tuple[str, ...],
    backlog: bool,
    following: bool,
    output: str,
    **options: Any,
) -> None:
    """Add a task. The first line of TEXT is its title, the rest its description; `-` reads it from standard input.

    It is begun at once, unless --backlog keeps it. Its id is printed on standard output, with --follow before everything else.
    """
    if attempts is not None and wanted:
        raise click.UsageError("Either --attempts or --attempt, not both.")
    if backlog and following:
        raise click.UsageError("Nothing happens to a task in the backlog: either --backlog or --follow.")
    title, description = titled(read(text, file))
    with connect() as client:
        body = body_of(title, description, attempts=attempts, wanted=wanted, **options)
        body |= given(
            projectId=project_of(client, project),
            needs=[find_task(client, name)["id"] for name in needs] or None,
            start=not backlog,
        )
        made = client.post("/tasks", body)
        if output == "json":
            print_json(made, compact=following)
        else:
            echo(made["id"])
        if following:
            follow_to_the_end(client, made, as_json=output == "json")
        elif output != "json":
            for line in next_steps(client, made):
                echo(line, err=True)


def read(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise click.UsageError("Say what is to be done: TEXT, `-` for standard input, or --file.")
    if text == "-" or file == "-":
        return sys.stdin.read()
    return text if text is not None else Path(file or "").read_text()


def titled(text: str) -> tuple[str, str]:
    """The first line that is not empty, and what follows. A title that is too long also begins the description."""
    title, _, rest = text.strip().partition("\n")
    title = title.strip()
    if not title:
        raise CommandError("The task is empty: its first line is its title.")
    if len(title) > 300:
        return f"{title[:297]}…", text.strip()
    return title, rest.strip("\n").rstrip()


def body_of(
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
    """The request for a new task, but for where it belongs."""
    several: list[dict[str, Any]] = [given(agent=agent, model=model) for _ in range(attempts or 0)]
    for one in wanted:
        name, _, its_model = one.partition(":")
        if not name:
            raise click.BadParameter(f"{one!r} is not AGENT or AGENT:MODEL.")
        several.append(given(agent=name, model=its_model or model))
    return given(
        title=title,
        description=description or None,
        agent=agent,
        model=model,
        attempts=several if len(several) > 1 or wanted else None,
        baseBranch=base,
        priority=priority,
        budget={"usd": budget_usd} if budget_usd is not None else None,
    )


def next_steps(client: Client, task: Any) -> list[str]:
    """What a person may want to do with it now."""
    name = task["id"]
    if task["status"] == "backlog":
        if task.get("startWhenReady"):
            blocked = ", ".join(task.get("blockedBy") or [])
            return [f"It begins by itself when {f'{blocked} is done' if blocked else 'its column has room'}."]
        return [f"To begin it: sandyard task move {name} in_progress"]
    agents = Agents(client)
    who = ", ".join(agents.label(one["agent"]) for one in task.get("attempts") or [])
    return [
        f"Begun: {printable(task['title'])}{f', by {who}' if who else ''}.",
        f"To follow it: sandyard task logs {name} --follow",
        f"To look at it: sandyard task show {name}",
    ]
