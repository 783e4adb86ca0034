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
from sandyard.platform.api.problems import TooManyRequestsError

PIECE = 256 * 1024
"""An answer is handed to the server in pieces of this size: it takes the next one when the client has read enough."""
SLOTS = 8
"""Large answers that one person may have under way. A browser opens six connections."""
WAIT_SECONDS = 10.0
"""How long a request waits for one of the person's other answers to be read."""


@dataclass(slots=True)
class _Person:
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))
    requests: int = 0


class AnswerSlots:
    """Each person has SLOTS. Kept in this process: each replica counts for itself."""

    def __init__(self) -> None:
        self._people: dict[str, _Person] = {}

    async def take(self, who: str) -> None:
        """Wait for a slot. Raises TooManyRequestsError when none of them becomes free."""
        person = self._people.setdefault(who, _Person())
        person.requests += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await person.slots.acquire()
        except BaseException as error:
            self._forget(who, person)
            if isinstance(error, TimeoutError):
                raise TooManyRequestsError(
                    f"You have {SLOTS} large answers under way that are not being read. Read them, or close their connections.",
                    WAIT_SECONDS,
                ) from None
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

    async def take(self, who: str) -> None:
        """Idempotent."""
        if self._holder is None:
            await self._slots.take(who)
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


class Answers:
    """Sends large bodies in pieces, so that a request is over when its client has read the answer, and then gives its slot back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._slots = AnswerSlots()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def reply(message: Message) -> None:
            body = message.get("body", b"")
            if message["type"] == "http.response.body" and len(body) > PIECE:
                end = (len(body) - 1) // PIECE * PIECE
                for start in range(0, end, PIECE):
                    await send({**message, "body": body[start : start + PIECE], "more_body": True})
                message = {**message, "body": body[end:]}
            await send(message)

        slot = scope.setdefault("state", {})["answer_slot"] = _Slot(self._slots)
        try:
            await self._app(scope, receive, reply)
        finally:
            slot.release()
