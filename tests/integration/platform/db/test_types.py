"""Column types behave the same on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import select
from sqlalchemy.exc import StatementError

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command, Event, Sandbox, Setting, User

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 1, 31, 10, 0, 0, 123456, tzinfo=UTC)


async def test_a_timestamp_is_returned_in_utc(database: Database) -> None:
    local_time = NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))
    async with database.transaction() as tx:
        tx.add(User(id="usr_1", name="ada", role="admin", created_at=local_time))
    async with database.reading() as session:
        user = (await session.scalars(select(User))).one()
        assert user.created_at == NOW
        assert user.created_at.tzinfo is UTC
        assert user.disabled_at is None
        assert (await session.scalars(select(User).where(User.created_at <= local_time))).one() is user


async def test_a_timestamp_without_a_time_zone_is_rejected(database: Database) -> None:
    with pytest.raises(StatementError, match="has no time zone"):
        async with database.transaction() as tx:
            tx.add(User(id="usr_1", name="ada", role="admin", created_at=datetime(2026, 1, 31)))
            await tx.session.flush()


async def test_json_is_returned_unchanged(database: Database) -> None:
    data = {"words": ["ä", "\n", "\u2028"], "deep": {"number": 1.5, "none": None, "yes": True}, "big": 2**60, "": []}
    async with database.transaction() as tx:
        tx.emit("session.created", **data)
    async with database.reading() as session:
        assert (await session.scalars(select(Event.data))).one() == data


async def test_large_integers_are_stored_exactly(database: Database) -> None:
    async with database.transaction() as tx:
        tx.add(User(id="usr_1", name="ada", role="admin", created_at=NOW))
        await tx.session.flush()
        tx.add(
            Sandbox(
                id="sbx_1", owner_id="usr_1", template="base", idempotency_key="k", status="running", idle_seconds=9,
                created_at=NOW,
            )
        )  # fmt: skip
        await tx.session.flush()
        tx.add(
            Command(
                id="cmd_1", sandbox_id="sbx_1", command="yes", background=False, timeout_s=1.5, status="running",
                stdout_bytes=5 << 40, started_at=NOW,
            )
        )  # fmt: skip
        tx.add(Event(seq=5 << 40, at=NOW, kind="user.created", data={}))
        tx.add(Setting(name="a", value="b"))
    async with database.reading() as session:
        assert (await session.scalars(select(Command.stdout_bytes))).one() == 5 << 40
        assert (await session.scalars(select(Event.seq))).one() == 5 << 40


async def test_a_sequence_number_is_never_reused(database: Database) -> None:
    async def emit() -> int:
        async with database.transaction() as tx:
            tx.emit("user.created")
        return tx.events[0].seq

    first = await emit()
    async with database.transaction() as tx:
        await tx.session.delete((await tx.session.scalars(select(Event))).one())
    assert await emit() > first
