"""The platform's database for tests: each runs on SQLite; on PostgreSQL too when it is marked `both_databases`, or with --all.

The schema is made once and copied for each test: to bring an empty database up to it takes half a second.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database
from tests.postgres import Server


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
def postgres_schema(postgres: Server) -> str:
    """The name of a database with the schema, which nobody is connected to."""
    name = asyncio.run(postgres.create())
    asyncio.run(_migrated(postgres.url(name)))
    return name


@pytest.fixture
async def postgres_schema_url(postgres: Server, postgres_schema: str) -> AsyncIterator[str]:
    name = await postgres.create(postgres_schema)
    yield postgres.url(name)
    await postgres.drop(name)


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
