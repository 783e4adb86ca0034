"""Which platform a PostgreSQL database belongs to: one at a time, because what is in use and who follows what is in its memory.

The owner holds an advisory lock on a connection of its own, and a row names it. It acts only while it knows that it holds the lock:
the moment its connection breaks, its database is withheld, and given back when it has the lock again. Others stand by. The lock alone
would go to whoever is quickest after a restart of the server, so it is taken from an owner that is named only after it was free for
`GRACE_S`: by then an owner that lives has regained it, or is withheld.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import Database, DatabaseUnavailableError, translated

log = get_logger(__name__)

LOOK_S = 1.0
"""How often who stands by looks."""
BEAT_S, ANSWER_S = 1.0, 4.0
"""How often the owner makes sure, and how long each of two answers may take: together less than what _VANISHED and GRACE_S are."""
REGAIN_S = 0.25
GRACE_S = 5.0
_LOCK = 0x5359_504C
_NAME = "owner"
_VANISHED = """SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = 6000"""
"""For the server's end of the connection: of a machine that has vanished it is told after six seconds."""
_HELD = """SELECT EXISTS (SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
    WHERE datname = current_database() AND locktype = 'advisory' AND classid = 0 AND objid = $1 AND objsubid = 1 AND granted"""
_HELD_BY_ANYBODY, _HELD_BY_ME = f"{_HELD})", f"{_HELD} AND pid = pg_backend_pid())"
_BROKEN = (
    SandyardError,
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of a connection that broke at a bad moment
)


def identify(folder: Path) -> str:
    """Of the platform with this data directory, which only one process has at a time: after a crash the next one is the same."""
    there = folder.stat()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    parts = (boot, socket.gethostname(), str(folder), str(there.st_dev), str(there.st_ino))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


