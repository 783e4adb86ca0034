"""Schema: upgraded when a platform starts, and compared with the models.

Everything runs in one transaction, under a lock that all platforms on one database share: if two start at once, one
does the work and the other finds it done. A migration that fails leaves the schema as it was. SQLite is migrated on a
copy first, because what a transaction cannot undo, such as a full disk, must not happen to the only one.

To create a revision after changing the models: `python -m sandyard.platform.db.migrate "what changes"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.sqlite_copy import make_temporary_copy
from sandyard.platform.db import models
from sandyard.platform.db.database import Database, translate_driver_errors
from sandyard.platform.db.ownership import is_owned
from sandyard.platform.db.types import BigInt, Json, UtcTime

log = get_logger(__name__)

FOLDER = Path(__file__).with_name("migrations")
_LOCK: Final = 0x5359_4D49  # the same number for all platforms on one PostgreSQL database
LOCK_S: Final = 10
"""How long trying a migration waits for others that use the tables."""
GUARDS: Final = ("audit_no_update", "audit_no_delete")
"""Triggers that keep `audit` append-only. They are not part of any model."""


class NewerDatabaseError(SandyardError):
    """The database was created by a newer version of Sandyard."""

    code, status = "newer_database", 500


class BrokenReferencesError(SandyardError):
    """A migration would leave rows with dangling references."""

    code, status = "broken_references", 500


class MigrationError(SandyardError):
    """A migration failed. The database is as before."""

    code, status = "migration_failed", 500


def _render(kind: str, item: Any, _: Any) -> str | bool:
    """Render our own column types by their names."""
    if kind == "type":
        if isinstance(item, UtcTime):
            return "UtcTime()"
        for name, ours in (("BigInt", BigInt), ("Json", Json)):
            if item is ours or repr(item) == repr(ours):
                return name
    return False


OPTIONS: Final[dict[str, Any]] = {
    "target_metadata": models.Base.metadata,
    "render_as_batch": True,  # SQLite changes a table by creating it again
    "compare_type": True,
    "compare_server_default": True,
    "render_item": _render,
}


async def upgrade(database: Database) -> None:
    """Upgrade the schema to this version's. Safe to call concurrently.

    Raises NewerDatabaseError if the schema is newer, and MigrationError if a migration fails: nothing has been changed then.
    """
    if (before := await get_current_revision(database)) == get_newest_revision():
        return
    if before is not None and database.is_sqlite:
        await _try_on_copy(database)
    with _translate_migration_errors(before):
        async with migrating(database) as connection:
            before, after = await connection.run_sync(_upgrade)
    if before != after:
        log.info("database_migrated", before=before or "empty", after=after)


async def try_upgrade(database: Database) -> None:
    """Try whether `upgrade` would succeed, and change nothing: on a copy, or with PostgreSQL in a transaction that is rolled back.

    Raises what `upgrade` would. Does nothing while another platform uses the PostgreSQL database, which would wait for this.
    """
    before = await get_current_revision(database)
    if before in {None, get_newest_revision()}:
        return
    if database.is_sqlite:
        await _try_on_copy(database)
        return
    with _translate_migration_errors(before):
        async with migrating(database) as connection:
            if await is_owned(connection):
                return
            await connection.execute(text(f"SET LOCAL lock_timeout = {round(LOCK_S * 1000)}"))
            await connection.run_sync(_upgrade)
            await connection.rollback()
    log.info("database_migration_tried", before=before, after=get_newest_revision())


async def downgrade(database: Database, revision: str) -> None:
    """Downgrade to `revision`, or to an empty schema with `base`. Data that only newer schemas can hold is lost."""
    known = {script.revision for script in _load_scripts().walk_revisions()}
    if revision != "base" and revision not in known:
        raise InvalidInputError(f"There is no revision {revision!r}: use base or one of {', '.join(sorted(known))}.")
    async with migrating(database) as connection:
        await connection.run_sync(lambda bound: command.downgrade(_make_config(bound), revision))
    log.info("database_downgraded", revision=revision)


async def get_current_revision(database: Database) -> str | None:
    """Return the schema's revision, None before the first. Raises NewerDatabaseError if this version does not know it."""
    with translate_driver_errors():
        async with database.engine.connect() as connection:
            return await connection.run_sync(_get_current_revision)


def get_newest_revision() -> str:
    """Return the revision that this version upgrades to."""
    head = _load_scripts().get_current_head()
    assert head is not None
    return head


async def find_drift(database: Database) -> list[str]:
    """Return the differences between the schema and the models, one line each."""
    with translate_driver_errors():
        async with database.engine.connect() as connection:
            return await connection.run_sync(_find_drift)


async def revise(database: Database, message: str) -> Path:
    """Write a revision that leads from the schema of `database`, which must be up to date, to the models.

    The result is a draft; read it before use.
    """
    async with database.engine.connect() as connection:
        return await connection.run_sync(_revise, message)


