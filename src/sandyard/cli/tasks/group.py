"""`sandyard task`: cards, and the agents that work on them."""

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
    """Tasks: what agents are to do, from a card to a pull request.

    TASK is an id, the beginning or end of one, or part of a title, as long as only one task is meant.
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
