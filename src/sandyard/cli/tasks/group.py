"""`sandyard task`: tasks and the agents that work on them."""

from __future__ import annotations

import click

from sandyard.cli.git.group import InOrder
from sandyard.cli.tasks.adding import add
from sandyard.cli.tasks.deciding import allow, answer, move, pick, pull_request, remove, retry, stop
from sandyard.cli.tasks.listing import compare, list_tasks, queue
from sandyard.cli.tasks.logs import diff, logs
from sandyard.cli.tasks.showing import show


@click.group(cls=InOrder)
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
