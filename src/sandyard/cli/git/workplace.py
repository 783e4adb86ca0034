"""Find the checkout for a session id or a sandbox id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sandyard.cli.completion import workplace_ids
from sandyard.cli.connection import sandbox_of, segment
from sandyard.cli.errors import ApiError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

workplace_argument = click.argument("workplace", metavar="SESSION", shell_complete=workplace_ids)


def path_of(client: Client, workplace: str) -> str:
    """Return the API path of a checkout."""
    return f"/git/{segment(sandbox_of(client, workplace))}"


def session_of(client: Client, workplace: str) -> str:
    """Return the id of the session that uses a sandbox. Raises ApiError if no session does."""
    if not workplace.startswith("sbx_"):
        return workplace
    found = client.get(f"/sandboxes/{segment(workplace)}").get("sessionId")
    if not found:
        raise ApiError(f"Sandbox {workplace} does not belong to a session.", 404)
    return str(found)
