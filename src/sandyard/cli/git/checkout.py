"""Wait for the checkout of a new session in a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandyard.cli.errors import ApiError
from sandyard.cli.git.failures import fail
from sandyard.cli.git.progress import Ticker
from sandyard.cli.git.running import attend, leave, note_warnings

if TYPE_CHECKING:
    from sandyard.cli.client import Client

RECENT = 20


def until_checked_out(client: Client, session: Any) -> None:
    """Return when the repository is checked out in the session's sandbox, or when there is none. Exits the process if the checkout fails."""
    found = client.get("/git/operations", sessionId=session["id"], limit=RECENT)["items"]
    operation = next((one for one in found if one["kind"] == "clone"), None)
    if operation is None:
        return
    with Ticker() as ticker:
        try:
            operation = attend(client, operation, ticker)
        except KeyboardInterrupt:
            ticker.stop()
            leave(operation, session["id"])
        except ApiError as error:
            ticker.stop()
            opened = f"Session {session['id']} was created without a checkout: {error.message}"
            fail(ApiError(opened, error.http_status, error.problem_code, error.details), session["id"], "clone", {})
    note_warnings(operation)