class Ownership:
    """`acquire`, then `sign` once the schema is there; `release` at the end. `lost` is done, with a sentence, when another platform has
    taken the database over: then nothing can be read or written here any more, and this process has to end."""

    def __init__(self, database: Database, identity: str) -> None:
        self._database = database
        self._me = identity
        self._stack = contextlib.AsyncExitStack()
        self._connection: Any = None
        self._asking = asyncio.Lock()  # a connection answers one question at a time
        self._broken = asyncio.Event()
        self._free_since: float | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def acquire(self, standing_by: Callable[[str], None]) -> None:
        """Returns when this process owns the database; `standing_by` is told why not yet. Raises DatabaseUnavailableError when the
        server cannot be reached at all in the beginning."""
        told = ""
        while True:
            try:
                reason = await self._take()
            except _BROKEN as error:
                await self._disconnect()
                self._free_since = None
                if not told:
                    raise
                reason = f"The database does not answer: {error}"
            if reason is None:
                break
            if reason != told:
                log.warning("platform_standing_by", reason=reason)
                standing_by(reason)
                told = reason
            await asyncio.sleep(LOOK_S)
        if told:
            log.warning("platform_takes_over")
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="database ownership")
        self._keeping.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Task[None]) -> None:
        if (
            not task.cancelled() and (error := task.exception()) is not None
        ):  # nobody looks any more: nothing may be done
            log.error("database_ownership_crashed", exc=error)
            self._database.withhold("The platform no longer knows whether the database is its own.")
            self.lost.set_result("The platform failed to make sure that the database is its own; its log says why.")

    async def sign(self) -> None:
        """Say in the database who owns it. DatabaseUnavailableError while it is not known to be ours; ConflictError once it is another's."""
        owner = json.dumps({"id": self._me, "host": socket.gethostname(), "pid": os.getpid()})
        write = (
            "INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        )
        async with self._asking:
            if self.lost.done():
                raise ConflictError(self.lost.result())
            if self._connection is None:
                raise DatabaseUnavailableError
            with translated():  # on the connection that holds the lock: what is lost with it is not signed
                if not await self._connection.fetchval(_HELD_BY_ME, _LOCK, timeout=ANSWER_S):
                    raise DatabaseUnavailableError("The platform no longer holds its database.")
                await self._connection.execute(write, _NAME, owner, timeout=ANSWER_S)

    async def release(self) -> None:
        """Whoever stands by may take it at once. Idempotent."""
        if self._keeping is not None:
            await end_tasks(self._keeping)
            self._keeping = None
        if self._connection is not None:
            with contextlib.suppress(*_BROKEN):
                owner = await self._owner()
                if owner.get("id") == self._me:
                    await self._connection.execute("DELETE FROM settings WHERE name = $1", _NAME, timeout=ANSWER_S)
        await self._disconnect()

    # taking ------------------------------------------------------------------------------------------------------------

    async def _take(self) -> str | None:
        """None when it is ours, else why not."""
        await self._connect()
        if await self._ask("SELECT pg_is_in_recovery()"):
            return "The database is a replica, which cannot be written to."
        owner = await self._owner()
        if owner and owner["id"] != self._me:
            if await self._ask(_HELD_BY_ANYBODY, _LOCK):
                self._free_since = None
                return f"{_words(owner)} uses this database. This one takes over when that one ends."
            now = asyncio.get_running_loop().time()
            self._free_since = now if self._free_since is None else self._free_since
            if now - self._free_since < GRACE_S:
                return f"{_words(owner)} no longer holds this database. This one takes over unless it comes back."
        if not await self._ask("SELECT pg_try_advisory_lock($1)", _LOCK):
            self._free_since = None
            return "Another platform uses this database. This one takes over when that one ends."
        if (await self._owner()).get("id") != owner.get("id"):  # somebody was quicker
            await self._disconnect()
            return "Another platform has just taken this database over."
        return None

    async def _owner(self) -> dict[str, Any]:
        """Who has signed; empty when nobody has, or the owner has ended in order."""
        if await self._ask("SELECT to_regclass('settings')::text") is None:
            return {}
        found = await self._ask("SELECT value FROM settings WHERE name = $1", _NAME)
        return {} if found is None else dict(json.loads(found))

    async def _ask(self, question: str, *arguments: Any) -> Any:
        async with self._asking:
            if self._connection is None:
                raise DatabaseUnavailableError
            return await self._connection.fetchval(question, *arguments, timeout=ANSWER_S)

    async def _connect(self) -> None:
        if self._connection is not None and not self._broken.is_set():
            return
        await self._disconnect()
        self._broken = broken = asyncio.Event()
        connection = await self._stack.enter_async_context(self._database.dedicated_connection())
        connection.add_termination_listener(lambda _: broken.set())
        await connection.execute(_VANISHED, timeout=ANSWER_S)
        self._connection = connection

    async def _disconnect(self) -> None:
        self._connection = None
        await self._stack.aclose()

    # keeping -----------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            reason = await self._until_broken()
            self._database.withhold("The platform has lost its connection to the database; try again.")
            log.warning("database_lock_lost", reason=reason)
            await self._disconnect()
            taken = await self._regain()
            if taken is not None:
                await self._disconnect()  # what another one has signed is not overwritten, and not removed
                log.error("database_taken_over", by=taken)
                self._database.withhold("Another platform has taken over.")
                self.lost.set_result(
                    f"{taken} has taken over this database, because this platform had lost its connection to it. "
                    "Nothing was lost. Start this one again, and it stands by."
                )
                return
            self._database.withhold(None)
            log.info("database_lock_regained")

    async def _until_broken(self) -> str:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._broken.wait()
                    return "the connection was closed"
            try:
                held = await self._ask_patiently(_HELD_BY_ME, _LOCK)
            except _BROKEN as error:
                return str(error) or type(error).__name__
            if not held:
                return "the server says that it is not held"

    async def _ask_patiently(self, question: str, *arguments: Any) -> Any:
        """A timeout counts only the second time: after this process itself stood still, timers run before the answer is read."""
        with contextlib.suppress(TimeoutError):
            return await self._ask(question, *arguments)
        return await self._ask(question, *arguments)

    async def _regain(self) -> str | None:
        """None when it is held again; else who has taken it. While the server is away, wait."""
        while True:
            try:
                await self._connect()
                held = await self._ask("SELECT pg_try_advisory_lock($1) AND NOT pg_is_in_recovery()", _LOCK)
                owner = await self._owner()
                if owner.get("id") != self._me:  # who takes over signs; who has ended since has removed that
                    return _words(owner) if owner else "Another platform"
                if held:
                    return None
            except _BROKEN:
                await self._disconnect()
            await asyncio.sleep(REGAIN_S)


def _words(owner: dict[str, Any]) -> str:
    return f"The platform on {owner.get('host')} (process {owner.get('pid')})"
