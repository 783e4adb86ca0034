"""`sandyard task`: tasks and the agents that work on them."""

from __future__ import annotations

import click

from sandyard.cli.options import OrderedGroup
from sandyard.cli.tasks.add import add
from sandyard.cli.tasks.decisions import allow, answer, move, pick, pull_request, remove, retry, stop
from sandyard.cli.tasks.logs import diff, logs
from sandyard.cli.tasks.views import compare, list_tasks, queue, show


@click.group(cls=OrderedGroup)
def task() -> None:
    """Manage tasks: work for agents, from a card to a pull request.

    TASK is an id, the start or end of an id, or part of a title, if it matches only one task.
    """


for command in (
    add,
    list_tasks,
    show,
    logs,
    diff,
    allow,
    answer,
    stop,
    retry,
    pull_request,
    move,
    compare,
    pick,
    queue,
    remove,
):
    task.add_command(command)
