"""What happens to a pull request moves its task, once, whoever was away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, Message, Session, Task
from sandyard.platform.domain.events.feed import Feed
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.reviews import Reviews
from tests.unit.platform.domain.tasks.yard import Board


@pytest.fixture
async def feed(database: Database) -> AsyncIterator[Feed]:
    feed = Feed(database)
    await feed.open()
    yield feed
    await feed.close()


@pytest.fixture
async def reviews(board: Board, feed: Feed) -> AsyncIterator[Reviews]:
    reviews = Reviews(board.database, feed, board.attempts, board.tasks)
    reviews.start()
    board.attempts.start(board.executor)
    yield reviews
    await reviews.close()


async def in_review(board: Board) -> Task:
    task = await board.task(agent="demo")
    await board.until(lambda: bool(board.executor.begun))
    await board.let(await board.attempt(task), AttemptStatus.IN_REVIEW)
    return task


async def say(board: Board, task: Task, kind: str, **data: Any) -> None:
    attempt = await board.attempt(task)
    async with board.database.transaction() as tx:
        tx.emit(
            f"pull_request.{kind}",
            owner_id=board.owner.user_id,
            project_id=task.project_id,
            task_id=task.id,
            session_id=attempt.session_id,
            number=3,
            **data,
        )


async def status(board: Board, task: Task) -> str:
    async with board.database.reading() as session:
        row = await session.get(Task, task.id)
    assert row is not None
    return row.status


async def until_round(board: Board, task: Task, number: int) -> Attempt:
    await board.until(lambda: any(begun[1] == number for begun in board.executor.begun))
    return await board.attempt(task)


async def test_requested_changes_come_in_full(board: Board, reviews: Reviews) -> None:
    task = await in_review(board)
    attempt = await board.attempt(task)
    long, now = "word " * 1000, utc_now()
    async with board.database.transaction() as tx:
        tx.add(
            Session(
                id=attempt.session_id, owner_id=board.owner.user_id, title="x", template="base", created_at=now,
                updated_at=now,
            )
        )  # fmt: skip
        await tx.session.flush()
        part = {"type": "feedback", "remarkId": "9", "author": "grace", "text": long, "path": "src/a.py", "line": 4}
        tx.add(Message(id="msg_1", session_id=attempt.session_id, role="system", parts=[part], created_at=now))
    await say(board, task, "reviewed", remarkId="9", author="grace", text=long[:100], verdict="changes_requested")
    row = await until_round(board, task, 2)
    (said,) = row.work["said"]
    assert long.strip() in said["words"]
    assert "grace on src/a.py, line 4" in said["words"]
    assert said["by"] == "grace"
    assert await status(board, task) == Column.IN_PROGRESS


async def test_comments_only_for_whom_they_name(board: Board, reviews: Reviews) -> None:
    task = await in_review(board)
    await say(board, task, "commented", author="grace", text="Nice colours.")
    await say(board, task, "reviewed", author="grace", text="Good.", verdict="approved")
    await say(board, task, "commented", author="grace", text="@Sandyard please rename it")
    row = await until_round(board, task, 2)
    assert [said["words"].splitlines()[-1] for said in row.work["said"]] == ["> @Sandyard please rename it"]


async def test_failed_checks_wake_it_so_many_times(board: Board, feed: Feed) -> None:
    project = await board.make(tasks={"feedback_rounds": 2})
    board.project = project
    reviews = Reviews(board.database, feed, board.attempts, board.tasks)
    reviews.start()
    board.attempts.start(board.executor)
    task = await in_review(board)
    for number in (2, 3):
        await say(board, task, "checks_failed", runs=[{"remarkId": "1", "author": "ci", "text": "boom"}], text="boom")
        await until_round(board, task, number)
        await board.let(await board.attempt(task), AttemptStatus.IN_REVIEW)
    await say(board, task, "checks_failed", runs=[], text="boom")
    await say(board, task, "commented", author="grace", text="@sandyard the last word")
    row = await until_round(board, task, 4)
    assert len(row.work["said"]) == 1
    await reviews.close()


async def test_merged_while_nobody_looked(board: Board, feed: Feed) -> None:
    first = Reviews(board.database, feed, board.attempts, board.tasks)
    first.start()
    board.attempts.start(board.executor)
    task = await in_review(board)
    await say(board, task, "commented", author="grace", text="@sandyard once")
    await until_round(board, task, 2)
    await board.let(await board.attempt(task), AttemptStatus.IN_REVIEW)
    await first.close()
    await say(board, task, "merged")
    second = Reviews(board.database, feed, board.attempts, board.tasks)
    second.start()
    attempt = await board.attempt(task)
    await board.until(lambda: attempt.session_id in board.turns.ended)
    assert (await board.attempt(task)).status == AttemptStatus.MERGED
    assert await status(board, task) == Column.DONE
    assert (await board.attempt(task)).round == 2, "what was said before was not said again"
    await second.close()


@pytest.mark.parametrize("busy", [False, True])
async def test_closed_without_a_merge(board: Board, reviews: Reviews, busy: bool) -> None:
    task = await in_review(board)
    attempt = await board.attempt(task)
    if busy:
        await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="also this")
        await until_round(board, task, 2)
    await say(board, task, "closed")
    await board.until(lambda: attempt.session_id in board.turns.ended)
    assert (await board.attempt(task)).status == AttemptStatus.ARCHIVED
    assert await status(board, task) == Column.CANCELLED


async def test_done_while_something_still_works_on_it(board: Board, reviews: Reviews) -> None:
    task = await board.task(agent="demo", attempts=[{"agent": "demo"}] * 2)
    await board.until(lambda: len(board.executor.begun) == 2)
    await board.let(await board.attempt(task, 1), AttemptStatus.IN_REVIEW)
    await board.tasks.move(board.owner, task.id, Column.DONE)
    async with asyncio.timeout(20):
        while (await board.attempt(task, 2)).cancel_at is None:
            await asyncio.sleep(0.01)
    assert (await board.attempt(task, 1)).status == AttemptStatus.ARCHIVED


async def test_one_that_cannot_be_dealt_with_is_in_nobodys_way(
    board: Board, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await in_review(board)
    dealt = reviews._heard

    async def heard(tx: Any, event: Any, *rest: Any) -> Any:
        if event.kind == "pull_request.commented":
            raise ValueError("no words")
        return await dealt(tx, event, *rest)

    monkeypatch.setattr(reviews, "_heard", heard)
    await say(board, task, "commented", text="@agent what")
    await say(board, task, "merged")
    async with asyncio.timeout(20):
        while await status(board, task) != Column.DONE:
            await asyncio.sleep(0.01)
