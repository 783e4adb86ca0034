"""Let users, and the addresses of anonymous clients, take turns: each has a few slots, and their other requests wait.

Without slots, a client's requests would be delayed by all requests of all clients, of which one client can send thousands at once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from sandyard.kit.connections import get_address_group
from sandyard.kit.server import is_client_gone
from sandyard.platform.api.auth import COOKIE, KEY_HEADER
from sandyard.platform.api.problems import make_problem

SLOTS = 16
"""How many requests of one owner are handled at once."""
SLOT_SECONDS = 0.5
"""How long a request may hold its slot. Requests that take longer mostly wait for something, such as a command or the next event."""
MAX_WAITING = 2500
"""How many requests of one owner may wait, including those whose client has disconnected meanwhile. Each takes memory."""
RETRY_SECONDS = 5
KNOWN_CREDENTIALS = 10_000
"""How many credentials are remembered, most recently used first."""
_STATE_KEY = "request_slot"


@dataclass(eq=False)
class _Owner:
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))
    waiting: int = 0


class _Slot:
    """The slot of one request."""

    def __init__(self, owner: _Owner) -> None:
        self._owner: _Owner | None = owner

    def release(self) -> None:
        """Release the slot. Idempotent."""
        if self._owner is not None:
            self._owner.slots.release()
            self._owner = None


class RequestSlotsMiddleware:
    """Handles SLOTS requests of each owner at once. The others wait in the order in which they arrived, at most MAX_WAITING of them.

    The owner is the user if the request has a credential with which a user was authenticated before. Otherwise it is the address, once
    for requests without a credential, and once for requests with an unknown one: new users and logins need not wait for anonymous clients.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._owners: WeakValueDictionary[str, _Owner] = WeakValueDictionary()
        self._users: OrderedDict[bytes, str] = OrderedDict()  # ids of users by digest of a credential

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        credential = _get_credential_digest(scope)
        owner = self._owners.setdefault(self._find_owner_name(scope, credential), _Owner())
        if owner.waiting >= MAX_WAITING:
            await _refuse(scope, receive, send)
            return
        must_wait = owner.slots.locked()
        owner.waiting += 1
        try:
            await owner.slots.acquire()
        finally:
            owner.waiting -= 1
        slot = _Slot(owner)
        if must_wait and is_client_gone(scope):
            slot.release()
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(SLOT_SECONDS, slot.release)
        state = scope.setdefault("state", {})
        state[_STATE_KEY] = slot
        try:
            await self._app(scope, receive, send)
        finally:
            timer.cancel()
            loop.call_soon(slot.release)  # not now: requests that never wait would all run before those of others
            if credential is not None and "principal" in state:
                self._remember(credential, state["principal"].user_id)

    def _find_owner_name(self, scope: Scope, credential: bytes | None) -> str:
        if credential is not None and credential in self._users:
            return self._users[credential]
        client = scope.get("client")
        address = get_address_group(client[0] if client else "")
        return f"anonymous {address}" if credential is None else f"unknown {address}"

    def _remember(self, credential: bytes, user_id: str) -> None:
        self._users[credential] = user_id
        self._users.move_to_end(credential)
        if len(self._users) > KNOWN_CREDENTIALS:
            self._users.popitem(last=False)


def release_request_slot(connection: HTTPConnection) -> None:
    """Release the request's slot, because it will wait for something, and something else limits how many of these a user may have."""
    slot: _Slot | None = connection.scope.get("state", {}).get(_STATE_KEY)
    if slot is not None:
        slot.release()


def _get_credential_digest(scope: Scope) -> bytes | None:
    """Return the digest of the API token, or of the cookie and its key, which are not verified here. None without one.

    A program that knows only a user's cookie must not take the user's slots.
    """
    connection = HTTPConnection(scope)
    given = connection.headers.get("authorization")
    if given is not None:
        credential = given.partition(" ")[2].strip()
    else:
        cookie, key = connection.cookies.get(COOKIE), connection.headers.get(KEY_HEADER)
        credential = f"{cookie} {key}" if cookie and key else ""
    return hashlib.sha256(credential.encode()).digest() if credential else None


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": "Too many requests."})
        return
    scope.setdefault("state", {})
    response = make_problem(
        HTTPConnection(scope),
        429,
        "rate_limited",
        f"{MAX_WAITING} of your requests, or of your address, are already waiting. Try again later.",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
    await response(scope, receive, send)