async def _try_on_copy(database: Database) -> None:
    path = database.url.database
    before = await get_current_revision(database)
    if not path or path == ":memory:":
        return
    with _translate_migration_errors(before), contextlib.ExitStack() as stack:
        copy = Database(f"sqlite:///{await asyncio.to_thread(stack.enter_context, make_temporary_copy(Path(path)))}")
        await copy.open()
        try:
            async with migrating(copy) as connection:
                await connection.run_sync(_upgrade)
        finally:
            await copy.close()
    log.info("database_migration_tried", before=before, after=get_newest_revision())


@contextlib.contextmanager
def _translate_migration_errors(before: str | None) -> Iterator[None]:
    """Raise MigrationError for everything that a migration raises, except for our errors about the database itself."""
    try:
        yield
    except SandyardError as error:
        if not isinstance(error, BrokenReferencesError):
            raise
        raise MigrationError(_describe_failure(before, error.message)) from error
    except Exception as error:
        reason = str(getattr(error, "orig", None) or error).strip()
        raise MigrationError(_describe_failure(before, f"{type(error).__name__}: {reason}")) from error


def _describe_failure(before: str | None, reason: str) -> str:
    return (
        f"The platform's database cannot be upgraded from {before or 'empty'} to {get_newest_revision()}: {reason.rstrip('.')}. "
        "Nothing has been changed: install the version before again."
    )


def _upgrade(connection: Connection) -> tuple[str | None, str | None]:
    before = _get_current_revision(connection)
    command.upgrade(_make_config(connection), "head")
    return before, _get_current_revision(connection)


def _get_current_revision(connection: Connection) -> str | None:
    heads = MigrationContext.configure(connection).get_current_heads()
    scripts = _load_scripts()
    known = {script.revision for script in scripts.walk_revisions()}
    unknown = sorted(set(heads) - known)
    if unknown:
        raise NewerDatabaseError(
            f"The database was created by a newer version of Sandyard: its schema is {', '.join(unknown)}, and this version supports up "
            f"to {scripts.get_current_head()}. Use the newer version, or another database."
        )
    return heads[0] if heads else None


def _find_drift(connection: Connection) -> list[str]:
    context = MigrationContext.configure(connection, opts=OPTIONS)
    found = [_describe_change(change) for change in compare_metadata(context, models.Base.metadata)]
    catalogue = "sqlite_master WHERE type = 'trigger'" if connection.dialect.name == "sqlite" else "pg_trigger"
    name = "name" if connection.dialect.name == "sqlite" else "tgname"
    there = set(connection.scalars(text(f"SELECT {name} FROM {catalogue}")))  # noqa: S608 - constant words
    return found + [f"the trigger {guard} is missing" for guard in GUARDS if guard not in there]


def _describe_change(change: Any) -> str:
    """Describe a difference in Alembic's form: (verb, objects…), or a list of them for one column."""
    if isinstance(change, list):
        return "; ".join(_describe_change(each) for each in change)
    verb, *rest = change
    return " ".join([verb.replace("_", " "), *(str(getattr(each, "name", None) or each) for each in rest)])


def _revise(connection: Connection, message: str) -> Path:
    number = f"{len(list(_load_scripts().walk_revisions())) + 1:04}"
    made = command.revision(_make_config(connection), message, autogenerate=True, rev_id=number)
    scripts = [made] if not isinstance(made, Iterable) else [script for script in made if script is not None]
    assert scripts, "Alembic made no revision"
    script = scripts[0]
    assert script is not None
    return Path(script.path)


def _make_config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    return config


@functools.cache
def _load_scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_make_config())


@contextlib.asynccontextmanager
async def migrating(database: Database) -> AsyncIterator[AsyncConnection]:
    """Yield a connection in a transaction that excludes all other migrations."""
    with translate_driver_errors():
        async with database.engine.connect() as connection:
            if database.is_sqlite:
                async with _without_foreign_keys(connection):
                    yield connection
            else:
                async with connection.begin():
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                    yield connection


@contextlib.asynccontextmanager
async def _without_foreign_keys(connection: AsyncConnection) -> AsyncIterator[None]:
    """Disable foreign keys during a migration.

    To change a table, SQLite creates it again and drops the old one, which would delete the rows that refer to it. The
    setting has no effect inside a transaction, so it is changed before. Dangling references at the end are an error.
    """
    await connection.execution_options(write=True)
    pooled = await connection.get_raw_connection()
    raw = pooled.driver_connection
    assert raw is not None
    await raw.execute("PRAGMA foreign_keys=OFF")
    try:
        async with connection.begin():
            yield
            if (broken := (await connection.execute(text("PRAGMA foreign_key_check"))).first()) is not None:
                raise BrokenReferencesError(f"The migration would leave rows of {broken[0]} with dangling references.")
    finally:
        await raw.execute("PRAGMA foreign_keys=ON")


async def _main(message: str) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/scratch.db")
        await database.open()
        try:
            await upgrade(database)
            return await revise(database, message)
        finally:
            await database.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('Usage: python -m sandyard.platform.db.migrate "what changes"')
    sys.stdout.write(f"{asyncio.run(_main(sys.argv[1]))}\n")
