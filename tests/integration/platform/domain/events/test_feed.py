"""The feed: visibility, order, resuming after a number, and no loss for slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pytest
from sqlalchemy import delete, event, text

from sandyard.kit.clock import ManualClock
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project, ProjectMember, User
from sandyard.platform.domain.events import EventFilter, EventView, Feed, Subscription, notifications
from sandyard.platform.domain.events import feed as feeds
from sandyard.platform.domain.users.model import Principal

pytestmark = pytest.mark.both_databases

NOW = datetime(2026, 1, 31, 10, tzinfo=UTC)
ADMIN = Principal("usr_admin", "admin", "admin", "token:tok_1")
ADA = Principal("usr_ada", "ada", "member", "token:tok_2")
BOB = Principal("usr_bob", "bob", "member", "token:tok_3")
DEADLINE = 30


class Kind(StrEnum):
    ONE = "one"


@pytest.fixture
async def feed(database: Database) -> AsyncIterator[Feed]:
    async with database.transaction() as tx:
        for who in (ADMIN, ADA, BOB):
            tx.add(User(id=who.user_id, name=who.name, role=who.role, created_at=NOW))
        await tx.session.flush()
        tx.add(Project(id="prj_ada", owner_id=ADA.user_id, name="x", created_at=NOW, updated_at=NOW))
    opened = Feed(database, backlog=20)
    await opened.open()
    yield opened
    await opened.close()


async def emit(database: Database, kind: str = "session.created", **ids: object) -> int:
    async with database.transaction() as tx:
        tx.emit(kind, **ids)  # type: ignore[arg-type]
    return tx.events[0].seq


async def read_events(subscription: Subscription, count: int) -> list[EventView]:
    async with asyncio.timeout(DEADLINE):
        return [await anext(subscription) for _ in range(count)]


async def read_numbers(subscription: Subscription, count: int) -> list[int]:
    return [event.seq for event in await read_events(subscription, count)]


async def expect_nothing(subscription: Subscription, feed: Feed, upto: int) -> None:
    """Check that the reader passes that number without receiving an event."""
    async with asyncio.timeout(DEADLINE):
        while subscription.position < upto:
            assert await subscription.wait_for_batch(0.05) == []


async def set_membership(database: Database, user: Principal, *, is_member: bool) -> int:
    async with database.transaction() as tx:
        if is_member:
            tx.add(ProjectMember(project_id="prj_ada", user_id=user.user_id, added_at=NOW))
        else:
            await tx.session.execute(delete(ProjectMember).where(ProjectMember.user_id == user.user_id))
        tx.emit("project.member_added" if is_member else "project.member_removed", project_id="prj_ada")
    return tx.events[0].seq


async def test_a_subscription_starts_now_or_after_a_number(database: Database, feed: Feed) -> None:
    first, second = await emit(database), await emit(database)
    live, all_, rest = [await feed.subscribe(ADMIN, after=after) for after in (None, 0, first)]
    third = await emit(database)
    assert await read_numbers(live, 1) == [third]
    assert await read_numbers(all_, 3) == [first, second, third]
    assert await read_numbers(rest, 2) == [second, third]


async def test_an_event_arrives_with_all_its_fields(database: Database, feed: Feed) -> None:
    subscription = await feed.subscribe(ADA)
    ids = {"owner_id": ADA.user_id, "project_id": "prj_1", "task_id": "tsk_1", "session_id": "ses_1"}
    await emit(database, "sandbox.paused", **ids, sandbox_id="sbx_1", reason="ä\nb")
    event = (await read_events(subscription, 1))[0]
    assert (event.kind, event.owner_id, event.project_id, event.task_id) == (
        "sandbox.paused", ADA.user_id, "prj_1", "tsk_1",
    )  # fmt: skip
    assert (event.session_id, event.sandbox_id, event.data) == ("ses_1", "sbx_1", {"reason": "ä\nb"})
    lines = event.frame.decode().split("\n")
    assert lines[:2] == [f"id: {event.seq}", "event: sandbox.paused"]
    assert lines[2].startswith('data: {"seq":') and '"sessionId":"ses_1"' in lines[2] and r'"ä\nb"' in lines[2]
    assert lines[3:] == ["", ""]
    assert event.frame is event.frame


def test_a_lone_surrogate_does_not_stop_the_stream() -> None:
    event = EventView(1, NOW, "command.output", None, None, None, None, None, {"text": "\ud800"})
    assert rb'"\ud800"' in event.frame


async def test_events_are_filtered_by_their_ids(database: Database, feed: Feed) -> None:
    one = await feed.subscribe(ADMIN, EventFilter(session_id="ses_1"))
    both = await feed.subscribe(ADMIN, EventFilter(session_id="ses_1", sandbox_id="sbx_1"), after=0)
    plain = await emit(database, session_id="ses_1")
    await emit(database, session_id="ses_2", sandbox_id="sbx_1")
    full = await emit(database, session_id="ses_1", sandbox_id="sbx_1")
    assert await read_numbers(one, 2) == [plain, full]
    assert await read_numbers(both, 1) == [full]
    for filters, expected in (
        (EventFilter(session_id="ses_1"), [plain, full]),
        (EventFilter(sandbox_id="sbx_1", session_id="ses_1"), [full]),
        (EventFilter(task_id="tsk_1"), []),
        (EventFilter(project_id="prj_1"), []),
    ):
        assert [event.seq for event in await feed.list_after(ADMIN, filters)] == expected


async def test_members_see_events_of_their_own_and_of_their_projects(database: Database, feed: Feed) -> None:
    ada, bob, admin = [await feed.subscribe(who) for who in (ADA, BOB, ADMIN)]
    of_bob = await emit(database, owner_id=BOB.user_id)
    of_project = await emit(database, project_id="prj_ada", owner_id=ADMIN.user_id)
    of_nobody = await emit(database, "engine.lost")
    assert await read_numbers(ada, 1) == [of_project]
    assert await read_numbers(bob, 1) == [of_bob]
    assert await read_numbers(admin, 3) == [of_bob, of_project, of_nobody]
    await expect_nothing(ada, feed, of_nobody)
    await expect_nothing(bob, feed, of_nobody)
    assert [event.seq for event in await feed.list_after(ADA)] == [of_project]
    assert [event.seq for event in await feed.list_after(BOB)] == [of_bob]
    assert [event.seq for event in await feed.list_after(ADMIN, after=of_bob, limit=1)] == [of_project]


async def test_a_membership_takes_effect_with_its_event(database: Database, feed: Feed) -> None:
    bob = await feed.subscribe(BOB)
    hidden = await emit(database, project_id="prj_ada")
    await expect_nothing(bob, feed, hidden)
    added = await set_membership(database, BOB, is_member=True)
    seen = await emit(database, project_id="prj_ada")
    assert await read_numbers(bob, 2) == [added, seen]
    removed = await set_membership(database, BOB, is_member=False)
    hidden = await emit(database, project_id="prj_ada")
    assert await read_numbers(bob, 1) == [removed], "a removed member receives the removal and nothing after it"
    await expect_nothing(bob, feed, hidden)
    assert await feed.list_after(BOB) == []


async def test_a_slow_reader_is_not_buffered_and_loses_nothing(database: Database, feed: Feed) -> None:
    slow = await feed.subscribe(ADMIN)
    sent = []
    for _ in range(12):
        async with database.transaction() as tx:
            for _ in range(60):
                tx.emit("command.output", owner_id=ADA.user_id)
        sent += [event.seq for event in tx.events]
    async with asyncio.timeout(DEADLINE):
        while feed.last < sent[-1]:
            await asyncio.sleep(0.01)
    assert len(feed.recent) < len(sent)
    assert slow.position < feed.floor
    assert await read_numbers(slow, len(sent)) == sent
    last = await emit(database)
    assert await read_numbers(slow, 1) == [last]


async def test_an_unknown_number_counts_as_now(database: Database, feed: Feed) -> None:
    await emit(database)
    ahead = await feed.subscribe(ADMIN, after=10**12)
    assert await read_numbers(ahead, 0) == []
    assert await read_numbers(ahead, 0) == []
    new = await emit(database)
    assert await read_numbers(ahead, 1) == [new]


async def test_a_batch_ends_at_its_timeout_and_keeps_its_position(database: Database, feed: Feed) -> None:
    subscription = await feed.subscribe(ADMIN)
    assert await subscription.wait_for_batch(0.01) == []
    waiting = asyncio.create_task(subscription.wait_for_batch())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    sent = await emit(database)
    assert await read_numbers(subscription, 1) == [sent]
    assert not feed.waiters


async def test_ending_the_feed_ends_its_readers(database: Database, feed: Feed) -> None:
    subscription = await feed.subscribe(ADMIN)
    reading = asyncio.create_task(anext(subscription, None))
    await asyncio.sleep(0)
    feed.end()
    async with asyncio.timeout(DEADLINE):
        assert await reading is None


async def test_old_events_are_trimmed(database: Database) -> None:
    clock = ManualClock(start=datetime.now(UTC).timestamp())
    feed = Feed(database, clock=clock)
    old = [await emit(database) for _ in range(3)]
    assert await feed.trim(timedelta(days=90)) == 0
    await clock.advance(91 * 86400)
    assert await feed.trim(timedelta(days=90)) == 3
    assert await feed.list_after(ADMIN) == []
    await feed.open()
    new = await emit(database)
    late, early = await feed.subscribe(ADMIN, after=old[-1]), await feed.subscribe(ADMIN, after=old[0])
    assert (late.trimmed, early.trimmed) == (None, old[-1])
    assert (await feed.subscribe(ADMIN)).trimmed is None
    assert await read_numbers(late, 1) == await read_numbers(early, 1) == [new]
    await feed.close()


async def test_events_of_another_process_are_received(database: Database, feed: Feed, database_url: str) -> None:
    other = Database(database_url)
    await other.open()
    subscription = await feed.subscribe(ADMIN)
    sent = await emit(other)
    assert await read_numbers(subscription, 1) == [sent]
    await other.close()


async def test_events_committed_by_this_process_are_not_read_again(
    database: Database, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subscribers receive the same as from the stored row, without a query."""
    views: list[EventView] = []
    monkeypatch.setattr(feed, "append", views.extend)
    before = feed.last
    async with database.transaction() as tx:
        ids = {
            "owner_id": "usr_1",
            "project_id": "prj_1",
            "task_id": "tsk_1",
            "session_id": "ses_1",
            "sandbox_id": "sbx_1",
        }
        tx.emit("a.changed", **ids, numbers=(1, 2), status=Kind.ONE, by={1: None})
        tx.emit("b.changed")
    monkeypatch.undo()
    assert views == await feed.list_after(ADMIN, after=before)
    assert {type(value) for value in views[0].data.values()} == {list, str, dict}


