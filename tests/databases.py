"""The platform's database for tests: each runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database that is this test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'platform.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Open, with the schema of this version."""
    opened = Database(database_url)
    await opened.open()
    await migrate.upgrade(opened)
    yield opened
    await opened.close()
