"""Cards of a board: visibility, moves, order, and automatic starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, inspect, select

from sandyard.kit.clock import get_time
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.platform.db.database import DatabaseUnavailableError, Transaction
from sandyard.platform.db.models import Attempt, Project, Task
from sandyard.platform.domain import paging
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.tasks import columns, moves, positions
from sandyard.platform.domain.tasks.columns import MAX_WORDS, SEARCHED_CHARACTERS, BoardFilter, match_words
from sandyard.platform.domain.tasks.errors import (
    ColumnFullError,
    FeedbackNeededError,
    MoveRefusedError,
    NeedsCycleError,
    NothingInReviewError,
    TaskBlockedError,
)
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.domain.tasks.board_harness import BoardHarness
from tests.unit.platform.world import ROOT

pytestmark = pytest.mark.both_databases

BACKLOG, IN_PROGRESS, IN_REVIEW, DONE, CANCELLED = Column


async def test_only_project_members_see_card(harness: BoardHarness) -> None:
    task, stranger = await harness.create_task(), (await harness.world.create_person("eve")).principal
    mo = harness.member.principal
    assert (await harness.tasks.get(mo, task.id)).title == "Fix the login"
    await harness.tasks.update(mo, task.id, {"title": "Mend the login", "priority": 3})
    for seen in (
        harness.tasks.get(stranger, task.id),
        harness.tasks.move(stranger, task.id, DONE),
        harness.tasks.update(stranger, task.id, {}),
        harness.tasks.delete(stranger, task.id),
        harness.tasks.create(stranger, harness.project.id, TaskFields(title="x")),
    ):
        with pytest.raises(NotFoundError):
            await seen
    assert (await harness.tasks.list(stranger, PageRequest())).items == []
    with pytest.raises(ForbiddenError):
        await harness.tasks.delete(mo, task.id)
    await harness.tasks.delete(harness.me, task.id)
    kinds = [event.kind for event in await harness.list_events("task.created", "task.updated", "task.deleted")]
    assert kinds == ["task.created", "task.updated", "task.deleted"]


async def test_validates_agents_and_stores_attempts(harness: BoardHarness) -> None:
    fields = TaskFields.model_validate({"title": "x", "attempts": [{"agent": "demo"}, {"agent": "nobody"}]})
    with pytest.raises(InvalidInputError, match="there are demo and opencode"):
        await harness.tasks.create(harness.me, harness.project.id, fields)
    fields = TaskFields.model_validate({"title": "x", "attempts": [{"agent": "demo"}, {"agent": "opencode"}]})
    task = await harness.tasks.create(harness.member.principal, harness.project.id, fields, start=True)
    made = await harness.list_attempts(task)
    assert [row.agent for row in made] == ["demo", "opencode"]
    assert {row.owner_id for row in made} == {harness.member.principal.user_id}
    assert harness.attempts.nudges


async def test_order_in_column(harness: BoardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "GAP", 4)  # so that the gaps run out
    cards = [await harness.create_task(name) for name in "abcde"]
    expected = list("abcde")
    for name, index in (("e", 0), ("d", 1), ("c", 1), ("b", 1), ("a", 1), ("e", 4), ("c", 99), ("d", 2), ("a", 2)):
        await harness.tasks.move(harness.me, cards["abcde".index(name)].id, BACKLOG, position=index)
        expected.remove(name)
        expected.insert(index, name)
        assert await harness.list_titles(BACKLOG) == expected
        moved = (await harness.list_events("task.moved"))[-1]
        assert moved.data["position"] == expected.index(name)
        assert (moved.data["from"], moved.data["to"]) == ("backlog", "backlog")


async def test_concurrent_moves_keep_order(harness_on_each_database: BoardHarness) -> None:
    harness = harness_on_each_database
    cards = [await harness.create_task(str(number)) for number in range(8)]
    await asyncio.gather(*(harness.tasks.move(harness.me, card.id, BACKLOG, position=0) for card in cards))
    moves = await harness.list_events("task.moved")
    newest_first = [event.data["title"] for event in reversed(moves)]
    assert await harness.list_titles(BACKLOG) == newest_first


async def test_pages_by_column_and_position(harness_on_each_database: BoardHarness) -> None:
    harness = harness_on_each_database
    cards = [await harness.create_task(name) for name in "abcdef"]
    await harness.tasks.move(harness.me, cards[0].id, DONE)
    await harness.tasks.move(harness.me, cards[3].id, DONE)
    await harness.tasks.move(harness.me, cards[1].id, IN_PROGRESS)
    found, cursor = "", None
    while True:
        page = await harness.tasks.list(harness.me, PageRequest(2, cursor))
        found += "".join(task.title for task in page.items)
        if (cursor := page.next_cursor) is None:
            break
    assert found == "cefbda"  # the most recently done comes first
    assert [task.title for task in (await harness.tasks.list(harness.me, PageRequest(), q="E")).items] == ["e"]
    with pytest.raises(InvalidInputError):
        await harness.tasks.list(harness.me, PageRequest(2, "tsk_0000"))


async def test_search_limits_and_deduplicates_words(harness_on_each_database: BoardHarness) -> None:
    harness = harness_on_each_database
    words = [f"word{number}" for number in range(MAX_WORDS)]
    assert len(match_words(" ".join(["b B"] * 50))) == 1
    assert len(match_words(" ".join([*words, "more"]))) == MAX_WORDS
    await harness.create_task(" ".join(words))
    shown = (await harness.tasks.list(harness.me, PageRequest(), q=" ".join([*words, "more"]))).items
    assert [task.title for task in shown] == [" ".join(words)]
    assert (await harness.tasks.list(harness.me, PageRequest(), q=" ".join([*words[1:], "more"]))).items == []


async def test_search_reads_beginning_of_description(harness_on_each_database: BoardHarness) -> None:
    harness = harness_on_each_database
    for title, before in (("first", SEARCHED_CHARACTERS - 6), ("second", SEARCHED_CHARACTERS - 5)):
        fields = TaskFields(title=title, description="x" * before + "Needle")
        await harness.tasks.create(harness.me, harness.project.id, fields)
    listed = await harness.tasks.list(harness.me, PageRequest(), q="needle")
    assert [task.title for task in listed.items] == ["first"]
    page = await harness.tasks.get_board(harness.me, BoardFilter("needle"), limit=10)
    assert [card.task.title for column in page.columns for card in column.cards] == ["first"]


async def test_long_descriptions_shorten_pages(
    harness_on_each_database: BoardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = harness_on_each_database
    monkeypatch.setattr(paging, "PAGE_BYTES", 10_000)
    for name in "abcde":
        await harness.tasks.create(harness.me, harness.project.id, TaskFields(title=name, description=name * 4000))
    titles, sizes, cursor = "", [], None
    while True:
        page = await harness.tasks.list(harness.me, PageRequest(200, cursor))
        cards = await harness.tasks.cards.list_cards(page.items)
        assert [card.task.description for card in cards] == [card.task.title * 4000 for card in cards]
        titles += "".join(card.task.title for card in cards)
        sizes.append(len(cards))
        if (cursor := page.next_cursor) is None:
            break
    assert titles == "abcde"
    assert sizes == [2, 2, 1]


async def test_board_does_not_load_descriptions(harness: BoardHarness) -> None:
    await harness.tasks.create(harness.me, harness.project.id, TaskFields(title="a", description="long"), start=True)
    board = await harness.tasks.get_board(harness.me, BoardFilter(), limit=10)
    (card,) = [card for column in board.columns for card in column.cards]
    assert "description" in inspect(card.task).unloaded


async def test_board_reads_only_what_it_shows(
    harness_on_each_database: BoardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, read = harness_on_each_database, list[int]()
    monkeypatch.setattr(columns, "RANGES_AT_ONCE", 2)
    projects = [harness.project, *[await harness.world.projects.create(harness.me, name) for name in "abc"]]
    now = get_time(harness.world.clock)
    card = {"description": "", "title": "x", "priority": 0, "created_at": now, "updated_at": now}
    rows = [
        Task(id=f"tsk_{at}{n:03}", project_id=project.id, status=column, position=n // 3, **card)
        for at, (project, count) in enumerate(zip(projects, (40, 0, 7, 23), strict=True))
        for n in range(count)
        for column in ([BACKLOG] if n % 2 else [DONE])
    ]
    async with harness.world.database.transaction() as tx:
        tx.add(*rows)

    def note(_connection: object, cursor: Any, *_: object) -> None:
        read.append(len(cursor._rows))

    for column in (BACKLOG, DONE, IN_REVIEW):
        of_projects = [sorted(r.id for r in rows if (r.project_id, r.status) == (p.id, column)) for p in projects]
        in_turns = sorted(
            (n, p.id, id_) for p, ids in zip(projects, of_projects, strict=True) for n, id_ in enumerate(ids)
        )
        expected, found = [id_ for _, _, id_ in in_turns], list[str]()
        reads = harness.world.database.read_engine
        assert reads is not None
        event.listen(reads.sync_engine, "after_cursor_execute", note)
        for offset in range(0, len(expected) + 3, 3):
            page = await harness.tasks.get_board(harness.me, BoardFilter(), only=column, offset=offset, limit=3)
            (shown,) = page.columns
            found += [card.task.id for card in shown.cards]
            assert (shown.total, shown.matching) == (len(expected), len(expected))
        event.remove(reads.sync_engine, "after_cursor_execute", note)
        assert found == expected
    assert max(read) <= 12  # the counts by project and column


async def test_allowed_moves(harness: BoardHarness) -> None:
    task = await harness.create_task()
    with pytest.raises(MoveRefusedError, match="moves to review automatically"):
        await harness.tasks.move(harness.me, task.id, IN_REVIEW)
    await harness.tasks.move(harness.me, task.id, IN_PROGRESS)
    with pytest.raises(MoveRefusedError, match="backlog or cancelled"):
        await harness.tasks.move(harness.me, task.id, DONE)
    (attempt,) = await harness.list_attempts(task)
    await harness.set_status(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    for words in (None, "  \n"):
        with pytest.raises(FeedbackNeededError):
            await harness.tasks.move(harness.me, task.id, IN_PROGRESS, feedback=words)
    await harness.tasks.move(harness.member.principal, task.id, IN_PROGRESS, feedback=" Use a set. ")
    assert harness.attempts.messages == [(attempt.id, "Use a set.", harness.member.principal.user_id)]
    assert len(await harness.list_attempts(task)) == 1
    await harness.set_status(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    await harness.tasks.move(harness.me, task.id, DONE)
    done = await harness.tasks.get(harness.me, task.id)
    assert done.finished_at is not None
    await harness.tasks.move(harness.me, task.id, BACKLOG)
    await harness.tasks.move(harness.me, task.id, IN_PROGRESS)
    assert [(row.number, row.status) for row in await harness.list_attempts(task)] == [(1, "archived"), (2, "queued")]
    ways = [(event.data["from"], event.data["to"]) for event in await harness.list_events("task.moved")]
    assert ways == [
        (BACKLOG, IN_PROGRESS),
        (IN_PROGRESS, IN_REVIEW),
        (IN_REVIEW, IN_PROGRESS),
        (IN_PROGRESS, IN_REVIEW),
        (IN_REVIEW, DONE),
        (DONE, BACKLOG),
        (BACKLOG, IN_PROGRESS),
    ]


async def test_feedback_requires_picked_attempt(harness: BoardHarness) -> None:
    fields = TaskFields.model_validate({"title": "x", "attempts": [{"agent": "demo"}, {"agent": "demo"}]})
    task = await harness.tasks.create(harness.me, harness.project.id, fields, start=True)
    await harness.set_status(task, AttemptStatus.READY, IN_REVIEW)
    with pytest.raises(ConflictError, match="Pick one"):
        await harness.tasks.move(harness.me, task.id, IN_PROGRESS, feedback="x")
    await harness.set_status(task, AttemptStatus.FAILED, IN_REVIEW)
    with pytest.raises(NothingInReviewError):
        await harness.tasks.move(harness.me, task.id, IN_PROGRESS, feedback="x")
    assert await harness.get_status(task) == IN_REVIEW


async def test_stop_and_retry(harness: BoardHarness) -> None:
    task = await harness.create_task(start=True)
    await harness.tasks.stop(harness.me, task.id)
    await harness.tasks.stop(harness.me, task.id)
    assert [row.status for row in await harness.list_attempts(task)] == ["cancelled"]
    await harness.tasks.retry(harness.me, task.id)
    assert await harness.get_status(task) == IN_PROGRESS
    assert [row.status for row in await harness.list_attempts(task)] == ["queued"]
    await harness.tasks.move(harness.me, task.id, BACKLOG)
    assert [row.status for row in await harness.list_attempts(task)] == ["cancelled"]
    await harness.tasks.retry(harness.me, task.id)
    assert [row.status for row in await harness.list_attempts(task)] == ["archived", "queued"]
    await harness.tasks.delete(harness.me, task.id)
    with pytest.raises(NotFoundError):
        await harness.tasks.get(harness.me, task.id)


async def test_does_not_start_while_stopping(harness: BoardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ignore_cancel(task_id: str) -> None:
        return None

    task = await harness.create_task(start=True)
    monkeypatch.setattr(harness.attempts, "cancel", ignore_cancel)
    await harness.tasks.move(harness.me, task.id, BACKLOG)
    for again in (harness.tasks.move(harness.me, task.id, IN_PROGRESS), harness.tasks.delete(harness.me, task.id)):
        with pytest.raises(ConflictError, match="still being stopped"):
            await again
    monkeypatch.undo()
    await harness.tasks.recover()
    await harness.wait_until_idle()
    assert [row.status for row in await harness.list_attempts(task)] == ["cancelled"]


async def test_column_limit_applies_to_people_but_not_platform(harness: BoardHarness) -> None:
    await harness.configure(wipLimits={"backlog": 3, "in_progress": 1, "in_review": 1})
    one, two, three = [await harness.create_task(name) for name in ("one", "two", "three")]
    with pytest.raises(ColumnFullError):
        await harness.create_task("four")
    await harness.tasks.move(harness.me, one.id, IN_PROGRESS)
    with pytest.raises(ColumnFullError, match=r"is full \(1 of 1 tasks\)") as refused:
        await harness.tasks.move(harness.me, two.id, IN_PROGRESS)
    assert refused.value.extra == {"column": "in_progress", "limit": 1, "count": 1}
    for task in (one, two, three):
        if task is not one:
            await harness.tasks.move(harness.me, task.id, IN_PROGRESS)
        await harness.set_status(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    assert await harness.list_titles(IN_REVIEW) == ["one", "two", "three"]


async def test_failed_task_does_not_count_for_limit(harness: BoardHarness) -> None:
    await harness.configure(wipLimits={"in_progress": 1})
    broken, waits = await harness.create_task("broken", start=True), await harness.create_task("waits", start=True)
    assert await harness.get_status(waits) == BACKLOG
    await harness.fail_attempts(broken, "It rains.")
    await harness.wait_until_idle()
    assert await harness.list_titles(IN_PROGRESS) == ["broken", "waits"]
    page = await harness.tasks.get_board(
        harness.me, BoardFilter(), project_id=harness.project.id, only=IN_PROGRESS, offset=0, limit=9
    )
    assert [(column.total, column.failed) for column in page.columns] == [(2, 1)]
    assert await harness.tasks.count_by_column(harness.me) == {harness.project.id: ({IN_PROGRESS: 2}, 1)}
    with pytest.raises(ColumnFullError, match=r"is full \(1 of 1 tasks\)"):
        await harness.tasks.retry(harness.me, broken.id)
    await harness.tasks.stop(harness.me, waits.id)
    await harness.tasks.retry(harness.me, broken.id)
    assert await harness.tasks.count_by_column(harness.me) == {harness.project.id: ({IN_PROGRESS: 1, CANCELLED: 1}, 0)}


async def test_concurrent_moves_respect_limit(harness_on_each_database: BoardHarness) -> None:
    harness = harness_on_each_database
    await harness.configure(wipLimits={"in_progress": 1})
    cards = [await harness.create_task(str(number)) for number in range(4)]
    moves = [harness.tasks.move(harness.me, card.id, IN_PROGRESS) for card in cards]
    outcomes = await asyncio.gather(*moves, return_exceptions=True)
    assert sum(isinstance(outcome, ColumnFullError) for outcome in outcomes) == 3
    assert len(await harness.list_titles(IN_PROGRESS)) == 1


async def test_needs_are_in_project_and_acyclic(harness: BoardHarness) -> None:
    one = await harness.create_task("one")
    two = await harness.create_task("two", needs=[one])
    three = await harness.create_task("three", needs=[two])
    with pytest.raises(NeedsCycleError, match=f"{one.id} needs {three.id} needs {two.id} needs {one.id}"):
        await harness.tasks.update(harness.me, one.id, {}, needs=[three.id])
    with pytest.raises(NeedsCycleError, match=f"{one.id} needs {one.id}"):
        await harness.tasks.update(harness.me, one.id, {}, needs=[one.id])
    other = await harness.world.projects.create(harness.me, "other")
    foreign = await harness.tasks.create(harness.me, other.id, TaskFields(title="x"))
    with pytest.raises(InvalidInputError, match="in this project"):
        await harness.tasks.update(harness.me, one.id, {}, needs=[foreign.id])
    with pytest.raises(TaskBlockedError, match="'two', backlog") as blocked:
        await harness.tasks.move(harness.me, three.id, IN_PROGRESS)
    assert blocked.value.extra == {"blockedBy": [two.id]}


async def test_starts_when_last_need_is_done(harness: BoardHarness) -> None:
    one, two = await harness.create_task("one"), await harness.create_task("two", start=True)
    waiting = await harness.create_task("waiting", needs=[one, two], start=True)
    unasked = await harness.create_task("unasked", needs=[one])
    (event,) = await harness.list_events("task.waiting")
    assert event.task_id == waiting.id
    assert event.data["code"] == "task_blocked"
    await harness.tasks.move(harness.me, one.id, DONE)
    await harness.wait_until_idle()
    assert await harness.get_status(waiting) == BACKLOG
    await harness.set_status(two, AttemptStatus.MERGED, DONE)
    await harness.wait_until_idle()
    assert await harness.get_status(waiting) == IN_PROGRESS
    assert await harness.get_status(unasked) == BACKLOG
    assert "startsFor" not in (await harness.tasks.get(harness.me, waiting.id)).source


async def test_an_attempt_shows_its_session_once_it_exists(harness: BoardHarness) -> None:
    task, session_id = await harness.create_task(start=True), await harness.create_session("running")

    async def get_shown_session() -> str | None:
        (shown,) = (await harness.tasks.cards.get_card(task)).attempts
        return shown.session_id

    assert await get_shown_session() is None
    async with harness.world.database.transaction() as tx:
        (attempt,) = await tx.session.scalars(select(Attempt).where(Attempt.task_id == task.id))
        attempt.session_id = session_id
    assert await get_shown_session() == session_id


async def test_starts_after_database_outage(harness: BoardHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.db.retry.RETRY_S", 0.01)
    first = await harness.create_task()
    second = await harness.create_task(needs=[first], start=True)
    await harness.wait_until_idle()
    lock_board = moves.lock_board

    async def fail_once(tx: Transaction, project_id: str) -> Project:
        monkeypatch.setattr(moves, "lock_board", lock_board)
        raise DatabaseUnavailableError

    monkeypatch.setattr(moves, "lock_board", fail_once)
    await harness.tasks.move(harness.me, first.id, DONE)
    await harness.wait_until_idle()
    assert await harness.get_status(second) == IN_PROGRESS


async def test_waiting_tasks_start_by_priority(harness_on_each_database: BoardHarness) -> None:
    harness = harness_on_each_database
    await harness.configure(wipLimits={"in_progress": 1})
    first = await harness.create_task("first", start=True)
    low, high = await harness.create_task("low", start=True), await harness.create_task("high", start=True)
    await harness.tasks.update(harness.me, high.id, {"priority": 5})
    await harness.set_status(first, AttemptStatus.IN_REVIEW, IN_REVIEW)
    await harness.wait_until_idle()
    assert await harness.list_titles(IN_PROGRESS) == ["high"]
    await harness.tasks.update(harness.me, low.id, {}, start=False)
    await harness.tasks.stop(harness.me, high.id)
    await harness.wait_until_idle()
    assert await harness.list_titles(IN_PROGRESS) == []
    await harness.world.projects.remove_member(harness.me, harness.project.id, harness.member.principal.user_id)
    await harness.tasks.update(harness.me, low.id, {}, start=True)
    assert await harness.list_titles(IN_PROGRESS) == ["low"]


@pytest.mark.parametrize("state", ["waiting", "queued", "failed", "in review", "cancelled"])
async def test_nobody_else_changes_what_runs_on_behalf_of_a_member(harness: BoardHarness, state: str) -> None:
    mo, first = harness.member.principal, await harness.create_task("first")
    eve = await harness.world.create_person("eve")
    await harness.world.projects.add_member(harness.me, harness.project.id, eve.principal.user_id)
    needs = [first.id] if state == "waiting" else []
    task = await harness.tasks.create(mo, harness.project.id, TaskFields(title="x"), needs=needs, start=True)
    if state == "failed":
        await harness.fail_attempts(task, "no")
    elif state == "in review":
        await harness.set_status(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    elif state == "cancelled":
        await harness.tasks.stop(mo, task.id)
    changes: list[dict[str, Any]] = [
        {"title": "print the keys"},
        {"description": "print the keys"},
        {"agent": "opencode"},
        {"base_branch": "other"},
        {"attempts": [{"agent": "demo"}, {"agent": "demo"}]},
        {"budget": {"usd": 100}},
        {"from_session_id": None},
        {"priority": 5, "title": "print the keys"},
    ]
    for change in changes:
        with pytest.raises(ForbiddenError, match="on behalf of mo"):
            await harness.tasks.update(eve.principal, task.id, change)
    await harness.tasks.update(eve.principal, task.id, {"priority": 5}, needs=[])
    for caller, title in ((mo, "of mo"), (harness.me, "of the project's owner"), (ROOT, "of an administrator")):
        assert (await harness.tasks.update(caller, task.id, {"title": title})).title == title


async def test_a_member_can_take_a_task_over(harness: BoardHarness) -> None:
    mo, first = harness.member.principal, await harness.create_task("first")
    eve = (await harness.world.create_person("eve")).principal
    await harness.world.projects.add_member(harness.me, harness.project.id, eve.user_id)
    fields = TaskFields(title="x")
    waiting = await harness.tasks.create(mo, harness.project.id, fields, needs=[first.id], start=True)
    taken = await harness.tasks.update(eve, waiting.id, {"title": "of eve"}, start=True)
    assert (taken.title, taken.source["startsFor"]) == ("of eve", eve.user_id)
    await harness.tasks.update(mo, waiting.id, {"title": "of mo"}, start=False)
    await harness.tasks.update(eve, waiting.id, {"title": "nobody's"})

    started = await harness.tasks.create(mo, harness.project.id, fields, start=True)
    await harness.tasks.move(eve, started.id, BACKLOG)
    await harness.tasks.update(eve, started.id, {"title": "of eve"})
    await harness.tasks.move(eve, started.id, IN_PROGRESS)
    assert [row.owner_id for row in await harness.list_attempts(started)][-1] == eve.user_id
    with pytest.raises(ForbiddenError, match="on behalf of eve"):
        await harness.tasks.update(mo, started.id, {"title": "of mo"})
    await harness.world.projects.remove_member(harness.me, harness.project.id, eve.user_id)
    await harness.tasks.update(mo, started.id, {"title": "of mo"})


@pytest.mark.parametrize("how", ["removed", "disabled"])
async def test_waiting_task_does_not_start_for_user_without_access(harness: BoardHarness, how: str) -> None:
    """Nobody else would know what runs on their behalf."""
    mo, first = harness.member.principal, await harness.create_task("first")
    fields = TaskFields(title="later")
    later = await harness.tasks.create(mo, harness.project.id, fields, needs=[first.id], start=True)
    if how == "removed":
        await harness.world.projects.remove_member(harness.me, harness.project.id, mo.user_id)
    else:
        await harness.world.users.update(ROOT, mo.user_id, disabled=True)
    await harness.tasks.move(harness.me, first.id, DONE)
    await harness.wait_until_idle()
    assert await harness.get_status(later) == BACKLOG
    assert await harness.list_attempts(later) == []
    source = (await harness.tasks.get(harness.me, later.id)).source
    assert "startsFor" not in source
    assert "mo, for whom the task was to start automatically" in source["startError"]
    (event,) = await harness.list_events("task.not_started")
    assert (event.task_id, event.data["code"]) == (later.id, "owner_without_access")
    assert event.data["reason"] == source["startError"]

    await harness.tasks.move(harness.me, later.id, IN_PROGRESS)
    assert [row.owner_id for row in await harness.list_attempts(later)] == [harness.me.user_id]
    assert "startError" not in (await harness.tasks.get(harness.me, later.id)).source


async def test_nothing_starts_automatically_for_disabled_owner(harness: BoardHarness) -> None:
    """Such as a task from a labelled issue."""
    await harness.world.users.update(ROOT, harness.me.user_id, disabled=True)
    async with harness.world.database.transaction() as tx:
        project = await moves.lock_board(tx, harness.project.id)
        task = await harness.tasks.add(
            tx,
            project,
            TaskFields(title="x"),
            created_by=harness.me.user_id,
            source={"kind": "issue"},
            start_for=harness.me.user_id,
        )
    assert (task.status, await harness.list_attempts(task)) == (BACKLOG, [])
    assert "olga" in task.source["startError"]


@pytest.mark.parametrize("how", ["failed", "stopped"])
async def test_retry_replaces_attempts_of_member_who_left(harness: BoardHarness, how: str) -> None:
    mo, me = harness.member.principal, harness.me
    task = await harness.tasks.create(mo, harness.project.id, TaskFields(title="x"), start=True)
    if how == "failed":
        await harness.fail_attempts(task, "lost access")
    else:
        await harness.tasks.stop(mo, task.id)
    await harness.world.projects.remove_member(me, harness.project.id, mo.user_id)
    with pytest.raises(ConflictError, match="without a message"):
        await harness.tasks.retry(me, task.id, message="Go on.")
    await harness.tasks.retry(me, task.id)
    assert await harness.get_status(task) == IN_PROGRESS
    first, second = await harness.list_attempts(task)
    assert (first.owner_id, first.status) == (mo.user_id, "archived")
    assert (second.owner_id, second.status) == (me.user_id, "queued")
    assert second.session_id != first.session_id


async def test_archived_project_starts_nothing(harness: BoardHarness) -> None:
    task = await harness.create_task()
    await harness.world.projects.update(harness.me, harness.project.id, archived=True)
    with pytest.raises(ConflictError, match="archived"):
        await harness.tasks.move(harness.me, task.id, IN_PROGRESS)
    with pytest.raises(ConflictError, match="archived"):
        await harness.create_task()


async def test_retry_of_closed_task_starts_over(harness: BoardHarness) -> None:
    """Its attempts were archived, so there is none to continue."""
    task = await harness.create_task(start=True)
    await harness.set_status(task, AttemptStatus.ARCHIVED, Column.CANCELLED)
    await harness.tasks.retry(harness.me, task.id)
    assert await harness.get_status(task) == Column.IN_PROGRESS
    assert [row.status for row in await harness.list_attempts(task)] == [AttemptStatus.ARCHIVED, AttemptStatus.QUEUED]


async def test_card_is_consistent_snapshot(harness: BoardHarness) -> None:
    task = await harness.create_task(start=True)
    await harness.set_status(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    card = await harness.tasks.cards.get_card(task)  # as it was read earlier
    assert (card.task.status, card.attempts[0].attempt.status) == (IN_REVIEW, AttemptStatus.IN_REVIEW)
    await harness.tasks.delete(harness.me, task.id)
    assert (await harness.tasks.cards.get_card(task)).attempts == []


@pytest.mark.parametrize("status", ["running", "paused"])
async def test_task_from_session(harness: BoardHarness, status: str) -> None:
    source = await harness.create_session(status)
    mo, fields = harness.member.principal, TaskFields(title="x")
    task = await harness.tasks.create(mo, harness.project.id, fields, from_session_id=source)
    assert task.from_session_id == source
    with pytest.raises(InvalidInputError, match="baseBranch"):
        await harness.tasks.update(mo, task.id, {"base_branch": "dev"})
    assert (await harness.tasks.update(mo, task.id, {"priority": 3})).from_session_id == source
    changed = await harness.tasks.update(mo, task.id, {"from_session_id": None, "base_branch": "dev"})
    assert (changed.from_session_id, changed.base_branch) == (None, "dev")
    assert [event.data["changed"] for event in await harness.list_events("task.updated")][-1] == [
        "base_branch",
        "from_session_id",
    ]


async def test_only_usable_sessions_of_the_project_are_sources_of_tasks(harness: BoardHarness) -> None:
    other = await harness.world.projects.create(harness.me, "shop")  # the member does not see it
    source, foreign = (
        await harness.create_session("running"),
        await harness.create_session("running", project_id=other.id),
    )

    async def create(caller: Principal, session_id: str, **fields: Any) -> None:
        wanted = TaskFields(title="x", **fields)
        await harness.tasks.create(caller, harness.project.id, wanted, from_session_id=session_id)

    with pytest.raises(InvalidInputError, match="there is no session"):
        await create(harness.me, "ses_none")
    with pytest.raises(InvalidInputError, match="there is no session"):
        await create(harness.member.principal, foreign)
    with pytest.raises(InvalidInputError, match="is not in the task's project"):
        await create(harness.me, foreign)
    with pytest.raises(InvalidInputError, match="baseBranch"):
        await create(harness.me, source, base_branch="dev")
    for status in ("error", "destroyed"):
        with pytest.raises(ConflictError, match="Create a new sandbox for it first"):
            await create(harness.me, await harness.create_session(status))
    assert (await harness.tasks.list(harness.me, PageRequest())).items == []