async def test_events_of_two_processes_arrive_in_order(database_url: str, database: Database, feed: Feed) -> None:
    other = Database(database_url)
    await other.open()
    subscription = await feed.subscribe(ADMIN)
    sent = [await emit(database), await emit(other), await emit(database), await emit(database)]
    assert await read_numbers(subscription, 4) == sent
    await other.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_feed_does_not_query_events_it_was_notified_of(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "POLL_SECONDS", 60)
    feed = Feed(database)
    await feed.open()
    subscription = await feed.subscribe(ADMIN)
    await asyncio.sleep(0.05)  # until the feed has polled once
    statements: list[str] = []
    event.listen(database.engine.sync_engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    sent = [await emit(database) for _ in range(5)]
    assert await read_numbers(subscription, 5) == sent
    assert not [statement for statement in statements if "FROM events" in statement]
    await feed.close()


async def test_a_broken_connection_to_postgresql_is_replaced(postgres, postgres_schema_url: str, monkeypatch) -> None:
    monkeypatch.setattr(notifications, "RETRY_SECONDS", 0.02)
    database = Database(postgres_schema_url)
    await database.open()
    feed = Feed(database)
    await feed.open()
    subscription = await feed.subscribe(ADMIN)
    assert await read_numbers(subscription, 0) == []
    others = f"FROM pg_stat_activity WHERE datname = '{database.url.database}' AND pid <> pg_backend_pid()"
    for _ in range(3):
        await postgres.execute(f"SELECT pg_terminate_backend(pid) {others}")
        sent = await emit(database)
        assert await read_numbers(subscription, 1) == [sent]
    async with asyncio.timeout(DEADLINE):
        listening = 0
        while not listening:
            async with database.reading() as session:
                query = text(f"SELECT count(*) {others} AND query ILIKE 'LISTEN%'")
                listening = await session.scalar(query) or 0
    await feed.close()
    await database.close()
