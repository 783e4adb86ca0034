"""Limit how many requests of a user occupy the platform at once: large responses, which stay in memory until their client has read all of
them, and requests that wait for another server, which decides how long they take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends
from fastapi.dependencies.models import Dependant
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.platform.api.auth import Caller
from sandyard.platform.api.problems import TooManyRequestsError, translate_error

CHUNK_BYTES = 256 * 1024
"""Size of the pieces in which a response is handed to the server, which takes the next piece when the client has read enough."""
SLOTS = 8
"""Number of large responses, and of requests that wait for another server, that one user may have in progress. A browser opens six
connections."""
WAIT_SECONDS = 10.0
"""How long a request waits for one of the user's other responses to be read."""
MAX_FINISHED_WAITING = 32
"""How many finished responses of one user may wait for a slot."""
_UNREAD = f"You have {SLOTS} large responses in progress that are not being read. Read them or close their connections."
_WAITING = f"You have {SLOTS} requests in progress that wait for other servers. Try again when one of them has ended."


@dataclass(slots=True)
class _UserSlots:
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))
    requests: int = 0


class ResponseSlots:
    """The slots of all users, SLOTS for each key. They are counted in this process, so each replica counts separately."""

    def __init__(self) -> None:
        self.users: dict[str, _UserSlots] = {}

    async def take(self, key: str, *, waiting: int | None = None, reason: str = _UNREAD) -> None:
        """Wait for a slot.

        Raises TooManyRequestsError with `reason` if no slot becomes free in time, or if more than `waiting` requests are already waiting.
        """
        user = self.users.setdefault(key, _UserSlots())
        if waiting is not None and user.requests >= SLOTS + waiting:
            raise TooManyRequestsError(reason, WAIT_SECONDS)
        user.requests += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await user.slots.acquire()
        except BaseException as error:
            self._end_request(key, user)
            if isinstance(error, TimeoutError):
                raise TooManyRequestsError(reason, WAIT_SECONDS) from None
            raise

    def release(self, key: str) -> None:
        user = self.users[key]
        user.slots.release()
        self._end_request(key, user)

    def _end_request(self, key: str, user: _UserSlots) -> None:
        user.requests -= 1
        if not user.requests:
            del self.users[key]


class _Slot:
    """A request's optional claim to a slot."""

    def __init__(self, slots: ResponseSlots) -> None:
        self._slots = slots
        self._holder: str | None = None

    async def take(self, key: str, *, waiting: int | None = None, reason: str = _UNREAD) -> None:
        """Take a slot. Idempotent."""
        if self._holder is None:
            await self._slots.take(key, waiting=waiting, reason=reason)
            self._holder = key

    def release(self) -> None:
        """Release the slot. Idempotent."""
        if self._holder is not None:
            self._slots.release(self._holder)
            self._holder = None


async def _take_slot(connection: HTTPConnection, caller: Caller) -> None:
    slot: _Slot = connection.state.response_slot
    await slot.take(caller.user_id)


async def _take_slow_slot(connection: HTTPConnection, caller: Caller) -> None:
    slot: _Slot = connection.state.response_slot
    await slot.take(f"{caller.user_id} slow")


async def _take_remote_slot(connection: HTTPConnection, caller: Caller) -> None:
    slot: _Slot = connection.state.response_slot
    await slot.take(f"{caller.user_id} remote", waiting=MAX_FINISHED_WAITING, reason=_WAITING)


def limit_remote_requests() -> Any:
    """Return a dependency that takes a slot, for routes that wait for a server that the user has entered: a git remote, a forge, a model
    API, an MCP server.

    The slot is held until the work ends, even if the client disconnects. Otherwise one user could start any number of such requests to
    servers that never respond, and each takes processes, memory and descriptors.
    """
    return Depends(_take_remote_slot)


def limit_large_responses(*, slow: bool = False) -> Any:
    """Return a dependency that takes a slot, for routes whose response may be several megabytes.

    Lists with `Paging` already have it. Set `slow` for routes that wait for a sandbox or a remote; these use separate slots, so that other
    requests don't wait for them.
    """
    return Depends(_take_slow_slot if slow else _take_slot)


def is_large(dependant: Dependant) -> bool:
    """Return whether the route's response takes a slot."""
    return dependant.call in (_take_slot, _take_slow_slot) or any(map(is_large, dependant.dependencies))


def _get_body_size(start: Message) -> int:
    """Return the size of the body that follows, or 0 if it is unknown, as in a stream."""
    return next((int(value) for name, value in start.get("headers", ()) if name.lower() == b"content-length"), 0)


class LargeResponseMiddleware:
    """Send large bodies in pieces and release the request's slot once the client has read the response.

    A large response that is in memory as a whole needs a slot before it is sent, even if its route took none. If no slot is available,
    the response is dropped and the client gets an error. Streamed downloads need no slot.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._slots = ResponseSlots()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        slot = _Slot(self._slots)
        state = scope.setdefault("state", {})
        state["response_slot"] = slot
        # start message of a large response, held until the first body message shows whether the whole body is in memory
        held_back: Message | None = None

        async def reply(message: Message) -> None:
            nonlocal held_back
            if (
                message["type"] == "http.response.start"
                and _get_body_size(message) > CHUNK_BYTES
                and "principal" in state
            ):
                held_back = message
                return
            if held_back is not None:
                try:
                    if not message.get("more_body"):
                        await slot.take(f"{state['principal'].user_id} finished", waiting=MAX_FINISHED_WAITING)
                except TooManyRequestsError as error:
                    error.message = f"The request was carried out, but its response was dropped. {error.message}"
                    await translate_error(HTTPConnection(scope), error)(scope, receive, send)
                    return
                await send(held_back)
                held_back = None
            body = message.get("body", b"")
            if message["type"] == "http.response.body" and len(body) > CHUNK_BYTES:
                end = (len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
                for offset in range(0, end, CHUNK_BYTES):
                    await send({**message, "body": body[offset : offset + CHUNK_BYTES], "more_body": True})
                message = {**message, "body": body[end:]}
            await send(message)

        try:
            await self._app(scope, receive, reply)
        finally:
            slot.release()
