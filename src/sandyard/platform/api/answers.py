"""Bounds what one person's answers cost while nobody reads them: a large one is in memory until its client has taken all of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends
from fastapi.dependencies.models import Dependant
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.platform.api.auth import Caller
from sandyard.platform.api.problems import TooManyRequestsError, of_error

PIECE = 256 * 1024
"""An answer is handed to the server in pieces of this size: it takes the next one when the client has read enough."""
SLOTS = 8
"""Large answers that one person may have under way. A browser opens six connections."""
WAIT_SECONDS = 10.0
"""How long a request waits for one of the person's other answers to be read."""
FINISHED_WAITING = 32
"""Answers of one person that may wait for a slot when they are finished already."""
_UNREAD = f"You have {SLOTS} large answers under way that are not being read. Read them, or close their connections."


@dataclass(slots=True)
class _Person:
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))
    requests: int = 0


class AnswerSlots:
    """Each person has SLOTS. Kept in this process: each replica counts for itself."""

    def __init__(self) -> None:
        self._people: dict[str, _Person] = {}

    async def take(self, who: str, *, waiting: int | None = None) -> None:
        """Wait for a slot. Raises TooManyRequestsError when none of them becomes free, or when more than `waiting` others wait already."""
        person = self._people.setdefault(who, _Person())
        if waiting is not None and person.requests >= SLOTS + waiting:
            raise TooManyRequestsError(_UNREAD, WAIT_SECONDS)
        person.requests += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await person.slots.acquire()
        except BaseException as error:
            self._forget(who, person)
            if isinstance(error, TimeoutError):
                raise TooManyRequestsError(_UNREAD, WAIT_SECONDS) from None
            raise

    def release(self, who: str) -> None:
        person = self._people[who]
        person.slots.release()
        self._forget(who, person)

    def _forget(self, who: str, person: _Person) -> None:
        person.requests -= 1
        if not person.requests:
            del self._people[who]


class _Slot:
    """A request's claim to a slot, which it may never take."""

    def __init__(self, slots: AnswerSlots) -> None:
        self._slots = slots
        self._holder: str | None = None

    async def take(self, who: str, *, waiting: int | None = None) -> None:
        """Idempotent."""
        if self._holder is None:
            await self._slots.take(who, waiting=waiting)
            self._holder = who

    def release(self) -> None:
        """Idempotent."""
        if self._holder is not None:
            self._slots.release(self._holder)
            self._holder = None


async def _take_slot(connection: HTTPConnection, caller: Caller) -> None:
    slot: _Slot = connection.state.answer_slot
    await slot.take(caller.user_id)


async def _take_slow_slot(connection: HTTPConnection, caller: Caller) -> None:
    slot: _Slot = connection.state.answer_slot
    await slot.take(f"{caller.user_id} slow")


def large_answer(*, slow: bool = False) -> Any:
    """For a route's `dependencies=[large_answer()]`: its answer may have megabytes. Lists with `Paging` have it already. `slow`: it waits
    for a sandbox or a remote; these have slots of their own, so that nothing else waits for them."""
    return Depends(_take_slow_slot if slow else _take_slot)


def is_large(dependant: Dependant) -> bool:
    """Whether a route's answer takes a slot."""
    return dependant.call in (_take_slot, _take_slow_slot) or any(map(is_large, dependant.dependencies))


def _size(start: Message) -> int:
    """Of the body that follows; 0 where it is not known, as in a stream."""
    return next((int(value) for name, value in start.get("headers", ()) if name.lower() == b"content-length"), 0)


class Answers:
    """Sends large bodies in pieces, so that a request is over when its client has read the answer, and then gives its slot back.

    A large answer that is in memory as a whole needs a slot before it is sent, also if its route took none. When there is none the answer is
    dropped, and the client is told so. A download that is streamed needs none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._slots = AnswerSlots()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        slot = _Slot(self._slots)
        state = scope.setdefault("state", {})
        state["answer_slot"] = slot
        # the start of a large answer, until its first piece shows whether all of it is in memory
        held_back: Message | None = None

        async def reply(message: Message) -> None:
            nonlocal held_back
            if message["type"] == "http.response.start" and _size(message) > PIECE and "principal" in state:
                held_back = message
                return
            if held_back is not None:
                try:
                    if not message.get("more_body"):
                        await slot.take(f"{state['principal'].user_id} finished", waiting=FINISHED_WAITING)
                except TooManyRequestsError as error:
                    error.message = f"The request was carried out, but its answer was dropped. {error.message}"
                    await of_error(HTTPConnection(scope), error)(scope, receive, send)
                    return
                await send(held_back)
                held_back = None
            body = message.get("body", b"")
            if message["type"] == "http.response.body" and len(body) > PIECE:
                end = (len(body) - 1) // PIECE * PIECE
                for at in range(0, end, PIECE):
                    await send({**message, "body": body[at : at + PIECE], "more_body": True})
                message = {**message, "body": body[end:]}
            await send(message)

        try:
            await self._app(scope, receive, reply)
        finally:
            slot.release()
