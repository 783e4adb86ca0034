"""The platform's database for tests: every test runs on SQLite, and also on PostgreSQL if it is marked `both_databases` or with --all.

The schema is created once and copied for each test: migrating an empty database takes half a second.
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
from tests.harness.postgres import Server


def _share_statements(create: Callable[..., AsyncEngine]) -> Callable[..., AsyncEngine]:
    """Wrap `create` so that all engines share their compiled statements: every test creates its own engine."""
    compiled = LRUCache[Any, Any](2000)

    def engine(url: URL, **options: Any) -> AsyncEngine:
        made = create(url, **options)
        made.sync_engine._compiled_cache = compiled
        return made

    return engine


databases.create_async_engine = _share_statements(databases.create_async_engine)
for dialect in (SQLiteDialect_aiosqlite, PGDialect_asyncpg):  # the dialect is part of the cache key
    dialect.__eq__ = lambda one, other: type(one) is type(other)
    dialect.__hash__ = lambda candidate: hash(type(candidate))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a separate database for this test, with the current schema and no data."""
    if request.param == "sqlite":
        path = tmp_path / "platform.db"
        path.write_bytes(sqlite_schema())
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("postgres_schema_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a separate database for this test, without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'platform.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open database with the current schema."""
    opened = Database(database_url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def postgres_schema(postgres: Server) -> Copies:
    """Databases with the schema, reused by one test after the other."""
    return asyncio.run(_make_template(postgres))


@pytest.fixture
async def postgres_schema_url(postgres_schema: Copies) -> AsyncIterator[str]:
    name = await postgres_schema.take()
    yield postgres_schema.server.url(name)
    postgres_schema.used.append(name)


@dataclass
class Copies:
    """Copies of a database with the schema. After its test, a copy is emptied, which takes a tenth of the time of a new copy."""

    server: Server
    template: str
    tables: str
    """The result of `_TABLES` for the template."""
    used: list[str] = field(default_factory=list)

    async def take(self) -> str:
        """Return the name of an empty copy without connections."""
        while self.used:
            name = self.used.pop()
            if await self._empty(name):
                return name
            await self.server.drop(name)
        return await self.server.create(self.template)

    async def _empty(self, name: str) -> bool:
        """Empty a copy. False: a test has changed its tables."""
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
"""Changes with the version of the schema, and when a table, column, index or sequence is created, altered or dropped."""
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


async def _make_template(server: Server) -> Copies:
    name = await server.create()
    await _migrate(server.url(name))
    connection = await asyncpg.connect(server.url(name))
    try:
        return Copies(server, name, await connection.fetchval(_TABLES))
    finally:
        await connection.close()


def with_schema(folder: Path) -> Path:
    """Prepare the data directory of a platform, with a database that has the current schema and no data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "platform.db").write_bytes(sqlite_schema())
    return folder


@functools.cache
def sqlite_schema() -> bytes:
    """Return the content of an SQLite file with the current schema."""
    # the caller may run in an event loop
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(1) as thread,
    ):
        path = Path(folder) / "platform.db"
        thread.submit(asyncio.run, _migrate(f"sqlite:///{path}")).result()
        return path.read_bytes()


async def _migrate(url: str) -> None:
    database = Database(url)
    await database.open()
    await migrate.upgrade(database)
    await database.close()
