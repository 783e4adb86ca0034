"""Ownership of a database that was lost before it was signed. `tests/integration` has the rest, with a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from sandyard.kit.errors import ConflictError
from sandyard.platform.db import ownership as module
from sandyard.platform.db.database import Database, DatabaseUnavailableError
from sandyard.platform.db.ownership import Ownership


class Server:
    """A database server with one lock and one row."""

    def __init__(self) -> None:
        self.holder: Line | None = None
        self.signed: dict[str, str] = {}


class Line:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.broken: Callable[[Any], None] = lambda _: None

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        self.broken = callback

    async def execute(self, text: str, *given: Any, timeout: float) -> None:
        if text.startswith("INSERT"):
            self.server.signed[given[0]] = given[1]
        elif text.startswith("DELETE"):
            del self.server.signed[given[0]]

    async def fetchval(self, text: str, *given: Any, timeout: float) -> Any:
        if "pg_try_advisory_lock" in text:
            self.server.holder = self.server.holder or self
            return self.server.holder is self
        if "pg_backend_pid" in text:
            return self.server.holder is self
        if "pg_locks" in text:
            return self.server.holder is not None
        if "to_regclass" in text:
            return "settings"
        return self.server.signed.get(given[0]) if given else False  # it is not a replica


class Platform:
    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.line: Line | None = None
        self.ownership = Ownership(cast(Database, self), name)

    def withhold(self, reason: str | None) -> None:
        pass

    @contextlib.asynccontextmanager
    async def dedicated_connection(self) -> AsyncIterator[Line]:
        self.line = Line(self.server)
        try:
            yield self.line
        finally:
            if self.server.holder is self.line:
                self.server.holder = None


@pytest.fixture
async def platforms(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Platform, Platform]]:
    """Two platforms: the first holds the database and has not signed it yet."""
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "REGAIN_S", 0.001)
    server = Server()
    first, second = Platform(server, "first"), Platform(server, "second")
    await first.ownership.acquire(lambda _: None)
    yield first, second
    await first.ownership.release()
    await second.ownership.release()


async def test_losing_ownership_before_signing_keeps_other_signature(
    platforms: tuple[Platform, Platform],
) -> None:
    first, second = platforms
    assert first.line is not None
    first.server.holder = None
    await second.ownership.acquire(lambda _: None)
    await second.ownership.sign()
    first.line.broken(None)
    async with asyncio.timeout(20):
        assert "has taken over" in await asyncio.shield(first.ownership.lost)
    with pytest.raises(ConflictError, match="taken over"):
        await first.ownership.sign()
    await first.ownership.release()
    assert '"second"' in first.server.signed["owner"]


async def test_signing_requires_lock(platforms: tuple[Platform, Platform]) -> None:
    """The connection still exists, and the platform does not know yet that the server gave the lock to another."""
    first, second = platforms
    first.server.holder = None
    await second.ownership.acquire(lambda _: None)
    await second.ownership.sign()
    with pytest.raises(DatabaseUnavailableError, match="no longer holds"):
        await first.ownership.sign()
    assert '"second"' in first.server.signed["owner"]
