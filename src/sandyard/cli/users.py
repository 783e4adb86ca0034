"""`sandyard user`: list users and set their limits, for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sandyard.cli.connection import MAX_ITEMS, connect, quote_segment
from sandyard.cli.errors import NOT_ALLOWED, ApiError, CommandError
from sandyard.cli.limits import DEFAULT, NONE, limit_options, select_limits, show_limits
from sandyard.cli.options import limit_option
from sandyard.cli.output import output_option, show_list

if TYPE_CHECKING:
    from sandyard.cli.client import Client

COLUMNS = {"ID": "id", "NAME": "name", "ROLE": "role", "CREATED": "createdAt", "DISABLED": "disabledAt"}


@click.group()
def user() -> None:
    """List users and set their limits. USER is an id. Administrators can also give a name."""


@user.command("list")
@limit_option()
@output_option
def list_users(*, limit: int, output: str | None) -> None:
    """List users. Only for administrators."""
    with connect() as client:
        page = client.list_items("/users", limit)
    show_list(page, COLUMNS, output, empty_message="No users.")


@user.command()
@click.argument("user", metavar="USER")
@limit_options(NONE, DEFAULT)
@output_option
def limits(user: str, output: str | None, **options: int | float | str | None) -> None:
    """Show what a user uses and their limits, or change these.

    Only administrators can change them. `none` removes a limit, and `default` applies the server's. Nothing that is
    already running is stopped.
    """
    given = select_limits(options)
    with connect() as client:
        path = f"/users/{quote_segment(find_user_id(client, user))}/quotas"
        quotas = client.get(path)
        if given:
            changes = {name: {NONE: 0, DEFAULT: None}.get(str(value), value) for name, value in given.items()}
            quotas = client.request("PUT", path, body={**quotas["own"], **changes})
    show_limits(quotas, output)


def find_user_id(client: Client, name: str) -> str:
    """Return the id of a user, given an id or a name. Raises an error if there is none."""
    if name.startswith("usr_"):
        return name
    try:
        users = client.list_items("/users", MAX_ITEMS)["items"]
    except ApiError as error:
        if error.exit_code != NOT_ALLOWED:
            raise
        raise CommandError("Only administrators may look up users by name. Use the id, usr_….") from None
    for found in users:
        if found["name"] == name:
            return str(found["id"])
    raise ApiError(f"There is no user {name!r}. `sandyard user list` shows all.", 404)
