"""Close long-lived connections when their user loses access."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandyard.kit.errors import ForbiddenError, NotFoundError, SandyardError, UnauthenticatedError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.kit.websockets import ABORT
from sandyard.platform.api.guard import close_if_unread
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError
from sandyard.platform.domain.users.authentication import is_still_valid
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
T = TypeVar("T")
CheckAccess = Callable[[], Awaitable[object]]
RECHECK_SECONDS = 10.0
CLOSE_SECONDS = 2.0
"""How long a client may take to read the last message of a WebSocket."""


async def wait_until_revoked(connection: HTTPConnection, caller: Principal, check_access: CheckAccess) -> None:
    """Return when the caller's token, login or account is no longer valid, or `check_access` raises NotFoundError or
    OwnerWithoutAccessError."""
    services = connection.app.state.services
    while True:
        await asyncio.sleep(RECHECK_SECONDS)
        try:
            if not await is_still_valid(services.database, services.clock, caller):
                break
            await check_access()
        except (NotFoundError, OwnerWithoutAccessError):
            break
        except SandyardError as error:
            log.warning("standing_unknown", user=caller.user_id, reason=error.message)
    log.info("connection_ended", user=caller.user_id, means=caller.means, reason="no longer allowed")


async def end_when_revoked(
    connection: HTTPConnection, caller: Principal, check_access: CheckAccess, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Yield the chunks of a long response until the caller may no longer read them."""
    revocation = asyncio.ensure_future(wait_until_revoked(connection, caller, check_access))
    try:
        async for chunk in chunks:
            if revocation.done():
                return
            yield chunk
    finally:
        revocation.cancel()


async def run_until_revoked(
    connection: HTTPConnection, caller: Principal, check_access: CheckAccess, work: Coroutine[Any, Any, T]
) -> T:
    """Return the result of `work`. When the caller loses access, cancel it and raise the error for the client.

    If the request's body was not read completely by then, the connection is closed after the response.
    """
    task = asyncio.ensure_future(work)
    revocation = asyncio.ensure_future(wait_until_revoked(connection, caller, check_access))
    try:
        await asyncio.wait((task, revocation), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        await end_tasks(task, revocation)
    if not task.cancelled():
        task.exception()  # mark as retrieved, so that asyncio does not log it
    close_if_unread(connection)
    await require_access(connection, caller, check_access)
    raise ForbiddenError("Your access changed during this request. Try again.")


async def require_access(connection: HTTPConnection, caller: Principal, check_access: CheckAccess) -> None:
    """Raise UnauthenticatedError or the error of `check_access` if the caller has lost access since the request started."""
    services = connection.app.state.services
    if not await is_still_valid(services.database, services.clock, caller):
        raise UnauthenticatedError(
            "Your token or login expired or was revoked during this request. Sign in again, or use another token."
        )
    await check_access()


async def accept_socket(socket: WebSocket) -> None:
    """Accept the WebSocket. Raises WebSocketDisconnect if the client has left, as sending and receiving do."""
    try:
        await socket.accept()
    except OSError as error:
        raise WebSocketDisconnect(code=1006) from error


async def close_socket(socket: WebSocket, last_message: dict[str, Any]) -> None:
    """Send the last message and close the WebSocket. Aborts the connection of a client that does not read it in time."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.send_text(json.dumps(last_message))
            await socket.close()
    except WebSocketDisconnect:
        return
    except TimeoutError:
        abort = socket.scope.get("extensions", {}).get(ABORT)
        if abort is not None:
            abort()
