"""The platform's database for tests: each runs on SQLite; on PostgreSQL too when it is marked `both_databases`, or with --all.

The schema is made once and copied for each test: to bring an empty database up to it takes half a second.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import LRUCache

from sandyard.platform.db import database as databases
from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database
from tests.postgres import Server


def _sharing(create: Callable[..., AsyncEngine]) -> Callable[..., AsyncEngine]:
    """`create`, whose engines keep the statements that they have compiled for each other: every test has one of its own."""
    compiled = LRUCache[Any, Any](2000)

    def engine(url: URL, **options: Any) -> AsyncEngine:
        made = create(url, **options)
        made.sync_engine._compiled_cache = compiled
        return made

    return engine


databases.create_async_engine = _sharing(databases.create_async_engine)
for dialect in (SQLiteDialect_aiosqlite, PGDialect_asyncpg):  # it is part of the key of a statement
    dialect.__eq__ = lambda one, other: type(one) is type(other)
    dialect.__hash__ = lambda one: hash(type(one))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database that is this test's own, with the schema of this version and nothing in it."""
    if request.param == "sqlite":
        path = tmp_path / "platform.db"
        path.write_bytes(sqlite_schema())
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("postgres_schema_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database that is this test's own, without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'platform.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Open, with the schema of this version."""
    opened = Database(database_url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def postgres_schema(postgres: Server) -> Copies:
    """Databases with the schema, for one test after the other."""
    return asyncio.run(_copies(postgres))


@pytest.fixture
async def postgres_schema_url(postgres_schema: Copies) -> AsyncIterator[str]:
    name = await postgres_schema.take()
    yield postgres_schema.server.url(name)
    postgres_schema.used.append(name)


@dataclass
class Copies:
    """Copies of a database with the schema. One whose test is over is emptied, which costs a tenth of what a new one does."""

    server: Server
    template: str
    tables: str
    """What `_TABLES` says of the template."""
    used: list[str] = field(default_factory=list)

    async def take(self) -> str:
        """The name of one with nothing in it, which nobody is connected to."""
        while self.used:
            name = self.used.pop()
            if await self._empty(name):
                return name
            await self.server.drop(name)
        return await self.server.create(self.template)

    async def _empty(self, name: str) -> bool:
        """False: a test has changed its tables."""
        connection = await asyncpg.connect(self.server.url(name))
        try:
            await connection.execute(_DISCONNECT)
            if await connection.fetchval(_TABLES) != self.tables:
                return False
            await connection.execute(_EMPTY)
        finally:
            await connection.close()
        return True


_DISCONNECT = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_TABLES = """
SELECT md5(string_agg(concat(oid, '.', xmin), ' ' ORDER BY oid)) || (SELECT string_agg(version_num, ' ') FROM alembic_version)
FROM pg_class
"""
"""Changes with the version of the schema, and every table, column, index or sequence that is made, altered or dropped."""
_EMPTY = """
SET session_replication_role = replica;
DO $$
DECLARE filled regclass;
BEGIN
    FOR filled IN SELECT oid FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'
        AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format('DELETE FROM %s', filled);
    END LOOP;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S';
END $$
"""


async def _copies(server: Server) -> Copies:
    name = await server.create()
    await _migrated(server.url(name))
    connection = await asyncpg.connect(server.url(name))
    try:
        return Copies(server, name, await connection.fetchval(_TABLES))
    finally:
        await connection.close()


def with_schema(folder: Path) -> Path:
    """The folder, as the data of a platform whose database has the schema of this version and nothing in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "platform.db").write_bytes(sqlite_schema())
    return folder


@functools.cache
def sqlite_schema() -> bytes:
    """A file of SQLite with the schema of this version."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:  # the caller may be in a loop
        path = Path(folder) / "platform.db"
        thread.submit(asyncio.run, _migrated(f"sqlite:///{path}")).result()
        return path.read_bytes()


async def _migrated(url: str) -> None:
    database = Database(url)
    await database.open()
    await migrate.upgrade(database)
    await database.close()
