"""Find tasks, attempts and agents by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_tasks
from sandyard.cli.connection import MAX_ITEMS, quote_segment
from sandyard.cli.errors import ApiError, CommandError
from sandyard.cli.output import escape

if TYPE_CHECKING:
    from sandyard.cli.client import Client

PREFIX = "tsk_"
MIN_ID_LENGTH = 3
MAX_NAMED = 5
STATUS_ORDER = ("in_review", "merged", "ready", "running", "queued")
"""Statuses of attempts worth showing, best first."""
task_argument = click.argument("task", metavar="TASK", shell_complete=complete_tasks)
attempt_option = click.option("--attempt", type=click.IntRange(1), help="Number of the attempt.")


def find_task(client: Client, name: str) -> Any:
    """Return the task with this id, or the only one whose id starts or ends with it or whose title contains it."""
    if name.startswith(PREFIX):
        try:
            return client.get(f"/tasks/{quote_segment(name)}")
        except ApiError as error:
            if error.http_status != 404:
                raise
    found = _match_tasks(client.list_items("/tasks", MAX_ITEMS)["items"], name)
    if not found:
        raise ApiError(f"There is no task {escape(name)!r}. To list tasks, run `sandyard task list`.", 404)
    if len(found) > 1:
        names = "; ".join(f"{task['id']} {escape(task['title'])[:40]}" for task in found[:MAX_NAMED])
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise CommandError(f"Several tasks match {escape(name)!r}. Use an id instead: {names}{more}.")
    return client.get(f"/tasks/{quote_segment(found[0]['id'])}")


def _match_tasks(tasks: Sequence[Any], name: str) -> list[Any]:
    wanted = name.strip().lower()
    id_part = wanted.removeprefix(PREFIX)
    if not id_part:
        return []
    if len(id_part) >= MIN_ID_LENGTH:
        by_id = [task for task in tasks if task["id"].removeprefix(PREFIX).startswith(id_part)]
        by_id = by_id or [task for task in tasks if task["id"].endswith(id_part)]
        if by_id:
            return by_id
    exact = [task for task in tasks if task["title"].strip().lower() == wanted]
    return exact or [task for task in tasks if wanted in task["title"].lower()]


def find_attempt(task: Any, number: int | None) -> Any:
    """Return the attempt with this number. Without a number, return the only one, or the only one worth showing."""
    attempts = task.get("attempts") or []
    if not attempts:
        raise CommandError(
            f"{task['id']} has not started yet. To start it: sandyard task move {task['id']} in_progress"
            if task["status"] == "backlog"
            else f"{task['id']} has no attempts."
        )
    if number is not None:
        for attempt in attempts:
            if attempt["number"] == number:
                return attempt
        numbers = ", ".join(str(attempt["number"]) for attempt in attempts)
        raise ApiError(f"{task['id']} has no attempt {number}. Its attempts are: {numbers}.", 404)
    for status in STATUS_ORDER:
        matching = [attempt for attempt in attempts if attempt["status"] == status]
        if len(matching) > 1:
            numbers = ", ".join(str(attempt["number"]) for attempt in matching)
            raise CommandError(f"{task['id']} has several attempts. Choose one with --attempt: {numbers}.")
        if matching:
            return matching[0]
    return attempts[-1]


class AgentNames:
    """Display names of agents, with demo agents marked as such, and which agents lack a key. Asks the server once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._agents: list[Any] | None = None

    def format_label(self, name: object) -> str:
        """Return, for example, `demo (no model)`."""
        if not name:
            return ""
        return f"{escape(str(name))} (no model)" if self.is_demo(name) else escape(str(name))

    def is_demo(self, name: object) -> bool:
        return name in self.list_demos()

    def list_demos(self) -> set[str]:
        """Return the names of the demo agents."""
        return {agent["name"] for agent in self._list_agents() if agent.get("demo")}

    def needs_key(self, name: object, project_id: str) -> bool:
        """Return whether the agent needs a model and none is set up for it in this project."""
        return any(
            agent["name"] == name
            and agent.get("modelReady") is False
            and bool(agent.get("apis"))
            and project_id not in (agent.get("modelProjects") or [])
            for agent in self._list_agents()
        )

    def _list_agents(self) -> list[Any]:
        if self._agents is None:
            try:
                self._agents = [agent for agent in self._client.get("/agents")["items"] if agent["name"]]
            except (ApiError, KeyError, TypeError):
                self._agents = [{"name": "demo", "demo": True}]
        return self._agents
