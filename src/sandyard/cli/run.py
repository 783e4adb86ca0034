"""`sandyard run`: let an agent work on a repository and open a pull request, without any setup."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli import config
from sandyard.cli.completion import agent_names
from sandyard.cli.connection import segment
from sandyard.cli.errors import FAILED
from sandyard.cli.output import printable
from sandyard.cli.tasks.adding import body_of, titled
from sandyard.cli.tasks.ending import ended, pull_of, where
from sandyard.cli.tasks.finding import Agents
from sandyard.cli.tasks.following import Following, leave, well
from sandyard.cli.tasks.screen import Screen
from sandyard.cli.tasks.staying import INTERRUPTED
from sandyard.kit.errors import SandyardError

if TYPE_CHECKING:
    from sandyard.cli.client import Client


@click.command()
@click.argument("text")
@click.option("--repo", required=True, help="Git repository: a local directory or a URL.")
@click.option(
    "--agent",
    shell_complete=agent_names,
    help="Agent to use.  [default: the project's, or the one that fits the first model provider]",
)
@click.option("--model", help="Model to use.")
@click.option("--base", help="Branch to start from and to merge into.  [default: the repository's default branch]")
@click.option(
    "--verify", metavar="COMMAND", help="Command that must succeed before anything is pushed, such as `make test`."
)
@click.option(
    "--token-from", "variable", metavar="NAME", help="Environment variable that holds the repository's token."
)
@click.option(
    "--budget-usd", type=click.FloatRange(min=0, min_open=True), help="Stop when models have cost this many US dollars."
)
@click.option("--keep", is_flag=True, help="Keep the platform running if this command started it.")
def run(
    *,
    text: str,
    repo: str,
    agent: str | None,
    model: str | None,
    base: str | None,
    verify: str | None,
    variable: str | None,
    budget_usd: float | None,
    keep: bool,
) -> None:
    """Let an agent do TEXT in a repository and follow it until its pull request is open; `-` reads TEXT from standard input.

    Uses the running platform. If there is none, one is started for the duration of this command. A project is created for the
    repository if there is none. The last line on standard output is the pull request's URL, or the pushed branch if the remote has no
    pull requests.
    """
    from sandyard.cli.tasks.trying import (  # noqa: PLC0415 - slow to load
        left_out,
        platform,
        project_for,
        repository_of,
        token_from,
    )

    title, description = titled(sys.stdin.read() if text == "-" else text)
    token = token_from(variable)
    repository = repository_of(repo, local=config.load().local)
    with Screen() as screen, platform(screen, keep=keep) as (client, background):
        if note := left_out(repository):
            screen.note(note)
        project = project_for(client, repository, token=token, verify=verify, screen=screen)
        body = body_of(title, description, agent=agent, model=model, base=base, budget_usd=budget_usd)
        task = client.post("/tasks", {**body, "projectId": project["id"], "start": True})
        screen.note(f"Task {task['id']}: {printable(task['title'])}")
        _warn_of_demo(client, task, screen)
        try:
            task = Following(client, task, screen).run()
        except KeyboardInterrupt:
            if background is None or keep:
                leave(screen, task)
            screen.note(
                f"\nThe task continues when the platform runs again: sandyard up; sandyard task logs {task['id']} --follow"
            )
            sys.exit(INTERRUPTED)
        finally:
            if background is not None and not keep:
                _pause_sandboxes(client, task)
        for line in ended(task):
            screen.note(line)
        for line in where(task, repository):
            screen.note(line)
        if pull := pull_of(task):
            screen.line(printable(str(pull["url"] if pull.get("number") is not None else pull.get("headBranch") or "")))
    if not well(task):
        sys.exit(FAILED)


def _warn_of_demo(client: Client, task: Any, screen: Screen) -> None:
    agents = Agents(client)
    names = {str(one["agent"]) for one in task.get("attempts") or [] if agents.is_demo(one["agent"])}
    for name in sorted(names):
        screen.note(
            f"{agents.label(name)} is not a real agent: it only follows step-by-step instructions. "
            "Choose another with --agent; list them with `sandyard agent list`."
        )


def _pause_sandboxes(client: Client, task: Any) -> None:
    """Pause the task's sandboxes, which would otherwise keep running without a platform."""
    with contextlib.suppress(SandyardError):
        task = client.get(f"/tasks/{segment(task['id'])}")
        for attempt in task.get("attempts") or []:
            with contextlib.suppress(SandyardError):
                session = client.get(f"/sessions/{segment(attempt['sessionId'])}")
                if (session.get("sandbox") or {}).get("status") == "running":
                    client.post(f"/sessions/{segment(attempt['sessionId'])}/pause")
