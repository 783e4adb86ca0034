"""Ownership of a PostgreSQL database: one platform at a time, because activity and followers are tracked in memory.

The owner holds an advisory lock on a connection of its own, and a row names it. It acts only while it knows that it
holds the lock: when its connection breaks, its database is withheld until it has the lock again. Others stand by. The
lock alone would go to whoever is quickest after a restart of the server. It is therefore taken from a named owner only
after it was free for `GRACE_S`: by then a live owner has regained it or is withheld.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.postgres import BROKEN_CONNECTION, DETECT_VANISHED, HELD_BY_ANYBODY, HELD_BY_ME
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import Database, DatabaseUnavailableError, translate_driver_errors

log = get_logger(__name__)

LOOK_S = 1.0
"""Interval at which a platform that stands by checks the lock."""
BEAT_S, ANSWER_S = 1.0, 4.0
"""How often the owner checks the lock, and the time limit of each of two answers: together less than DETECT_VANISHED and
GRACE_S allow."""
REGAIN_S = 0.25
GRACE_S = 5.0
_LOCK = 0x5359_504C
_NAME = "owner"
_BROKEN = (SandyardError, *BROKEN_CONNECTION)


async def is_owned(connection: AsyncConnection) -> bool:
    """Return whether a platform owns the PostgreSQL database of this connection."""
    return bool((await connection.exec_driver_sql(HELD_BY_ANYBODY, (_LOCK,))).scalar())


class Ownership:
    """Ownership of the database. Call `acquire`, then `sign` once the schema exists, and `release` at the end.

    `lost` completes with a message when another platform has taken over the database. This process can then no
    longer read or write, and has to end.
    """

    def __init__(self, database: Database, identity: str) -> None:
        self._database = database
        self._identity = identity
        self._stack = contextlib.AsyncExitStack()
        self.connection: Any = None
        self._asking = asyncio.Lock()  # a connection answers one query at a time
        self._broken = asyncio.Event()
        self._free_since: float | None = None
        self.keeping_task: asyncio.Task[None] | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def acquire(self, standing_by: Callable[[str], None]) -> None:
        """Return when this process owns the database. `standing_by` is called with the reason for waiting.

        Raises DatabaseUnavailableError if the server cannot be reached at the start.
        """
        last_reason = ""
        while True:
            try:
                reason = await self._try_take()
            except _BROKEN as error:
                await self._disconnect()
                self._free_since = None
                if not last_reason:
                    raise
                reason = f"The database is not responding: {error}"
            if reason is None:
                break
            if reason != last_reason:
                log.warning("platform_standing_by", reason=reason)
                standing_by(reason)
                last_reason = reason
            await asyncio.sleep(LOOK_S)
        if last_reason:
            log.warning("platform_takes_over")
        self.keeping_task = asyncio.get_running_loop().create_task(self._keep(), name="database ownership")
        self.keeping_task.add_done_callback(self._on_keeping_done)

    def _on_keeping_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # nothing checks the lock from now on, so nothing may be read or written
            log.error("database_ownership_crashed", exc=error)
            self._database.withhold("The platform cannot verify that it owns the database.")
            self.lost.set_result("The platform failed to verify that it owns the database. See its log.")

    async def sign(self) -> None:
        """Record the owner in the database.

        Raises DatabaseUnavailableError while ownership is unknown, and ConflictError once another platform owns it.
        """
        owner = json.dumps({"id": self._identity, "host": socket.gethostname(), "pid": os.getpid()})
        write = (
            "INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        )
        async with self._asking:
            if self.lost.done():
                raise ConflictError(self.lost.result())
            if self.connection is None:
                raise DatabaseUnavailableError
            # on the connection that holds the lock, so that nothing is signed after losing it
            with translate_driver_errors():
                if not await self.connection.fetchval(HELD_BY_ME, _LOCK, timeout=ANSWER_S):
                    raise DatabaseUnavailableError("This process no longer holds the lock on its database.")
                await self.connection.execute(write, _NAME, owner, timeout=ANSWER_S)

    async def release(self) -> None:
        """Release the database, so that a platform that stands by can take over at once. Idempotent."""
        if self.keeping_task is not None:
            await end_tasks(self.keeping_task)
            self.keeping_task = None
        if self.connection is not None:
            with contextlib.suppress(*_BROKEN):
                owner = await self._read_owner()
                if owner.get("id") == self._identity:
                    await self.connection.execute("DELETE FROM settings WHERE name = $1", _NAME, timeout=ANSWER_S)
        await self._disconnect()

    # acquisition ------------------------------------------------------------------------------------------------------

    async def _try_take(self) -> str | None:
        """Try to take the lock. Returns None if this process owns it, else the reason why not."""
        await self.connect()
        if await self.query("SELECT pg_is_in_recovery()"):
            return "The database is a replica, which cannot be written to."
        owner = await self._read_owner()
        if owner and owner["id"] != self._identity:
            if await self.query(HELD_BY_ANYBODY, _LOCK):
                self._free_since = None
                return f"{_describe(owner)} is using this database. This platform takes over when the other one stops."
            now = asyncio.get_running_loop().time()
            self._free_since = now if self._free_since is None else self._free_since
            if now - self._free_since < GRACE_S:
                return f"{_describe(owner)} no longer holds this database. This platform takes over unless the other one reconnects."
        if not await self.query("SELECT pg_try_advisory_lock($1)", _LOCK):
            self._free_since = None
            return "Another platform is using this database. This platform takes over when the other one stops."
        if (await self._read_owner()).get("id") != owner.get("id"):  # another platform was quicker
            await self._disconnect()
            return "Another platform has just taken over this database."
        return None

    async def _read_owner(self) -> dict[str, Any]:
        """Return the recorded owner. Empty if there is none, or if the owner has stopped cleanly."""
        if await self.query("SELECT to_regclass('settings')::text") is None:
            return {}
        found = await self.query("SELECT value FROM settings WHERE name = $1", _NAME)
        return {} if found is None else dict(json.loads(found))

    async def query(self, question: str, *arguments: Any) -> Any:
        async with self._asking:
            if self.connection is None:
                raise DatabaseUnavailableError
            return await self.connection.fetchval(question, *arguments, timeout=ANSWER_S)

    async def connect(self) -> None:
        if self.connection is not None and not self._broken.is_set():
            return
        await self._disconnect()
        self._broken = broken = asyncio.Event()
        connection = await self._stack.enter_async_context(self._database.dedicated_connection())
        connection.add_termination_listener(lambda _: broken.set())
        await connection.execute(DETECT_VANISHED, timeout=ANSWER_S)
        self.connection = connection

    async def _disconnect(self) -> None:
        self.connection = None
        await self._stack.aclose()

    # keeping the lock -------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            reason = await self._wait_until_broken()
            self._database.withhold("The platform has lost its connection to the database. Try again.")
            log.warning("database_lock_lost", reason=reason)
            await self._disconnect()
            taken = await self._reacquire()
            if taken is not None:
                await self._disconnect()  # so that the record of the new owner is neither overwritten nor removed
                log.error("database_taken_over", by=taken)
                self._database.withhold("Another platform has taken over.")
                self.lost.set_result(
                    f"{taken} has taken over this database, because this platform had lost its connection to it. "
                    "Nothing was lost. Restart this platform to make it stand by."
                )
                return
            self._database.withhold(None)
            log.info("database_lock_regained")

    async def _wait_until_broken(self) -> str:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._broken.wait()
                    return "the connection was closed"
            try:
                held = await self._ask_patiently(HELD_BY_ME, _LOCK)
            except _BROKEN as error:
                return str(error) or type(error).__name__
            if not held:
                return "the server says that it is not held"

    async def _ask_patiently(self, question: str, *arguments: Any) -> Any:
        """Query with one retry on timeout: after this process was suspended, timers run before the answer is read."""
        with contextlib.suppress(TimeoutError):
            return await self.query(question, *arguments)
        return await self.query(question, *arguments)

    async def _reacquire(self) -> str | None:
        """Wait until the lock is held again and return None, or return the name of the platform that has taken it."""
        while True:
            try:
                await self.connect()
                held = await self.query("SELECT pg_try_advisory_lock($1) AND NOT pg_is_in_recovery()", _LOCK)
                owner = await self._read_owner()
                if owner.get("id") != self._identity:  # a new owner signs, and removes its record when it stops
                    return _describe(owner) if owner else "Another platform"
                if held:
                    return None
            except _BROKEN:
                await self._disconnect()
            await asyncio.sleep(REGAIN_S)


def _describe(owner: dict[str, Any]) -> str:
    return f"The platform on {owner.get('host')} (process {owner.get('pid')})"
