"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class OrderedGroup(click.Group):
    """Lists commands in the order they are added: by workflow, not alphabetically."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def env_option(function: F) -> F:
    return click.option(
        "-e",
        "--env",
        "envs",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_parse_variables,
        help="Set an environment variable. Repeatable.",
    )(function)


def limit_option(default: int = 50) -> Callable[[F], F]:
    return click.option(
        "--limit", type=click.IntRange(1), default=default, show_default=True, help="Show at most this many."
    )


def drop_missing(**values: object) -> dict[str, object]:
    """Return a request body with only the values that were given."""
    return {name: value for name, value in values.items() if value not in (None, {}, ())}


def _parse_variables(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
        pairs[name] = value
    return pairs
