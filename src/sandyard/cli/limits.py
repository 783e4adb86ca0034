"""Limits of users and projects: their options, and how they are shown next to what is used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sandyard.cli.output import format_size, print_json, show_list, wants_json

F = TypeVar("F", bound=Callable[..., Any])
NONE, DEFAULT = "none", "default"
TITLES = {
    "runningSandboxes": "running sandboxes",
    "cpus": "processors of running sandboxes",
    "memoryMb": "memory of running sandboxes",
    "diskMb": "disk space of all sandboxes",
    "monthlyUsd": "models per month ($)",
    "monthlyTokens": "models per month (tokens)",
}
FIELDS = {
    "running_sandboxes": "runningSandboxes",
    "cpus": "cpus",
    "memory_mb": "memoryMb",
    "disk_mb": "diskMb",
    "monthly_usd": "monthlyUsd",
    "monthly_tokens": "monthlyTokens",
}
"""The API's name of each option."""
_COLUMNS = {"LIMIT ON": "title", "USED": "used", "LIMIT": "limit"}
_HELP = {
    "running_sandboxes": "Sandboxes that run at the same time.",
    "cpus": "Processors of all running sandboxes together.",
    "memory_mb": "Memory of all running sandboxes together, in MiB.",
    "disk_mb": "Disk space of all sandboxes, in MiB.",
    "monthly_usd": "US dollars for models per calendar month.",
    "monthly_tokens": "Tokens for models per calendar month.",
}


def limit_options(*words: str) -> Callable[[F], F]:
    """Add an option for each limit. Its value is a number above 0 or one of `words`."""

    def parse(_: click.Context, parameter: click.Parameter, value: str | None) -> int | float | str | None:
        if value is None or value in words:
            return value
        try:
            number = float(value) if parameter.name == "monthly_usd" else int(value)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise click.BadParameter(f"{value!r} is neither a number above 0 nor {' or '.join(words)}.")
        return number

    def add(function: F) -> F:
        metavar = "|".join(("NUMBER", *words))
        for name, text in reversed(_HELP.items()):
            option = click.option(f"--{name.replace('_', '-')}", callback=parse, metavar=metavar, help=text)
            function = option(function)
        return function

    return add


def select_limits(options: Mapping[str, int | float | str | None]) -> dict[str, int | float | str]:
    """Return the given limits by the API's names."""
    return {FIELDS[name]: value for name, value in options.items() if value is not None}


def show_limits(quotas: dict[str, Any], output: str | None) -> None:
    """Print what is used, and the limits."""
    if wants_json(output):
        print_json(quotas)
        return
    rows = []
    for item in quotas["items"]:
        format_amount = functools.partial(_format_amount, item["name"])
        limit = NONE if item["limit"] is None else format_amount(item["limit"])
        rows.append(
            {"title": TITLES.get(item["name"], item["name"]), "used": format_amount(item["used"]), "limit": limit}
        )
    show_list({"items": rows, "nextCursor": None}, _COLUMNS, output, empty_message="No limits.")


def _format_amount(name: str, amount: float) -> str:
    if name in {"memoryMb", "diskMb"}:
        return format_size(int(amount * 1024 * 1024))
    return f"{amount:.2f}" if name == "monthlyUsd" else f"{amount:g}" if amount < 1e6 else f"{int(amount)}"
