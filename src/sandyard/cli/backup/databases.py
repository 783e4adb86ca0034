"""Consistent copies of databases that are in use: SQLite with its backup API, PostgreSQL with pg_dump."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy.engine import URL, make_url

from sandyard.cli.errors import CommandError
from sandyard.engine.store.schema import STEPS
from sandyard.kit.python import SAFE_FOLDER

SQLITE_SUFFIXES = ("-wal", "-shm", "-journal")
"""Files next to a database, whose contents are part of the copy."""
PAGES_PER_STEP = 2000
BUSY_SECONDS = 30
MAX_ERROR_CHARACTERS = 500
_SECRET_OPTIONS = {"password", "sslpassword"}
_RESTORED_TABLES = ("meta", "logs", "ended", "api_keys", "secrets", "hosts")
"""Tables of the engine that a restored engine has. The others describe files in its store and running processes, or are join tokens, which
may have been used after the backup."""
_COUNT_TABLES = """SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relkind IN ('r', 'p', 'v', 'm') AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"""


def copy_sqlite(sources: Sequence[Path], folder: Path, on_bytes: Callable[[int, str], None]) -> list[Path]:
    """Copy databases into the folder while other processes write to them. Skips missing ones.

    The first copy is never newer than the others: if one database is always written after another one, pass it first.
    """
    copies = []
    with contextlib.ExitStack() as stack:
        connections = []
        for source in sources:
            if source.exists():
                connection = stack.enter_context(contextlib.closing(_open_sqlite(source)))
                with _translate_sqlite_errors(source):
                    connection.execute("BEGIN")
                    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the snapshot is taken here
                connections.append((source, connection))
        for source, connection in connections:
            copy = folder / source.name
            with contextlib.closing(sqlite3.connect(copy)) as target, _translate_sqlite_errors(source):
                _copy_pages(connection, target, partial(_report, on_bytes, source.name))
            check_sqlite(copy)
            copies.append(copy)
    return copies


def _report(on_bytes: Callable[[int, str], None], name: str, size: int) -> None:
    on_bytes(size, name)


def _open_sqlite(path: Path) -> sqlite3.Connection:
    with _translate_sqlite_errors(path):
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )


def _copy_pages(source: sqlite3.Connection, target: sqlite3.Connection, on_bytes: Callable[[int], None]) -> None:
    (page_size,) = source.execute("PRAGMA page_size").fetchone()
    copied = 0

    def report(_: int, remaining: int, total: int) -> None:
        nonlocal copied
        on_bytes((total - remaining - copied) * page_size)
        copied = total - remaining

    source.backup(target, pages=PAGES_PER_STEP, progress=report, sleep=0)


def check_sqlite(path: Path) -> None:
    """Raise CommandError if the database is damaged. Leaves a single file, without a journal."""
    with contextlib.closing(sqlite3.connect(path)) as connection, _translate_sqlite_errors(path):
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise CommandError(f"The database {path.name} is damaged: {found}.")
        connection.execute("PRAGMA journal_mode = DELETE")


@contextlib.contextmanager
def _translate_sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CommandError(f"Could not read the database {path}: {error}.") from None


def remove_store_records(database: Path) -> None:
    """Write the engine's database anew, without its records of sandboxes, snapshots, templates and volumes, because their files are not in
    the backup. Only known tables and columns are copied into the schema of the engine: names that SQLite regards as equal, views and
    triggers of a forged database could bring such records. Raises CommandError."""
    new = database.with_name(f"{database.name}.new")
    new.unlink(missing_ok=True)
    try:
        with (
            contextlib.closing(sqlite3.connect(new, isolation_level=None, uri=True)) as connection,
            _translate_sqlite_errors(database),
        ):
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("ATTACH ? AS source", (f"{database.absolute().as_uri()}?mode=ro",))
            (version,) = connection.execute("PRAGMA source.user_version").fetchone()
            if not 0 <= version <= len(STEPS):
                raise CommandError(f"The database {database.name} was created by a newer version of Sandyard.")
            for step in STEPS[:version]:
                connection.executescript(step)
            connection.execute(f"PRAGMA main.user_version = {version}")
            connection.execute("BEGIN IMMEDIATE")
            for table in _RESTORED_TABLES:
                _copy_table(connection, table)
            if _list_columns(connection, "main", "ended"):  # so that the logs of these sandboxes expire
                connection.execute(
                    "INSERT OR IGNORE INTO main.ended SELECT sandbox_id, max(at) FROM main.logs GROUP BY sandbox_id"
                )
            connection.execute("COMMIT")
        new.chmod(database.stat().st_mode & 0o777)
        new.replace(database)
    finally:
        new.unlink(missing_ok=True)


def _copy_table(connection: sqlite3.Connection, table: str) -> None:
    """Copy the known columns of a table from the attached database `source`, if it is a table there."""
    is_table = "SELECT 1 FROM source.sqlite_master WHERE type = 'table' AND name = ? AND rootpage > 0"
    if connection.execute(is_table, (table,)).fetchone() is None:
        return
    given = _list_columns(connection, "source", table)
    columns = ", ".join(column for column in _list_columns(connection, "main", table) if column in given)
    if columns:
        connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM source.{table}")  # noqa: S608 - names of the schema


def _list_columns(connection: sqlite3.Connection, schema: str, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA {schema}.table_info({table})")]


def dump_postgresql(url: str, file: Path) -> None:
    """Write a dump of the whole database as of one instant. Raises CommandError."""
    _run_client(
        "pg_dump",
        "Could not dump the database",
        url,
        "--format=custom",
        "--no-owner",
        "--no-privileges",
        f"--file={file}",
    )


def load_postgresql(url: str, file: Path) -> None:
    """Load a dump into an empty database, completely or not at all. Raises CommandError."""
    options = ("--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges")
    _run_client("pg_restore", "Could not restore the database", url, *options, str(file))


async def check_postgresql_is_empty(url: str) -> None:
    """Raise CommandError if the database contains tables or cannot be reached."""
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = await asyncpg.connect(dsn)
        try:
            count = await connection.fetchval(_COUNT_TABLES)
        finally:
            await connection.close()
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise CommandError(f"Could not connect to the database of SANDYARD_DATABASE_URL: {error}") from None
    if count:
        raise CommandError(
            f"The database of SANDYARD_DATABASE_URL is not empty: it has {count} tables. Create an empty one for the restore."
        )


def find_client(program: str) -> str:
    """Return the path of a PostgreSQL client program. Raises CommandError if it is not installed."""
    path = shutil.which(program)
    if path is None:
        raise CommandError(
            f"The platform's database is PostgreSQL, and {program} is not installed. Install PostgreSQL's client programs "
            "(Debian: apt install postgresql-client)."
        )
    return path


def _run_client(program: str, failure: str, url: str, *options: str) -> None:
    parsed = make_url(url)
    given = parsed.password if parsed.password is not None else parsed.query.get("password")
    password = {"PGPASSWORD": str(given)} if given is not None else {}
    command = [find_client(program), f"--dbname={_format_url(parsed)}", "--no-password", *options]
    done = subprocess.run(
        command,
        cwd=SAFE_FOLDER,
        env={**os.environ, **password},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise CommandError(f"{failure}: {done.stderr.strip()[:MAX_ERROR_CHARACTERS] or f'{program} failed'}")


def _format_url(url: URL) -> str:
    """Return the address without the password, which other users could see in the list of processes."""
    query = {name: value for name, value in url.query.items() if name not in _SECRET_OPTIONS}
    return URL.create("postgresql", url.username, None, url.host, url.port, url.database, query).render_as_string()
