"""Which checkout is meant: a session's id does as well as a sandbox's."""

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
    """Where the API has what can be read of this checkout."""
    return f"/git/{segment(sandbox_of(client, workplace))}"


def session_of(client: Client, workplace: str) -> str:
    """The id of the session that works there. ApiError when that is a sandbox of nobody's session."""
    if not workplace.startswith("sbx_"):
        return workplace
    found = client.get(f"/sandboxes/{segment(workplace)}").get("sessionId")
    if not found:
        raise ApiError(f"Sandbox {workplace} belongs to no session.", 404)
    return str(found)
