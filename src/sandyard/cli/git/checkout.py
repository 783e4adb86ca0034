"""The checkout of a session or a sandbox: find it, and wait until it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_targets
from sandyard.cli.connection import get_sandbox_id, quote_segment
from sandyard.cli.errors import ApiError
from sandyard.cli.git.failures import print_error_and_exit
from sandyard.cli.git.operations import exit_interrupted, print_warnings, wait_for_operation
from sandyard.cli.git.progress import ProgressLine

if TYPE_CHECKING:
    from sandyard.cli.client import Client


target_argument = click.argument("target", metavar="SESSION", shell_complete=complete_targets)
RECENT_OPERATIONS = 20


def get_checkout_path(client: Client, target: str) -> str:
    """Return the API path of a checkout."""
    return f"/git/{quote_segment(get_sandbox_id(client, target))}"


def get_session_id(client: Client, target: str) -> str:
    """Return the id of the session that uses a sandbox. Raises ApiError if no session does."""
    if not target.startswith("sbx_"):
        return target
    session_id = client.get(f"/sandboxes/{quote_segment(target)}").get("sessionId")
    if not session_id:
        raise ApiError(f"Sandbox {target} does not belong to a session.", 404)
    return str(session_id)


def wait_for_checkout(client: Client, session: Any) -> None:
    """Wait until the session's repository is checked out, if it has one. Exits the process if the checkout fails."""
    operations = client.get("/git/operations", sessionId=session["id"], limit=RECENT_OPERATIONS)["items"]
    operation = next((operation for operation in operations if operation["kind"] == "clone"), None)
    if operation is None:
        return
    with ProgressLine() as progress:
        try:
            operation = wait_for_operation(client, operation, progress)
        except KeyboardInterrupt:
            progress.stop()
            exit_interrupted(operation, session["id"])
        except ApiError as error:
            progress.stop()
            message = f"Session {session['id']} was created without a checkout: {error.message}"
            print_error_and_exit(
                ApiError(message, error.http_status, error.problem_code, error.details), session["id"], "clone", {}
            )
    print_warnings(operation)
