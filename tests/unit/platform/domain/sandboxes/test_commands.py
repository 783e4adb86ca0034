"""Starting a command while the platform's database fails, or while the caller has too many."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.database import (
    Database,
    DatabaseBusyError,
    DatabaseFullError,
    DatabaseUnavailableError,
    Transaction,
)
from sandyard.platform.db.models import Command, Sandbox, User
from sandyard.platform.domain.sandboxes.command_output import OutputFiles
from sandyard.platform.domain.sandboxes.commands import Commands
from sandyard.platform.domain.sandboxes.connections import TooManyOperationsError, UserConnections
from sandyard.platform.domain.sandboxes.model import NewCommand, utc_now
from sandyard.platform.domain.sandboxes.repository import SandboxRepository
from sandyard.platform.domain.users.model import Principal

ANN = Principal("u", "ann", "member", "test")


class CommandsHarness:
    """Commands of one sandbox that are stored and not run. Errors are raised one after the other: `after` the commit,
    as if the connection broke at that moment, or instead of it."""

    def __init__(self, database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.errors: list[SandyardError] = []
        self.after: list[SandyardError] = []
        self._real = database.transaction
        monkeypatch.setattr(database, "transaction", self._transaction)
        monkeypatch.setattr("sandyard.platform.db.retry.RETRY_S", 0)
        self.connections = UserConnections()
        lifecycle: Any = SimpleNamespace(repository=SandboxRepository(database), connections=self.connections)
        files = OutputFiles(folder)
        self.commands = Commands(database, lifecycle, files, max_timeout_s=100, output_kept=1 << 20)
        self.held: list[contextlib.ExitStack] = []
        monkeypatch.setattr(self.commands.runner, "start", self._start)

    def _start(self, row: Sandbox, command: Command, new: NewCommand, held: contextlib.ExitStack) -> None:
        self.begun.append(command.id)
        self.held.append(held)

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        if self.errors:
            raise self.errors.pop(0)
        async with self._real() as tx:
            yield tx
        if self.after:
            raise self.after.pop(0)

    async def execute(self, *, internal: bool = False) -> Command:
        return await self.commands.execute(ANN, "b", NewCommand(command="ls", timeout_s=10), internal=internal)


@pytest.fixture
async def harness(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandsHarness:
    now = utc_now()
    async with database.transaction() as tx:
        tx.add(User(id="u", name="ann", role="member", created_at=now))
        await tx.session.flush()
        tx.add(
            Sandbox(
                id="b", owner_id="u", template="base", idempotency_key="b", status="running", idle_seconds=1, created_at=now
            )
        )  # fmt: skip
    return CommandsHarness(database, tmp_path, monkeypatch)


@pytest.mark.parametrize("error", [DatabaseFullError, DatabaseBusyError])
async def test_reports_full_or_busy_database(harness: CommandsHarness, error: type[SandyardError]) -> None:
    harness.errors = [error()]
    with pytest.raises(error):
        await harness.execute()
    assert harness.begun == []


async def test_database_is_full_after_being_unavailable(harness: CommandsHarness) -> None:
    harness.errors = [DatabaseUnavailableError(), DatabaseFullError()]
    with pytest.raises(DatabaseFullError):
        await harness.execute()
    assert harness.begun == []


async def test_finds_interrupted_commit(harness: CommandsHarness, database: Database) -> None:
    """The commit succeeded, and the command starts once."""
    harness.after = [DatabaseUnavailableError()]
    command = await harness.execute()
    assert harness.begun == [command.id]
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(Command)) == 1


async def test_waits_for_unavailable_database(harness: CommandsHarness) -> None:
    """Also if it is busy afterwards: it is not known yet whether the first commit succeeded."""
    harness.errors = [DatabaseUnavailableError(), DatabaseUnavailableError(), DatabaseBusyError()]
    command = await harness.execute()
    assert harness.begun == [command.id]


async def test_running_commands_are_limited(harness: CommandsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the platform itself are not, and a command that has ended makes room for another."""
    monkeypatch.setattr("sandyard.platform.domain.sandboxes.connections.MAX_CONNECTIONS_PER_USER", 2)
    for _ in range(2):
        await harness.execute()
    with pytest.raises(TooManyOperationsError, match="Kill a command"):
        await harness.execute()
    await harness.execute(internal=True)
    assert len(harness.begun) == 3
    harness.held[0].close()
    await harness.execute()
    with pytest.raises(TooManyOperationsError):
        await harness.execute()


async def test_command_that_could_not_be_stored_does_not_count(harness: CommandsHarness) -> None:
    harness.errors = [DatabaseFullError()]
    with pytest.raises(DatabaseFullError):
        await harness.execute()
    assert not harness.connections.open_connections
