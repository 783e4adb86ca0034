"""Pages are limited by the size of their rows, and nothing is lost between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event, select

from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command, Message, Sandbox, Session, User
from sandyard.platform.domain import paging
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first

pytestmark = pytest.mark.both_databases
NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture
async def session_id(database: Database) -> AsyncIterator[str]:
    user, session, sandbox = make_ordered_id("usr_"), make_ordered_id("ses_"), "sbx_1"
    async with database.transaction() as tx:
        tx.add(User(id=user, name="mo", role="member", created_at=NOW))
        await tx.session.flush()
        tx.add(Session(id=session, owner_id=user, title="t", template="base", created_at=NOW, updated_at=NOW))
        tx.add(
            Sandbox(
                id=sandbox,
                owner_id=user,
                template="base",
                idempotency_key="k",
                status="running",
                idle_seconds=1,
                created_at=NOW,
            )
        )
    yield session


async def add(database: Database, session_id: str, *texts: str) -> list[str]:
    """Add messages, oldest first, and return their ids."""
    ids = [make_ordered_id("msg_") for _ in texts]
    async with database.transaction() as tx:
        for number, text in zip(ids, texts, strict=True):
            parts = [{"type": "text", "text": text}]
            tx.add(Message(id=number, session_id=session_id, role="user", parts=parts, created_at=NOW))
    return ids


async def read(database: Database, limit: int = 200, cursor: str | None = None) -> Listing[Message]:
    async with database.reading() as session:
        return await list_newest_first(session, select(Message), Message.id, PageRequest(limit, cursor))


async def sizes_of_pages(database: Database, ids: list[str], limit: int = 200) -> list[int]:
    """Return the number of rows of each page, and check that all pages together contain `ids`."""
    sizes: list[int] = []
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await read(database, limit, cursor)
        sizes.append(len(page.items))
        seen += [row.id for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            assert seen == sorted(ids, reverse=True)
            return sizes


async def test_limits_page_by_size_of_rows(
    database: Database, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 10_000)
    ids = await add(database, session_id, *["x" * 3000] * 7)
    assert await sizes_of_pages(database, ids) == [3, 3, 1]
    assert await sizes_of_pages(database, ids, limit=2) == [2, 2, 2, 1]


async def test_large_row_has_own_page(database: Database, session_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 10_000)
    ids = await add(database, session_id, "small", "x" * 20_000, "x" * 20_000, "small", "small")
    assert await sizes_of_pages(database, ids) == [2, 1, 1, 1]


async def test_returns_requested_number_of_small_rows(database: Database, session_id: str) -> None:
    ids = await add(database, session_id, *["hello"] * 40)  # measured in several steps
    assert await sizes_of_pages(database, ids) == [40]
    assert await sizes_of_pages(database, ids, limit=20) == [20, 20]
    assert (await read(database, cursor=ids[0])).items == []


async def test_reads_only_rows_of_page(database: Database, session_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 10_000)
    await add(database, session_id, *["x" * 3000] * 7)
    loaded: list[Any] = []

    def count(target: Any, context: Any) -> None:
        loaded.append(target)

    event.listen(Message, "load", count)
    try:
        await read(database)
    finally:
        event.remove(Message, "load", count)
    assert len(loaded) == 3


async def test_measures_text_as_json(database: Database, session_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control character takes six bytes of JSON."""
    monkeypatch.setattr(paging, "PAGE_BYTES", 10_000)
    async with database.transaction() as tx:
        for number in range(4):
            tx.add(
                Command(
                    id=f"cmd_{number}", sandbox_id="sbx_1", command="\x01" * 1000, background=False, timeout_s=1,
                    status="exited", started_at=NOW,
                )
            )  # fmt: skip
    async with database.reading() as session:
        page = await list_newest_first(session, select(Command), Command.id, PageRequest(200))
    assert [row.id for row in page.items] == ["cmd_3"]
    assert page.next_cursor == "cmd_3"


async def test_reads_rows_without_long_columns_at_once(database: Database, session_id: str) -> None:
    async with database.reading() as session:
        page = await list_newest_first(session, select(Session), Session.id, PageRequest(1))
    assert [row.id for row in page.items] == [session_id]
    assert page.next_cursor is None
