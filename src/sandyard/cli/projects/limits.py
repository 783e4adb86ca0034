"""`sandyard project limits`: show and change what the sandboxes and agents of a project may use."""

from __future__ import annotations

from typing import Any

import click

from sandyard.cli.connection import connect, get_project_id, quote_segment
from sandyard.cli.limits import NONE, limit_options, select_limits, show_limits
from sandyard.cli.output import output_option
from sandyard.cli.projects.members import project_argument

BUDGETS = {"monthlyUsd": "usd", "monthlyTokens": "tokens"}
"""Limits that are settings of the project's tasks."""


@click.command()
@project_argument
@limit_options(NONE)
@output_option
def limits(project: str, output: str | None, **options: int | float | str | None) -> None:
    """Show what a project uses and its limits, or change these.

    `none` removes a limit. The limits of users apply, too. Nothing that is already running is stopped.
    """
    given = select_limits(options)
    with connect() as client:
        path = f"/projects/{quote_segment(get_project_id(client, project))}"
        if given:
            client.patch(path, {"settings": change_limits(client.get(path)["settings"], given)})
        quotas = client.get(f"{path}/quotas")
    show_limits(quotas, output)


def change_limits(settings: dict[str, Any], given: dict[str, int | float | str]) -> dict[str, Any]:
    """Return a project's settings with the given limits."""
    tasks = settings.get("tasks") or {}
    quotas, budget = {**(settings.get("quotas") or {})}, {**(tasks.get("monthlyBudget") or {})}
    for name, value in given.items():
        target, field = (budget, BUDGETS[name]) if name in BUDGETS else (quotas, name)
        target[field] = None if value == NONE else value
    return {**settings, "quotas": quotas, "tasks": {**tasks, "monthlyBudget": budget}}
