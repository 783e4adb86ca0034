"""The platform's database for tests: each runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database
from tests.postgres import Server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database that is this test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'platform.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def sqlite_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema of this version: to copy it is quicker than to make it for each test."""
    path = tmp_path_factory.mktemp("schema") / "platform.db"
    asyncio.run(_migrated(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def postgres_schema(postgres: Server) -> str:
    """The same as a template of the server's."""
    name = asyncio.run(postgres.create())
    asyncio.run(_migrated(postgres.url(name)))
    return name


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a database of this test's own, with the schema of this version."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_schema"), tmp_path / "platform.db")
        yield f"sqlite:///{tmp_path / 'platform.db'}"
        return
    server: Server = request.getfixturevalue("postgres")
    name = asyncio.run(server.create(request.getfixturevalue("postgres_schema")))
    yield server.url(name)
    asyncio.run(server.drop(name))


@pytest.fixture
async def database(migrated_url: str) -> AsyncIterator[Database]:
    """Open, with the schema of this version."""
    opened = Database(migrated_url)
    await opened.open()
    yield opened
    await opened.close()


async def _migrated(url: str) -> None:
    database = Database(url)
    await database.open()
    await migrate.upgrade(database)
    await database.close()
