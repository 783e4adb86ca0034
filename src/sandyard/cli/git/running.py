"""Run a git operation on a checkout and wait until it is done, showing its queue position and progress.

The server records an operation before starting it, so Ctrl-C or a dropped connection does not stop it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from sandyard.cli.connection import sandbox_of, segment
from sandyard.cli.errors import ApiError, NoAnswerError
from sandyard.cli.git.failures import fail
from sandyard.cli.git.progress import Ticker
from sandyard.cli.output import echo, printable
from sandyard.cli.sse import follow

if TYPE_CHECKING:
    from sandyard.cli.client import Client

WAIT_SECONDS = 1
"""Longer operations are followed through events, which show progress and survive a server restart."""
LINE_SECONDS = 1.0
GIVE_UP_SECONDS = 120.0
"""How long the server may be unreachable while its operation continues."""
INTERRUPTED = 130
OVER = {"completed", "failed"}


def carry_out(client: Client, verb: str, workplace: str, body: dict[str, object] | None = None) -> Any:
    """Run the API's `verb` in the checkout of a session or sandbox. Return the completed operation.

    On any other outcome, exits the process with a message, advice and the matching exit code.
    """
    sandbox_id = sandbox_of(client, workplace)
    return submit(client, verb, {"sandboxId": sandbox_id, **(body or {})}, workplace)


def submit(client: Client, verb: str, body: dict[str, object], workplace: str) -> Any:
    """Like `carry_out`, for operations without a sandbox. `workplace` is the name used in suggested commands."""
    operation: Any = None
    with Ticker() as ticker:
        try:
            operation = client.post(f"/git/{verb}", body, wait=WAIT_SECONDS)
            operation = attend(client, operation, ticker)
        except KeyboardInterrupt:
            ticker.stop()
            leave(operation, workplace)
        except NoAnswerError as error:
            look = f"To see the result: `{_inspect_command(operation, workplace)}`"
            raise NoAnswerError(f"{error.message} {look}") from None
        except ApiError as error:
            ticker.stop()
            fail(error, workplace, verb, body)
    note_warnings(operation)
    return operation


def note_warnings(operation: Any) -> None:
    for warning in operation["detail"].get("warnings") or []:
        echo(f"Note: {printable(str(warning))}", err=True)


def attend(client: Client, operation: Any, ticker: Ticker) -> Any:
    """Wait until an operation is over and return it. Raises ApiError if it failed."""
    path = f"/git/operations/{segment(operation['id'])}"
    while operation["status"] == "queued":
        ticker.waiting(operation.get("position"))
        time.sleep(LINE_SECONDS)
        operation = _get_operation(client, path)
    if operation["status"] not in OVER:
        ticker.under_way(operation["kind"])
        _wait_for_end(client, operation, path, ticker)
        operation = _get_operation(client, path)
    if operation["status"] == "failed":
        raise failure(operation)
    return operation


def _get_operation(client: Client, path: str) -> Any:
    """Return the operation. Retries while the server restarts."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        try:
            return client.get(path)
        except (NoAnswerError, ApiError) as error:
            if time.monotonic() > deadline or (isinstance(error, ApiError) and not error.passing):
                raise
        time.sleep(LINE_SECONDS)


def failure(operation: Any) -> ApiError:
    """Return the error that the server would have returned if the operation had failed during the request."""
    told = (operation.get("detail") or {}).get("failure") or {}
    details = {**(told.get("extra") or {}), "operationId": operation["id"]}
    sentence = printable(operation.get("error") or f"The operation {operation['id']} failed.")
    return ApiError(sentence, int(told.get("status") or 409), operation.get("errorCode"), details)


def _wait_for_end(client: Client, operation: Any, path: str, ticker: Ticker) -> None:
    """Wait until an operation is over. Events show its progress. Its status is checked on each connection, so missed events do not
    matter."""

    def over() -> bool:
        return client.get(path)["status"] in OVER

    params = {"sandboxId": operation["sandboxId"]}
    for message in follow(client, "/events", params, opened=over, give_up=GIVE_UP_SECONDS):
        if not message.kind.startswith("git."):
            continue
        said = json.loads(message.data).get("data") or {}
        if said.get("operationId") != operation["id"]:
            continue
        if message.kind == "git.progress":
            ticker.progress(said.get("what"), said.get("percent"))
        elif message.kind == "git.queued":
            ticker.waiting(said.get("position"))
        elif message.kind in {"git.completed", "git.failed"}:
            return


def leave(operation: Any, workplace: str) -> NoReturn:
    """Exit after Ctrl-C. `operation` is None if the server has not returned it yet."""
    echo(f"\nThe operation continues on the server. To see it: {_inspect_command(operation, workplace)}", err=True)
    sys.exit(INTERRUPTED)


def _inspect_command(operation: Any, workplace: str) -> str:
    return f"sandyard git operations {operation['id'] if operation is not None else workplace}"
