"""Transactions: all or nothing, with the events they tell of, in the order in which they were committed."""

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
from tests.postgres import Server

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 1, 31, 10, tzinfo=UTC)


async def events(database: Database) -> list[Event]:
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
def test_drivers_are_ours_to_choose(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


@pytest.mark.parametrize("url", ["", "platform.db", "mysql://a@b/c"])
def test_a_url_of_no_use(url: str) -> None:
    with pytest.raises(InvalidInputError, match="sqlite:///PATH or postgresql://"):
        parse_url(url)


async def test_concurrent_transactions_all_count(database: Database) -> None:
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


async def test_listeners_hear_of_events_in_the_order_of_commits(database: Database) -> None:
    heard: list[int] = []
    database.listen(lambda told: heard.extend(event.seq for event in told))

    async def change(number: int) -> None:
        async with database.transaction() as tx:
            tx.emit("session.created", number=number)
            await asyncio.sleep(0.001 * (number % 7))
            tx.emit("session.renamed", number=number)

    await asyncio.gather(*(change(number) for number in range(40)))
    stored = await events(database)
    assert sorted(heard) == [event.seq for event in stored]
    assert len(stored) == 80
    pairs = [event.data["number"] for event in stored]
    assert pairs[::2] == pairs[1::2], "the events of a transaction stay together"


async def test_a_lower_number_is_never_committed_later(database: Database) -> None:
    done = asyncio.Event()
    seen: set[int] = set()

    async def change(number: int) -> None:
        async with database.transaction() as tx:
            tx.emit("command.output", number=number)

    async def look() -> None:
        while not done.is_set():
            now = {event.seq for event in await events(database)}
            assert not seen or not {seq for seq in now - seen if seq < max(seen)}
            seen.update(now)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(change(number) for number in range(150)))
    done.set()
    await looking


async def test_what_is_rolled_back_was_never_told(database: Database) -> None:
    heard: list[Event] = []
    database.listen(heard.extend)
    with pytest.raises(RuntimeError):
        async with database.transaction() as tx:
            tx.add(Setting(name="a", value="b"))
            tx.emit("user.created")
            raise RuntimeError
    with pytest.raises(IntegrityError):
        async with database.transaction() as tx:
            tx.emit("user.created")
            tx.add(Setting(name="a", value="b"), Setting(name="a", value="c"))
    assert heard == []
    assert await events(database) == []
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(Setting)) == 0


async def test_of_a_commit_that_fails_it_is_not_said_that_it_has_happened(database: Database) -> None:
    heard: list[str] = []
    database.listen(lambda told: heard.append("perhaps"))
    database.listen_committed(lambda told: heard.append("surely"))

    def fail(session: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        async with database.transaction() as tx:
            tx.emit("user.created")
            event.listen(tx.session.sync_session, "before_commit", fail)
    assert heard == ["perhaps"]
    assert await events(database) == []
    async with database.transaction() as tx:
        tx.emit("user.created")
    assert heard == ["perhaps", "surely", "perhaps"]


async def test_of_whoever_leaves_when_it_is_committed_others_hear(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    database.listen(lambda told: heard.extend(event.kind for event in told))
    closing, go_on, real = asyncio.Event(), asyncio.Event(), AsyncSession.close

    async def late(self: AsyncSession) -> None:
        closing.set()
        await go_on.wait()
        await real(self)

    async def change() -> None:
        async with database.transaction() as tx:
            tx.emit("a.changed")

    with monkeypatch.context() as held:
        held.setattr(AsyncSession, "close", late)
        changing = asyncio.create_task(change())
        async with asyncio.timeout(30):
            await closing.wait()
            changing.cancel()
            go_on.set()
            await asyncio.wait((changing,))
    assert changing.cancelled()
    assert [event.kind for event in await events(database)] == heard == ["a.changed"]


async def test_what_belongs_to_a_row_goes_with_it(database: Database) -> None:
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


async def test_a_search_that_takes_too_long_says_what_to_do(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "SEARCH_S", 0.05)
    with pytest.raises(SearchTooSlowError, match="fewer or longer words") as refused:
        async with database.searching("maria") as session:
            await session.execute(ENDLESS)
    assert refused.value.status == 400
    monkeypatch.undo()
    async with database.searching("maria") as session:
        assert await session.scalar(text("SELECT 1")) == 1


async def test_a_person_searches_once_at_a_time(database: Database) -> None:
    begun: list[str] = []

    async def search(who: str, *, until: asyncio.Event | None = None) -> None:
        async with database.searching(who):
            begun.append(who)
            if until is not None:
                await until.wait()

    over = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(search("maria", until=over))
        again = group.create_task(search("maria"))
        await group.create_task(search("otto"))
        assert begun == ["maria", "otto"] and not again.done()
        over.set()


async def test_a_query_is_stopped_after_a_time(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "THREAD_S", 0.2)
    database = Database(empty_database_url)
    await database.open()
    with pytest.raises(BusyError, match="stopped after 0 seconds"):
        async with asyncio.timeout(30), database.reading() as session:
            await session.execute(ENDLESS)
    await database.check()
    await database.close()


async def test_a_statement_of_a_transaction_has_no_time_limit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "THREAD_S", 0.2)
    database = Database(postgres_url)
    await database.open()
    async with database.transaction() as tx:
        await tx.session.execute(text("SELECT pg_sleep(0.5)"))
    await database.close()


async def test_sqlite_that_another_process_keeps_locked_is_busy(tmp_path: Path, monkeypatch) -> None:
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


async def test_a_server_that_is_not_there() -> None:
    database = Database("postgresql://nobody@127.0.0.1:1/none")
    await database.open()
    with pytest.raises(DatabaseUnavailableError):
        await database.check()
    await database.close()


async def test_a_server_that_closes_connections(postgres, postgres_url: str) -> None:
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


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is a letter, not a database" * 100)
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    await database.open()
    with pytest.raises(DatabaseUnavailableError):
        await database.check()
    await database.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_every_error_of_a_server_that_stops_and_starts_says_that_it_is_away(
    postgres: Server, postgres_schema_url: str, how: signal.Signals
) -> None:
    """Whatever somebody was just doing: connecting, asking, in the middle of a transaction, or in a long statement."""
    database, kinds = Database(postgres_schema_url), set()
    await database.open()
    going = True

    async def ask() -> None:
        async with database.reading() as session:
            await session.execute(text("SELECT 1"))

    async def write() -> None:
        async with database.transaction() as tx:
            tx.emit("a.changed")
            await asyncio.sleep(0.01)

    async def linger() -> None:
        async with database.transaction() as tx:
            await tx.session.execute(text("SELECT pg_sleep(0.2)"))

    async def again_and_again(work: Callable[[], Awaitable[None]]) -> None:
        while going:
            try:
                await work()
            except TEMPORARY_ERRORS as error:
                kinds.add(type(error.__cause__).__name__)

    tasks = [asyncio.create_task(again_and_again(work)) for work in (ask, ask, write, write, linger, linger)]
    waiting = asyncio.create_task(asyncio.sleep(0))
    for _ in range(3):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(postgres.halt, how)
        waiting = asyncio.create_task(retry_while_database_unavailable(write, "test"))
        postgres.resume(wait=False)
        await waiting
    going = False
    await asyncio.gather(*tasks)  # raises what was not taken for an absent database
    assert kinds
    await database.close()


async def test_what_is_withheld_is_neither_read_nor_written(database: Database) -> None:
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
