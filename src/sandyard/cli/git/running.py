"""Have something done to a checkout, and stay until it is over: in line, under way, done or failed with what to do next.

The server writes an operation down before it begins it: whoever leaves early, by Ctrl-C or a dropped line, stops nothing.
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
"""What takes longer is followed by its events: they show how far it is, and a server that is restarted cuts off no answer."""
LINE_SECONDS = 1.0
GIVE_UP_SECONDS = 120.0
"""How long a server may be away while its operation goes on."""
INTERRUPTED = 130
OVER = {"completed", "failed"}


def carry_out(client: Client, verb: str, workplace: str, body: dict[str, object] | None = None) -> Any:
    """`verb` of the API in the checkout of a session or sandbox. The operation, completed.

    Whatever else comes of it ends this process: with a sentence, what can be done about it, and the exit code for that.
    """
    sandbox_id = sandbox_of(client, workplace)
    return submit(client, verb, {"sandboxId": sandbox_id, **(body or {})}, workplace)


def submit(client: Client, verb: str, body: dict[str, object], workplace: str) -> Any:
    """As `carry_out`, for what is not asked of a sandbox. `workplace`: what the commands that are suggested then name."""
    operation: Any = None
    with Ticker() as ticker:
        try:
            operation = client.post(f"/git/{verb}", body, wait=WAIT_SECONDS)
            operation = attend(client, operation, ticker)
        except KeyboardInterrupt:
            ticker.stop()
            leave(operation, workplace)
        except NoAnswerError as error:
            look = f"`{_look(operation, workplace)}` shows what came of it."
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
    """Stay with an operation until it is over: the operation then. ApiError when it has failed."""
    path = f"/git/operations/{segment(operation['id'])}"
    while operation["status"] == "queued":
        ticker.waiting(operation.get("position"))
        time.sleep(LINE_SECONDS)
        operation = _ask(client, path)
    if operation["status"] not in OVER:
        ticker.under_way(operation["kind"])
        _watch(client, operation, path, ticker)
        operation = _ask(client, path)
    if operation["status"] == "failed":
        raise failure(operation)
    return operation


def _ask(client: Client, path: str) -> Any:
    """The operation now, also from a server that is just being started again."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        try:
            return client.get(path)
        except (NoAnswerError, ApiError) as error:
            if time.monotonic() > deadline or (isinstance(error, ApiError) and not error.passing):
                raise
        time.sleep(LINE_SECONDS)


def failure(operation: Any) -> ApiError:
    """What the server would have answered, had it failed before the answer."""
    told = (operation.get("detail") or {}).get("failure") or {}
    details = {**(told.get("extra") or {}), "operationId": operation["id"]}
    sentence = printable(operation.get("error") or f"The operation {operation['id']} has failed.")
    return ApiError(sentence, int(told.get("status") or 409), operation.get("errorCode"), details)


def _watch(client: Client, operation: Any, path: str, ticker: Ticker) -> None:
    """Until it is over. Events show how far it is; that it is over is asked at each connection, so that none has to be seen."""

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
    """After Ctrl-C. `operation`: None when the server has not said yet which it is."""
    echo(f"\nThis goes on without you. To look at it: {_look(operation, workplace)}", err=True)
    sys.exit(INTERRUPTED)


def _look(operation: Any, workplace: str) -> str:
    return f"sandyard git operations {operation['id'] if operation is not None else workplace}"
