"""Transactions are atomic, and their events are published in commit order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.errors import BusyError, InvalidInputError
from sandyard.platform.db import database as databases
from sandyard.platform.db import sqlite
from sandyard.platform.db.database import (
    Database,
    DatabaseUnavailableError,
    SearchTooSlowError,
    parse_url,
)
from sandyard.platform.db.models import Event, Project, ProjectMember, Setting, User
from sandyard.platform.db.retry import TEMPORARY_ERRORS, retry_while_database_unavailable
from tests.harness.postgres import Server

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 1, 31, 10, tzinfo=UTC)


async def list_events(database: Database) -> list[Event]:
    async with database.reading() as session:
        return list(await session.scalars(select(Event).order_by(Event.seq)))


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:////var/x.db", "sqlite+aiosqlite"),
        ("postgres://a@b/c", "postgresql+asyncpg"),
        ("postgresql+psycopg://a@b/c", "postgresql+asyncpg"),
    ],
)
def test_the_platform_chooses_the_database_driver(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


@pytest.mark.parametrize("url", ["", "platform.db", "mysql://a@b/c"])
def test_an_unsupported_url_is_rejected(url: str) -> None:
    with pytest.raises(InvalidInputError, match="sqlite:///PATH or postgresql://"):
        parse_url(url)


async def test_concurrent_transactions_lose_no_update(database: Database) -> None:
    async with database.transaction() as tx:
        tx.add(Setting(name="count", value="0"))

    async def add() -> None:
        async with database.transaction() as tx:
            row = await tx.session.get(Setting, "count", with_for_update=True)
            assert row is not None
            row.value = str(int(row.value) + 1)

    await asyncio.gather(*(add() for _ in range(50)))
    async with database.reading() as session:
        assert await session.scalar(select(Setting.value)) == "50"


async def test_listeners_receive_every_event_and_those_of_a_transaction_together(database: Database) -> None:
    received: list[int] = []
    database.listen(lambda batch: received.extend(event.seq for event in batch))

    async def change(number: int) -> None:
        async with database.transaction() as tx:
            tx.emit("session.created", number=number)
            await asyncio.sleep(0.001 * (number % 7))
            tx.emit("session.renamed", number=number)

    await asyncio.gather(*(change(number) for number in range(40)))
    stored = await list_events(database)
    assert sorted(received) == [event.seq for event in stored]
    assert len(stored) == 80
    pairs = [event.data["number"] for event in stored]
    assert pairs[::2] == pairs[1::2], "the events of a transaction stay together"


async def test_sequence_numbers_become_visible_in_order(database: Database) -> None:
    done = asyncio.Event()
    seen: set[int] = set()

    async def change(number: int) -> None:
        async with database.transaction() as tx:
            tx.emit("command.output", number=number)

    async def observe() -> None:
        while not done.is_set():
            now = {event.seq for event in await list_events(database)}
            assert not seen or not {seq for seq in now - seen if seq < max(seen)}
            seen.update(now)

    observing = asyncio.create_task(observe())
    await asyncio.gather(*(change(number) for number in range(150)))
    done.set()
    await observing


async def test_a_rolled_back_transaction_publishes_no_events(database: Database) -> None:
    received: list[Event] = []
    database.listen(received.extend)
    with pytest.raises(RuntimeError):
        async with database.transaction() as tx:
            tx.add(Setting(name="a", value="b"))
            tx.emit("user.created")
            raise RuntimeError
    with pytest.raises(IntegrityError):
        async with database.transaction() as tx:
            tx.emit("user.created")
            tx.add(Setting(name="a", value="b"), Setting(name="a", value="c"))
    assert received == []
    assert await list_events(database) == []
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(Setting)) == 0


async def test_a_failed_commit_is_not_reported_as_committed(database: Database) -> None:
    received: list[str] = []
    database.listen(lambda batch: received.append("listen"))
    database.listen_committed(lambda batch: received.append("listen_committed"))

    def fail(session: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        async with database.transaction() as tx:
            tx.emit("user.created")
            event.listen(tx.session.sync_session, "before_commit", fail)
    assert received == ["listen"]
    assert await list_events(database) == []
    async with database.transaction() as tx:
        tx.emit("user.created")
    assert received == ["listen", "listen_committed", "listen"]


async def test_events_are_published_when_the_writer_is_cancelled_after_the_commit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[str] = []
    database.listen(lambda batch: received.extend(event.kind for event in batch))
    closing, proceed, real = asyncio.Event(), asyncio.Event(), AsyncSession.close

    async def held_close(self: AsyncSession) -> None:
        closing.set()
        await proceed.wait()
        await real(self)

    async def change() -> None:
        async with database.transaction() as tx:
            tx.emit("a.changed")

    with monkeypatch.context() as patch:
        patch.setattr(AsyncSession, "close", held_close)
        changing = asyncio.create_task(change())
        async with asyncio.timeout(30):
            await closing.wait()
            changing.cancel()
            proceed.set()
            await asyncio.wait((changing,))
    assert changing.cancelled()
    assert [event.kind for event in await list_events(database)] == received == ["a.changed"]


async def test_deleting_a_row_deletes_its_dependent_rows(database: Database) -> None:
    async with database.transaction() as tx:
        tx.add(User(id="usr_1", name="ada", role="admin", created_at=NOW))
        await tx.session.flush()
        tx.add(Project(id="prj_1", owner_id="usr_1", name="x", created_at=NOW, updated_at=NOW))
        await tx.session.flush()
        tx.add(ProjectMember(project_id="prj_1", user_id="usr_1", added_at=NOW))
    async with database.transaction() as tx:
        await tx.session.execute(text("DELETE FROM users"))
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(ProjectMember)) == 0


async def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    async with asyncio.timeout(30), database.transaction() as tx:
        tx.add(Setting(name="a", value="b"))
        await tx.session.flush()
        async with database.reading() as session:
            assert await session.get(Setting, "a") is None


ENDLESS = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n")


async def test_a_slow_search_is_stopped_with_advice(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "SEARCH_S", 0.05)
    with pytest.raises(SearchTooSlowError, match="fewer or longer words") as refused:
        async with database.searching("maria") as session:
            await session.execute(ENDLESS)
    assert refused.value.status == 400
    monkeypatch.undo()
    async with database.searching("maria") as session:
        assert await session.scalar(text("SELECT 1")) == 1


async def test_searches_of_one_user_run_one_at_a_time(database: Database) -> None:
    started: list[str] = []

    async def search(who: str, *, until: asyncio.Event | None = None) -> None:
        async with database.searching(who):
            started.append(who)
            if until is not None:
                await until.wait()

    finished = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(search("maria", until=finished))
        again = group.create_task(search("maria"))
        await group.create_task(search("otto"))
        assert started == ["maria", "otto"] and not again.done()
        finished.set()


async def test_a_query_is_stopped_at_its_time_limit(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "THREAD_S", 0.2)
    database = Database(empty_database_url)
    await database.open()
    with pytest.raises(BusyError, match="stopped after 0 seconds"):
        async with asyncio.timeout(30), database.reading() as session:
            await session.execute(ENDLESS)
    await database.check()
    await database.close()


async def test_a_statement_in_a_transaction_has_no_time_limit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "THREAD_S", 0.2)
    database = Database(postgres_url)
    await database.open()
    async with database.transaction() as tx:
        await tx.session.execute(text("SELECT pg_sleep(0.5)"))
    await database.close()


async def test_a_locked_sqlite_database_is_reported_as_busy(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    first, second = (Database(f"sqlite:///{tmp_path / 'deep' / 'x.db'}") for _ in range(2))
    await first.open()
    await second.open()
    async with first.transaction() as tx:
        await tx.session.execute(text("SELECT 1"))
        with pytest.raises(BusyError):
            async with second.transaction() as other:
                await other.session.execute(text("SELECT 1"))
    await first.close()
    await second.close()


async def test_an_unreachable_server_is_reported_as_unavailable() -> None:
    database = Database("postgresql://nobody@127.0.0.1:1/none")
    await database.open()
    with pytest.raises(DatabaseUnavailableError):
        await database.check()
    await database.close()


async def test_a_closed_connection_is_reported_and_replaced(postgres, postgres_url: str) -> None:
    database = Database(postgres_url)
    await database.open()
    with pytest.raises(DatabaseUnavailableError):
        async with database.reading() as session:
            await session.execute(text("SELECT 1"))
            await postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{database.url.database}' AND pid <> pg_backend_pid()"
            )
            await session.execute(text("SELECT 1"))
    await database.check()
    await database.close()


async def test_a_file_that_is_not_a_database_is_reported_as_unavailable(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is a letter, not a database" * 100)
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    await database.open()
    with pytest.raises(DatabaseUnavailableError):
        await database.check()
    await database.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_every_error_during_a_server_restart_is_reported_as_unavailable(
    postgres: Server, postgres_schema_url: str, how: signal.Signals
) -> None:
    """Whatever the client is doing: connecting, querying, in a transaction, or in a long statement."""
    database, errors = Database(postgres_schema_url), set()
    await database.open()
    running = True

    async def read() -> None:
        async with database.reading() as session:
            await session.execute(text("SELECT 1"))

    async def write() -> None:
        async with database.transaction() as tx:
            tx.emit("a.changed")
            await asyncio.sleep(0.01)

    async def run_long_statement() -> None:
        async with database.transaction() as tx:
            await tx.session.execute(text("SELECT pg_sleep(0.2)"))

    async def repeat(work: Callable[[], Awaitable[None]]) -> None:
        while running:
            try:
                await work()
            except TEMPORARY_ERRORS as error:
                errors.add(type(error.__cause__).__name__)

    tasks = [
        asyncio.create_task(repeat(work)) for work in (read, read, write, write, run_long_statement, run_long_statement)
    ]
    waiting = asyncio.create_task(asyncio.sleep(0))
    for _ in range(3):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(postgres.halt, how)
        waiting = asyncio.create_task(retry_while_database_unavailable(write, "test"))
        postgres.resume(wait=False)
        await waiting
    running = False
    await asyncio.gather(*tasks)  # raises any error that was not reported as an unavailable database
    assert errors
    await database.close()


async def test_a_withheld_database_is_neither_read_nor_written(database: Database) -> None:
    with pytest.raises(DatabaseUnavailableError, match="not ours"):
        async with database.transaction() as tx:
            tx.add(Setting(name="a", value="b"))
            database.withhold("It is not ours.")
    with pytest.raises(DatabaseUnavailableError, match="not ours"):
        await database.check()
    waiting = asyncio.create_task(retry_while_database_unavailable(database.check, "test"))
    await asyncio.sleep(0)
    database.withhold(None)
    await waiting
    async with database.reading() as session:
        assert await session.get(Setting, "a") is None
