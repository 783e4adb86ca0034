"""Connect to the server. The HTTP library is loaded here, on first use, to keep help and completion fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandyard.cli import config
from sandyard.cli.errors import ApiError, CommandError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

MAX_ITEMS = 5000


def connect(login: config.Login | None = None, *, timeout: float | None = None) -> Client:
    """Return a client. Use it as a context manager. `timeout` overrides the number of seconds to wait for a response."""
    from sandyard.cli.client import RESPONSE_SECONDS, Client  # noqa: PLC0415 - slow to load

    return Client(login or config.load(), timeout=timeout or RESPONSE_SECONDS)


def get_sandbox_id(client: Client, name: str) -> str:
    """Return the id of a sandbox, given its id or its session's id. Raises ApiError if the session has no sandbox."""
    if not name.startswith("ses_"):
        return name
    session = client.get(f"/sessions/{quote_segment(name)}")
    if not session.get("sandboxId"):
        raise ApiError(f"Session {name} has no sandbox. Create one with `sandyard session provision {name}`.", 404)
    return str(session["sandboxId"])


def get_project_id(client: Client, name: str) -> str:
    """Return the id of a project, given its id or its name. Raises an error if no visible project or more than one has that name."""
    if name.startswith("prj_"):
        return name
    found = [project["id"] for project in client.list_items("/projects", MAX_ITEMS)["items"] if project["name"] == name]
    if not found:
        raise ApiError(f"There is no project {name!r}. To list projects, run `sandyard project list`.", 404)
    if len(found) > 1:
        raise CommandError(f"There are several projects named {name!r}. Use an id instead: {', '.join(found)}.")
    return str(found[0])


def quote_segment(name: str) -> str:
    """Return `name` escaped as one path segment, for any input."""
    from urllib.parse import quote  # noqa: PLC0415 - only needed for requests

    if not name.strip() or name in {".", ".."}:
        raise CommandError(f"{name!r} is not an id.")
    return quote(name, safe="")
