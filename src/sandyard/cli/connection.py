"""How a command gets at the server. The HTTP library is loaded here, when something is asked: not for help or completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandyard.cli import config
from sandyard.cli.errors import ApiError, CommandError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

MANY = 5000


def connect(login: config.Login | None = None, *, patience: float | None = None) -> Client:
    """Use as a context manager. `patience`: seconds to wait for an answer, if not the usual ones."""
    from sandyard.cli.client import ANSWER_SECONDS, Client  # noqa: PLC0415 - slow to load

    return Client(login or config.load(), patience=patience or ANSWER_SECONDS)


def sandbox_of(client: Client, name: str) -> str:
    """The id of a sandbox, which may be named by its session's. Raises CommandError when that has none."""
    if not name.startswith("ses_"):
        return name
    session = client.get(f"/sessions/{segment(name)}")
    if not session.get("sandboxId"):
        raise ApiError(f"Session {name} has no sandbox. `sandyard session provision {name}` gives it one.", 404)
    return str(session["sandboxId"])


def project_of(client: Client, name: str) -> str:
    """The id of a project, which may be named by its name when only one of those one may see has it."""
    if name.startswith("prj_"):
        return name
    found = [project["id"] for project in client.pages("/projects", MANY)["items"] if project["name"] == name]
    if not found:
        raise ApiError(f"There is no project {name!r}. `sandyard project list` shows which there are.", 404)
    if len(found) > 1:
        raise CommandError(f"There are several projects {name!r}: name one by its id: {', '.join(found)}.")
    return str(found[0])


def segment(name: str) -> str:
    """`name` as one segment of a path, whatever somebody typed."""
    from urllib.parse import quote  # noqa: PLC0415 - only where something is asked

    if not name.strip() or name in {".", ".."}:
        raise CommandError(f"{name!r} is not an id.")
    return quote(name, safe="")
