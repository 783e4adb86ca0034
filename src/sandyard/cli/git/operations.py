"""Run git operations on checkouts and wait until they are done, showing queue position and progress. `sandyard git operations` lists them.

The server records an operation before starting it, so Ctrl-C or a dropped connection does not stop it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

import click

from sandyard.cli.completion import complete_projects, complete_targets
from sandyard.cli.connection import connect, get_project_id, get_sandbox_id, quote_segment
from sandyard.cli.errors import ApiError, NoResponseError
from sandyard.cli.git.failures import print_error_and_exit
from sandyard.cli.git.progress import ProgressLine
from sandyard.cli.options import limit_option
from sandyard.cli.output import echo, escape, output_option, print_json, show_list, show_one, wants_json
from sandyard.cli.sse import follow

if TYPE_CHECKING:
    from sandyard.cli.client import Client


WAIT_SECONDS = 1
"""Longer operations are followed through events, which show progress and survive a server restart."""
POLL_SECONDS = 1.0
GIVE_UP_SECONDS = 120.0
"""How long the server may be unreachable while its operation continues."""
INTERRUPTED = 130
FINISHED = {"completed", "failed"}
COLUMNS = {
    "ID": "id",
    "KIND": "kind",
    "STATUS": "status",
    "QUEUE": "position",
    "SESSION": "sessionId",
    "SANDBOX": "sandboxId",
    "CREATED": "createdAt",
    "ERROR": "error",
}
FIELDS = {
    "id": "id",
    "kind": "kind",
    "status": "status",
    "queue position": "position",
    "error": "error",
    "detail": "detail",
    "session": "sessionId",
    "sandbox": "sandboxId",
    "project": "projectId",
    "attempts": "attempts",
    "created": "createdAt",
    "started": "startedAt",
    "finished": "finishedAt",
}


def run_operation(client: Client, verb: str, target: str, body: dict[str, object] | None = None) -> Any:
    """Run the API's `verb` in the checkout of a session or sandbox. Return the completed operation.

    On any other outcome, exits the process with a message, advice and the matching exit code.
    """
    sandbox_id = get_sandbox_id(client, target)
    return submit_operation(client, verb, {"sandboxId": sandbox_id, **(body or {})}, target)


def submit_operation(client: Client, verb: str, body: dict[str, object], target: str) -> Any:
    """Like `run_operation`, for operations without a sandbox. `target` is the name used in suggested commands."""
    operation: Any = None
    with ProgressLine() as line:
        try:
            operation = client.post(f"/git/{verb}", body, wait=WAIT_SECONDS)
            operation = wait_for_operation(client, operation, line)
        except KeyboardInterrupt:
            line.stop()
            exit_interrupted(operation, target)
        except NoResponseError as error:
            hint = f"To see the result: `{_inspect_command(operation, target)}`"
            raise NoResponseError(f"{error.message} {hint}") from None
        except ApiError as error:
            line.stop()
            print_error_and_exit(error, target, verb, body)
    print_warnings(operation)
    return operation


def print_warnings(operation: Any) -> None:
    for warning in operation["detail"].get("warnings") or []:
        echo(f"Note: {escape(str(warning))}", err=True)


def wait_for_operation(client: Client, operation: Any, line: ProgressLine) -> Any:
    """Wait until an operation is over and return it. Raises ApiError if it failed."""
    path = f"/git/operations/{quote_segment(operation['id'])}"
    while operation["status"] == "queued":
        line.show_queue(operation.get("position"))
        time.sleep(POLL_SECONDS)
        operation = _get_operation(client, path)
    if operation["status"] not in FINISHED:
        line.show_kind(operation["kind"])
        _wait_for_end(client, operation, path, line)
        operation = _get_operation(client, path)
    if operation["status"] == "failed":
        raise make_error(operation)
    return operation


def _get_operation(client: Client, path: str) -> Any:
    """Return the operation. Retries while the server restarts."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        try:
            return client.get(path)
        except (NoResponseError, ApiError) as error:
            if time.monotonic() > deadline or (isinstance(error, ApiError) and not error.is_transient):
                raise
        time.sleep(POLL_SECONDS)


def make_error(operation: Any) -> ApiError:
    """Return the error that the server would have returned if the operation had failed during the request."""
    failure = (operation.get("detail") or {}).get("failure") or {}
    details = {**(failure.get("extra") or {}), "operationId": operation["id"]}
    message = escape(operation.get("error") or f"The operation {operation['id']} failed.")
    return ApiError(message, int(failure.get("status") or 409), operation.get("errorCode"), details)


def _wait_for_end(client: Client, operation: Any, path: str, line: ProgressLine) -> None:
    """Wait until an operation is over. Events show its progress. Its status is checked on each connection, so missed events do not
    matter."""

    def is_over() -> bool:
        return client.get(path)["status"] in FINISHED

    params = {"sandboxId": operation["sandboxId"]}
    for message in follow(client, "/events", params, on_open=is_over, give_up=GIVE_UP_SECONDS):
        if not message.kind.startswith("git."):
            continue
        data = json.loads(message.data).get("data") or {}
        if data.get("operationId") != operation["id"]:
            continue
        if message.kind == "git.progress":
            line.show_progress(data.get("what"), data.get("percent"))
        elif message.kind == "git.queued":
            line.show_queue(data.get("position"))
        elif message.kind in {"git.completed", "git.failed"}:
            return


def exit_interrupted(operation: Any, target: str) -> NoReturn:
    """Exit after Ctrl-C. `operation` is None if the server has not returned it yet."""
    echo(f"\nThe operation continues on the server. To see it: {_inspect_command(operation, target)}", err=True)
    sys.exit(INTERRUPTED)


def _inspect_command(operation: Any, target: str) -> str:
    return f"sandyard git operations {operation['id'] if operation is not None else target}"


def print_result(operation: Any, message: str, output: str | None) -> None:
    """Print a sentence for people, or the operation as JSON for programs."""
    print_json(operation) if wants_json(output) else echo(escape(message))


def shorten_commit(commit: object) -> str:
    return str(commit or "")[:10]


@click.command()
@click.argument("name", metavar="[SESSION|OPERATION]", required=False, shell_complete=complete_targets)
@click.option("--project", shell_complete=complete_projects, help="Only operations of this project.")
@limit_option(20)
@output_option
def operations(name: str | None, project: str | None, limit: int, output: str | None) -> None:
    """List operations, newest first, or show one operation."""
    with connect() as client:
        if name is not None and name.startswith("gop_"):
            show_one(client.get(f"/git/operations/{quote_segment(name)}"), FIELDS, output)
            return
        params: dict[str, Any] = {"projectId": get_project_id(client, project)} if project else {}
        if name is not None:
            params["sandboxId" if name.startswith("sbx_") else "sessionId"] = name
        page = client.list_items("/git/operations", limit, **params)
    show_list(page, COLUMNS, output, empty_message="No operations.")
