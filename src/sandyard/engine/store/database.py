"""The engine's SQLite database: one writing connection in the event loop's thread, with the slow fsyncs in another
thread.

Why `synchronous=NORMAL`: a commit is then one write into the page cache (30 µs here), which a kill -9 of the engine
cannot lose, so it may run in the event loop during every create. FULL adds an fsync to each commit: 0.16 ms on this
project's virtual disk, but 1 to 20 ms on ordinary ones, and every other request would wait for it. The risk of NORMAL
is losing the last moment before a power failure. That is limited to about a second, because a thread checkpoints (and
so fsyncs) once a second while there are changes, and operations that must be durable (snapshots, keys) wait for `flush`
before they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sandyard.engine.store.disk_reserve import DiskReserve
from sandyard.engine.store.schema import STEPS
from sandyard.kit.errors import BusyError, NoSpaceError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.sqlite_copy import make_temporary_copy

log = get_logger(__name__)

Row = tuple[Any, ...]
BUSY_TIMEOUT_S = 5.0
FLUSH_INTERVAL_S = 1.0


class DatabaseUnavailableError(BusyError):
    """The engine's database is not responding. Try again."""

    code = "database_unavailable"


class Database:
    """One process's access to an engine's database in SQLite; `PostgresDatabase` is the same with PostgreSQL.

    Other processes (the CLI) may have it open at the same time.

    `execute`, `query` and `transaction` are synchronous and must be called in the thread that opened it. They raise
    NoSpaceError if the disk is full and BusyError if another process holds the write lock for seconds.
    """

    machine: str | None = None
    """The id of the engine's data directory, if engines with other ones use the same database."""

    def __init__(self, path: Path, *, flush_interval_s: float = FLUSH_INTERVAL_S) -> None:
        self._path = path
        self._reserve = DiskReserve(path)
        self._interval = flush_interval_s
        self._connection: sqlite3.Connection | None = None
        self._flusher: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._has_unflushed_commits = False
        self._flush_lock = threading.Lock()

    def open(self) -> None:
        """Open, create or upgrade the database, which is tried on a copy first. Raises if that fails, or if a newer engine created it."""
        self._reserve.release()
        try:
            self._connection = _connect(self._path)
            self._migrate()
            self._flusher = _connect(self._path, any_thread=True)
            self._path.chmod(0o600)
        except sqlite3.DatabaseError as error:
            self.drop_connections()
            raise _translate_error(error, f"Could not open the database {self._path}: {error}.") from error
        except SandyardError:
            self.drop_connections()
            raise
        self._reserve.reserve()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._flush_loop, name="database-flush", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write everything to disk and close. Idempotent."""
        self.abandon()
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.drop_connections()

    def abandon(self) -> None:
        """Stop the flushing thread and nothing else, like a crash would. Committed data is available to the next `open`."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement, in the open transaction or in its own. Return the number of changed rows."""
        self._reserve.release()
        try:
            changed = self._open_connection.execute(sql, parameters).rowcount
        except sqlite3.Error as error:
            raise _translate_error(error) from error
        if changed:
            self._has_unflushed_commits = True
        return changed

    def insert(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run an INSERT like `execute` and return the id of the new row."""
        self._reserve.release()
        try:
            row = self._open_connection.execute(sql, parameters).lastrowid
        except sqlite3.Error as error:
            raise _translate_error(error) from error
        self._has_unflushed_commits = True
        return row or 0

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a SELECT and return all rows."""
        try:
            return self._open_connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise _translate_error(error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one transaction. Do not await inside: the loop's other tasks use the same connection."""
        connection = self._open_connection
        self._reserve.release()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise _translate_error(error) from error
        try:
            yield
            connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _translate_error(error) from error
            raise
        self._has_unflushed_commits = True  # not earlier: a flush during the transaction would reset it

    def get_data_version(self) -> int:
        """Return a number that changes when another connection commits. Takes microseconds."""
        return int(self.query("PRAGMA data_version")[0][0])

    def get_meta(self, key: str) -> str | None:
        """Return a value stored with `set_meta`."""
        rows = self.query("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        self.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
        )

    def find_problem(self) -> str | None:
        """Return why nothing can be read or written at the moment, or None."""
        return None

    async def wait_until_lost(self) -> str:
        """Wait until this engine may no longer use the database. Return the reason. Cancellable."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def flush(self) -> None:
        """Return when everything committed so far survives a power failure. Raises NoSpaceError."""
        try:
            await asyncio.to_thread(self._flush)
        except sqlite3.Error as error:
            raise _translate_error(error) from error
        except OSError as error:
            raise SandyardError(f"Could not write the engine's database to disk: {error.strerror}.") from error

    def _migrate(self) -> None:
        connection = self._open_connection
        if _read_version(connection, self._path) < len(STEPS):
            try_migration(self._path)
            # a crash leaves the old schema; another process that upgrades at the same time waits
            with self.transaction():
                _apply_steps(connection)

    def _flush_loop(self) -> None:
        while not self._stopping.wait(self._interval):
            if self._has_unflushed_commits:
                self._has_unflushed_commits = False
                self._reserve.reserve()
                try:
                    self._flush()
                except (sqlite3.Error, OSError) as error:
                    self._has_unflushed_commits = True
                    log.warning("database_flush_failed", path=str(self._path), error=str(error))

    def _flush(self) -> None:
        # A separate connection: sqlite3 releases the GIL while it works, and a passive checkpoint never blocks the writer.
        with self._flush_lock:
            if self._flusher is None:
                return
            busy, logged, copied = self._flusher.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if busy or copied < logged:
                self._sync_log()  # another process uses the database, so the checkpoint may have synced nothing

    def _sync_log(self) -> None:
        with self._path.with_name(f"{self._path.name}-wal").open("rb") as log_file:
            os.fsync(log_file.fileno())

    @property
    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise SandyardError("The database is not open.")
        return self._connection

    def drop_connections(self) -> None:
        """Close the connections and write nothing more."""
        with self._flush_lock:
            for connection in (self._flusher, self._connection):
                if connection is not None:
                    connection.close()
            self._flusher = self._connection = None


def try_migration(path: Path) -> None:
    """Try on a copy whether the database can be upgraded. Raises SandyardError if not, or if a newer engine created it.

    Changes nothing, and does nothing if there is no database or nothing to upgrade.
    """
    if not path.exists():
        return
    try:
        with contextlib.closing(_connect(path)) as connection:
            version = _read_version(connection, path)
        if not 0 < version < len(STEPS):
            return
        with make_temporary_copy(path) as copy, contextlib.closing(_connect(copy)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            _apply_steps(connection)
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise _translate_error(
            error,
            f"The database {path} cannot be upgraded by this version: {error}. It was tried on a copy, and nothing has been changed: "
            "install the version before again.",
        ) from error


def _read_version(connection: sqlite3.Connection, path: Path) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(STEPS):
        raise SandyardError(
            f"The database {path} was created by a newer engine (schema {version}, supported here: {len(STEPS)}). Upgrade the engine."
        )
    return version


def _apply_steps(connection: sqlite3.Connection) -> None:
    """Apply the missing steps inside the open transaction."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    for step in STEPS[version:]:
        for statement in _split_statements(step):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(STEPS)}")


def _split_statements(script: str) -> Iterator[str]:
    """Yield the statements one by one, because `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _connect(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, cached_statements=256, check_same_thread=not any_thread
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _translate_error(error: sqlite3.Error, message: str | None = None) -> SandyardError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code, without the extended one
    if code == sqlite3.SQLITE_FULL:
        return NoSpaceError(
            "Could not write to the engine's database: the disk is full. Free some space and try again."
        )
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return BusyError("The engine's database is locked by another process. Try again.")
    return SandyardError(message or f"The engine's database failed: {error}.")
