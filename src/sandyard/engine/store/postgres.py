"""The engine's records in PostgreSQL, for engines that stand by for each other.

One connection does everything: it holds the lock that makes this engine the active one, and it is the only one that writes. An engine
that has lost the lock has therefore also lost the means to write, whatever it still believes. The server ends the connection of an engine
that is silent for `SILENCE_S`, for example because its process was stopped. From an engine that was not stopped properly, the lock is
taken only after it was free for `GRACE_S`: by then a live engine has regained it.

Queries are synchronous like those of SQLite, so the event loop waits for the server: 0.2 to 2 ms each, and once, for at most `ANSWER_S`,
when the server vanishes. The connection is served by a thread, which reconnects in the background.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from sandyard.engine.store.database import Database, DatabaseUnavailableError, Row
from sandyard.engine.store.schema import STEPS
from sandyard.kit.errors import ConflictError, NoSpaceError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.postgres import BROKEN_CONNECTION, DETECT_VANISHED, HELD_BY_ANYBODY

log = get_logger(__name__)

T = TypeVar("T")
SCHEMA = "sandyard_engine"
"""The schema of all tables, so that an engine and a platform can use the same database."""
ANSWER_S = 4.0
"""How long the server may take to answer. A write that takes longer may or may not have happened, so the engine ends."""
BEAT_S = 1.0
SILENCE_S = 6
"""Time after which the server ends the connection of a silent engine."""
CONNECT_S = 10.0
GRACE_S, LOOK_S, REGAIN_S = 3.0, 0.5, 0.25
_LOCK = 0x5359_454E
_PREPARE = f"{DETECT_VANISHED}; SET idle_session_timeout = '{SILENCE_S}s'; SET idle_in_transaction_session_timeout = '{SILENCE_S}s'"
_CREATE_OWNER = f"""CREATE SCHEMA IF NOT EXISTS {SCHEMA};
    CREATE TABLE IF NOT EXISTS {SCHEMA}.owner (id INTEGER PRIMARY KEY CHECK (id = 1), value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS {SCHEMA}.schema_version (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)"""
_SIGN = f"INSERT INTO {SCHEMA}.owner (id, value) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET value = excluded.value"  # noqa: S608
_LOST = "The engine has lost its connection to the database. Try again."


class PostgresDatabase(Database):
    """The records of an engine in PostgreSQL. Call `acquire` before `open`, and `await wait_until_lost()` while it is used.

    `identity` is that of the engine's data directory. Without it, the database is used next to a running engine and without the lock, for
    changes that any process may make.
    """

    def __init__(self, url: str, identity: str | None = None) -> None:
        self._url = url
        self._identity = identity
        me = {"id": identity, "host": socket.gethostname(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        self._signature = json.dumps(me)
        self._connection: Any = None
        self._broken = asyncio.Event()
        self._asking = asyncio.Lock()  # a connection answers one query at a time
        self._transaction: Any = None  # the connection that the open transaction belongs to
        self._problem: str | None = "The database is not open."
        self._lost: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._keeping: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = threading.Thread(
            target=self._loop.run_forever, name="database", daemon=True
        )
        self._thread.start()

    # ownership, in the caller's event loop ----------------------------------------------------------------------------

    async def acquire(self, on_waiting: Callable[[str], None]) -> None:
        """Return when this engine is the active one. `on_waiting` is called with the reason for waiting.

        Raises DatabaseUnavailableError if the server cannot be reached at the start.
        """
        reason, free_since = "", None
        loop = asyncio.get_running_loop()
        while True:
            try:
                state = await self._run_async(
                    self._try_take(wait=free_since is None or loop.time() - free_since < GRACE_S)
                )
            except (DatabaseUnavailableError, *BROKEN_CONNECTION) as error:
                await self._run_async(self._drop())
                if not reason:
                    raise DatabaseUnavailableError(
                        f"Could not connect to the engine's database: {_name(error)}"
                    ) from error
                state = _Waiting(f"The database is not responding: {_name(error)}", is_free=False)
            if state is None:
                break
            free_since = (free_since or loop.time()) if state.is_free else None
            if state.reason != reason:
                reason = state.reason
                log.warning("engine_standing_by", reason=reason)
                on_waiting(reason)
            await asyncio.sleep(LOOK_S)
        if reason:
            log.warning("engine_takes_over")
        self._problem = None
        await self._run_async(self._start_keeping())

    async def wait_until_lost(self) -> str:
        return await asyncio.shield(asyncio.wrap_future(self._lost))

    def find_problem(self) -> str | None:
        return self._problem

    # the interface of `Database` --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create or upgrade the tables. Raises if that fails, or if a newer engine created them."""
        try:
            if self._identity is None:
                self._run(self._connect())
                self._problem = None
            self._migrate()
        except BROKEN_CONNECTION as error:
            self.close()
            raise DatabaseUnavailableError(f"Could not connect to the engine's database: {_name(error)}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the database, so that an engine that stands by takes over at once. Idempotent."""
        if self._thread is None:
            return
        self._problem = "The database is not open."
        self._run(self._release())
        self.abandon()

    def abandon(self) -> None:
        """Stop the thread and nothing else, like a crash would."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
            self._loop.close()

    def drop_connections(self) -> None:
        self._run(self._drop())

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        status: str = self._perform("execute", sql, parameters, writes=True)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    def insert(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return int(self._perform("fetchval", f"{sql} RETURNING seq", parameters, writes=True))

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return [tuple(row) for row in self._perform("fetch", sql, parameters)]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._transaction = self._run(self._begin())
        try:
            yield
        except BaseException:
            with contextlib.suppress(SandyardError):
                self._perform("execute", "ROLLBACK")
            raise
        else:
            if self._perform("execute", "COMMIT", writes=True, commits=True) != "COMMIT":
                raise SandyardError(
                    "The engine's database has rolled back a transaction: a statement in it had failed."
                )
        finally:
            self._transaction = None

    def get_data_version(self) -> int:
        return int(self.query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")[0][0])

    async def flush(self) -> None:
        """Do nothing: what is committed is on the server's disk."""

    # in the caller's thread -------------------------------------------------------------------------------------------

    def _perform(
        self, method: str, sql: str, parameters: Sequence[Any] = (), *, writes: bool = False, commits: bool = False
    ) -> Any:
        transaction = self._transaction
        is_final = writes and (commits or transaction is None)
        values = [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in parameters]
        return self._run(self._ask(method, translate_sql(sql), values, transaction, is_final=is_final))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._submit(coroutine).result()

    async def _run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._submit(coroutine))

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._thread is None:
            coroutine.close()
            raise DatabaseUnavailableError("The database is not open.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _migrate(self) -> None:
        is_new = self.query("SELECT to_regclass(?)::text", (f"{SCHEMA}.schema_version",))[0][0] is None
        version = 0 if is_new else self.query(f"SELECT COALESCE(max(version), 0) FROM {SCHEMA}.schema_version")[0][0]  # noqa: S608
        if version > len(STEPS):
            raise SandyardError(
                f"The engine's database was created by a newer engine (schema {version}, supported here: {len(STEPS)}). Upgrade the engine."
            )
        if version == len(STEPS):
            return
        if self._identity is None:
            raise ConflictError("The engine's database has no tables of this version yet. Start the engine first.")
        with self.transaction():  # if a step fails, the old schema stays
            for step in STEPS[version:]:
                self._perform("execute", translate_schema(step))
            self.execute(
                f"INSERT INTO {SCHEMA}.schema_version VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET version = excluded.version",  # noqa: S608
                (len(STEPS),),
            )

    # in the database's thread -----------------------------------------------------------------------------------------

    async def _ask(self, method: str, sql: str, values: Sequence[Any], transaction: Any, *, is_final: bool) -> Any:
        if self._problem is not None:
            raise DatabaseUnavailableError(self._problem)  # without waiting for the attempts to reconnect
        async with self._asking:
            connection = self._connection
            if self._problem is not None or connection is None or connection.is_closed():
                raise DatabaseUnavailableError(self._problem or _LOST)
            if transaction not in (None, connection):
                raise DatabaseUnavailableError(_LOST)  # it was rolled back with its connection
            try:
                return await getattr(connection, method)(sql, *values, timeout=ANSWER_S)
            except BROKEN_CONNECTION as error:
                if _is_intact(connection, error):
                    raise _translate_error(error) from error
                connection.terminate()
                self._broken.set()
                if is_final:  # memory and database may differ now, and only a new start reads the database again
                    self._end("A write was interrupted, and it is not known whether it has happened.")
                raise DatabaseUnavailableError(self._problem or _LOST) from error

    async def _begin(self) -> Any:
        """Begin a transaction, and return the connection that it belongs to."""
        await self._ask("execute", "BEGIN", (), None, is_final=False)
        return self._connection

    async def _connect(self) -> Any:
        await self._drop()
        self._broken = broken = asyncio.Event()
        connection = await asyncpg.connect(
            self._url, timeout=CONNECT_S, server_settings={"search_path": SCHEMA, "application_name": "sandyard-engine"}
        )
        connection.add_termination_listener(lambda _: broken.set())
        try:
            if self._identity is not None:
                await connection.execute(_PREPARE, timeout=ANSWER_S)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _try_take(self, *, wait: bool) -> _Waiting | None:
        """Try to become the active engine. With `wait`, leave the lock to the engine that held it last."""
        connection = self._connection
        if connection is None or connection.is_closed():
            connection = await self._connect()
        if await connection.fetchval("SELECT pg_is_in_recovery()", timeout=ANSWER_S):
            return _Waiting("The database is a replica, which cannot be written to.", is_free=False)
        owner = await _read_owner(connection)
        if await connection.fetchval(HELD_BY_ANYBODY, _LOCK, timeout=ANSWER_S):
            return _Waiting(f"{_describe(owner)} is active. This one takes over when it stops.", is_free=False)
        if wait and owner is not None and owner["id"] != self._identity:
            return _Waiting(f"{_describe(owner)} is gone. This one takes over unless it returns.", is_free=True)
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK, timeout=ANSWER_S):
            return _Waiting("Another engine is active. This one takes over when it stops.", is_free=False)
        await connection.execute(_CREATE_OWNER, timeout=ANSWER_S)
        await connection.execute(_SIGN, self._signature, timeout=ANSWER_S)
        return None

    async def _start_keeping(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Keep the lock: show the server that this engine is alive, and reconnect. Ends when another engine has taken over."""
        try:
            while True:
                reason = await self._wait_until_broken()
                log.warning("engine_database_lost", reason=reason)
                self._problem = self._problem or _LOST
                if not await self._regain():
                    return
                self._problem = None
                log.info("engine_database_regained")
        except Exception as error:  # nobody keeps the lock from now on
            log.error("engine_database_failed", exc=error)  # noqa: TRY400
            self._end(f"The engine cannot keep its lock on the database: {error}")

    async def _wait_until_broken(self) -> str:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._broken.wait()
                    return "the connection was closed"
            if self._transaction is not None:
                continue
            async with self._asking:
                try:
                    await self._connection.fetchval("SELECT 1", timeout=ANSWER_S)
                except BROKEN_CONNECTION as error:
                    self._connection.terminate()
                    return _name(error)

    async def _regain(self) -> bool:
        """Return True when the lock is held again, and False when this engine has to end."""
        while not self._lost.done():
            try:
                async with self._asking:
                    connection = await self._connect()
                    held = await connection.fetchval(
                        "SELECT NOT pg_is_in_recovery() AND pg_try_advisory_lock($1)", _LOCK, timeout=ANSWER_S
                    )
                    owner = await _read_owner(connection)
                if owner != json.loads(self._signature):  # a new owner signs, and removes its name when it stops
                    self._end(f"{_describe(owner)} has taken over.")
                elif held:
                    return True
            except BROKEN_CONNECTION:
                pass
            await asyncio.sleep(REGAIN_S)
        await self._drop()
        return False

    def _end(self, reason: str) -> None:
        self._problem = reason
        if not self._lost.done():
            log.error("engine_database_given_up", reason=reason)
            self._lost.set_result(reason)

    async def _release(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
            if self._connection is not None and not self._lost.done():
                with contextlib.suppress(*BROKEN_CONNECTION):
                    owner = f"DELETE FROM {SCHEMA}.owner WHERE value = $1"  # noqa: S608
                    await self._connection.execute(owner, self._signature, timeout=ANSWER_S)
        await self._drop()


class _Waiting:
    """Why an engine stands by. `is_free`: nobody holds the lock."""

    def __init__(self, reason: str, *, is_free: bool) -> None:
        self.reason = reason
        self.is_free = is_free


async def _read_owner(connection: Any) -> dict[str, Any] | None:
    """Return the engine that was active last, or None if it has stopped properly."""
    if await connection.fetchval("SELECT to_regclass($1)::text", f"{SCHEMA}.owner", timeout=ANSWER_S) is None:
        return None
    found = await connection.fetchval(f"SELECT value FROM {SCHEMA}.owner", timeout=ANSWER_S)  # noqa: S608
    return None if found is None else dict(json.loads(found))


def _describe(owner: dict[str, Any] | None) -> str:
    return "Another engine" if owner is None else f"The engine on {owner.get('host')} (process {owner.get('pid')})"


def _name(error: BaseException) -> str:
    return str(error) or type(error).__name__  # a timeout has no message


def _is_intact(connection: Any, error: BaseException) -> bool:
    """Return whether the server has refused the statement and nothing else is wrong."""
    ended = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InternalClientError)
    return not connection.is_closed() and not isinstance(error, (OSError, *ended))  # TimeoutError is an OSError


def _translate_error(error: BaseException) -> SandyardError:
    if isinstance(error, asyncpg.DiskFullError):
        return NoSpaceError("Could not write to the engine's database: the disk of PostgreSQL is full.")
    return SandyardError(f"The engine's database failed: {error}.")


@functools.lru_cache(maxsize=512)
def translate_sql(sql: str) -> str:
    """Translate a statement from SQLite's dialect: `?` and `?1` are parameters. No statement has a question mark in a string."""
    number = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        return f"${match[1] or number}"

    return re.sub(r"\?(\d*)", replace, sql).replace("instr(", "strpos(")


def translate_schema(script: str) -> str:
    """Translate the statements of a step of the schema."""
    script = re.sub(r"--.*", "", script)
    for ours, theirs in (
        (r"INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"),
        (r"\bINTEGER\b", "BIGINT"),
        (r"\bREAL\b", "DOUBLE PRECISION"),
        (r"\bBLOB\b", "BYTEA"),
        (r"\bWITHOUT ROWID\b", ""),
    ):
        script = re.sub(ours, theirs, script)
    return script
