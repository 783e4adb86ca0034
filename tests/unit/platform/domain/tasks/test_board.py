"""Cards of a board: visibility, moves, order, and automatic starts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, inspect

from sandyard.kit.clock import get_time
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from sandyard.platform.db.database import DatabaseUnavailableError, Transaction
from sandyard.platform.db.models import Project, Task
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
from tests.unit.platform.domain.tasks.desk import Desk
from tests.unit.platform.world import ROOT

pytestmark = pytest.mark.both_databases

BACKLOG, IN_PROGRESS, IN_REVIEW, DONE, CANCELLED = Column


async def test_only_project_members_see_card(desk: Desk) -> None:
    task, stranger = await desk.card(), (await desk.world.person("eve")).principal
    mo = desk.member.principal
    assert (await desk.tasks.get(mo, task.id)).title == "Fix the login"
    await desk.tasks.update(mo, task.id, {"title": "Mend the login", "priority": 3})
    for seen in (
        desk.tasks.get(stranger, task.id),
        desk.tasks.move(stranger, task.id, DONE),
        desk.tasks.update(stranger, task.id, {}),
        desk.tasks.delete(stranger, task.id),
        desk.tasks.create(stranger, desk.project.id, TaskFields(title="x")),
    ):
        with pytest.raises(NotFoundError):
            await seen
    assert (await desk.tasks.list(stranger, PageRequest())).items == []
    with pytest.raises(ForbiddenError):
        await desk.tasks.delete(mo, task.id)
    await desk.tasks.delete(desk.me, task.id)
    kinds = [event.kind for event in await desk.told("task.created", "task.updated", "task.deleted")]
    assert kinds == ["task.created", "task.updated", "task.deleted"]


async def test_validates_agents_and_stores_attempts(desk: Desk) -> None:
    fields = TaskFields.model_validate({"title": "x", "attempts": [{"agent": "demo"}, {"agent": "nobody"}]})
    with pytest.raises(InvalidInputError, match="there are demo and opencode"):
        await desk.tasks.create(desk.me, desk.project.id, fields)
    fields = TaskFields.model_validate({"title": "x", "attempts": [{"agent": "demo"}, {"agent": "opencode"}]})
    task = await desk.tasks.create(desk.member.principal, desk.project.id, fields, start=True)
    made = await desk.attempts_of(task)
    assert [row.agent for row in made] == ["demo", "opencode"]
    assert {row.owner_id for row in made} == {desk.member.principal.user_id}
    assert desk.attempts.nudges


async def test_order_in_column(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "GAP", 4)  # so that the gaps run out
    cards = [await desk.card(name) for name in "abcde"]
    expected = list("abcde")
    for name, index in (("e", 0), ("d", 1), ("c", 1), ("b", 1), ("a", 1), ("e", 4), ("c", 99), ("d", 2), ("a", 2)):
        await desk.tasks.move(desk.me, cards["abcde".index(name)].id, BACKLOG, position=index)
        expected.remove(name)
        expected.insert(index, name)
        assert await desk.titles(BACKLOG) == expected
        moved = (await desk.told("task.moved"))[-1]
        assert moved.data["position"] == expected.index(name)
        assert (moved.data["from"], moved.data["to"]) == ("backlog", "backlog")


async def test_concurrent_moves_keep_order(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    cards = [await desk.card(str(number)) for number in range(8)]
    await asyncio.gather(*(desk.tasks.move(desk.me, card.id, BACKLOG, position=0) for card in cards))
    moves = await desk.told("task.moved")
    newest_first = [event.data["title"] for event in reversed(moves)]
    assert await desk.titles(BACKLOG) == newest_first


async def test_pages_by_column_and_position(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    cards = [await desk.card(name) for name in "abcdef"]
    await desk.tasks.move(desk.me, cards[0].id, DONE)
    await desk.tasks.move(desk.me, cards[3].id, DONE)
    await desk.tasks.move(desk.me, cards[1].id, IN_PROGRESS)
    found, cursor = "", None
    while True:
        page = await desk.tasks.list(desk.me, PageRequest(2, cursor))
        found += "".join(task.title for task in page.items)
        if (cursor := page.next_cursor) is None:
            break
    assert found == "cefbda"  # the most recently done comes first
    assert [task.title for task in (await desk.tasks.list(desk.me, PageRequest(), q="E")).items] == ["e"]
    with pytest.raises(InvalidInputError):
        await desk.tasks.list(desk.me, PageRequest(2, "tsk_0000"))


async def test_search_limits_and_deduplicates_words(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    words = [f"word{number}" for number in range(MAX_WORDS)]
    assert len(match_words(" ".join(["b B"] * 50))) == 1
    assert len(match_words(" ".join([*words, "more"]))) == MAX_WORDS
    await desk.card(" ".join(words))
    shown = (await desk.tasks.list(desk.me, PageRequest(), q=" ".join([*words, "more"]))).items
    assert [task.title for task in shown] == [" ".join(words)]
    assert (await desk.tasks.list(desk.me, PageRequest(), q=" ".join([*words[1:], "more"]))).items == []


async def test_search_reads_beginning_of_description(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    for title, before in (("first", SEARCHED_CHARACTERS - 6), ("second", SEARCHED_CHARACTERS - 5)):
        fields = TaskFields(title=title, description="x" * before + "Needle")
        await desk.tasks.create(desk.me, desk.project.id, fields)
    listed = await desk.tasks.list(desk.me, PageRequest(), q="needle")
    assert [task.title for task in listed.items] == ["first"]
    page = await desk.tasks.get_board(desk.me, BoardFilter("needle"), limit=10)
    assert [card.task.title for column in page.columns for card in column.cards] == ["first"]


async def test_long_descriptions_shorten_pages(desk_anywhere: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_anywhere
    monkeypatch.setattr(paging, "PAGE_BYTES", 10_000)
    for name in "abcde":
        await desk.tasks.create(desk.me, desk.project.id, TaskFields(title=name, description=name * 4000))
    titles, sizes, cursor = "", [], None
    while True:
        page = await desk.tasks.list(desk.me, PageRequest(200, cursor))
        cards = await desk.tasks.cards.list_cards(page.items)
        assert [card.task.description for card in cards] == [card.task.title * 4000 for card in cards]
        titles += "".join(card.task.title for card in cards)
        sizes.append(len(cards))
        if (cursor := page.next_cursor) is None:
            break
    assert titles == "abcde"
    assert sizes == [2, 2, 1]


async def test_board_does_not_load_descriptions(desk: Desk) -> None:
    await desk.tasks.create(desk.me, desk.project.id, TaskFields(title="a", description="long"), start=True)
    board = await desk.tasks.get_board(desk.me, BoardFilter(), limit=10)
    (card,) = [card for column in board.columns for card in column.cards]
    assert "description" in inspect(card.task).unloaded


async def test_board_reads_only_what_it_shows(desk_anywhere: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, read = desk_anywhere, list[int]()
    monkeypatch.setattr(columns, "RANGES_AT_ONCE", 2)
    projects = [desk.project, *[await desk.world.projects.create(desk.me, name) for name in "abc"]]
    now = get_time(desk.world.clock)
    card = {"description": "", "title": "x", "priority": 0, "created_at": now, "updated_at": now}
    rows = [
        Task(id=f"tsk_{at}{n:03}", project_id=project.id, status=column, position=n // 3, **card)
        for at, (project, count) in enumerate(zip(projects, (40, 0, 7, 23), strict=True))
        for n in range(count)
        for column in ([BACKLOG] if n % 2 else [DONE])
    ]
    async with desk.world.database.transaction() as tx:
        tx.add(*rows)

    def note(_connection: object, cursor: Any, *_: object) -> None:
        read.append(len(cursor._rows))

    for column in (BACKLOG, DONE, IN_REVIEW):
        of_projects = [sorted(r.id for r in rows if (r.project_id, r.status) == (p.id, column)) for p in projects]
        in_turns = sorted(
            (n, p.id, id_) for p, ids in zip(projects, of_projects, strict=True) for n, id_ in enumerate(ids)
        )
        expected, found = [id_ for _, _, id_ in in_turns], list[str]()
        reads = desk.world.database.read_engine
        assert reads is not None
        event.listen(reads.sync_engine, "after_cursor_execute", note)
        for offset in range(0, len(expected) + 3, 3):
            page = await desk.tasks.get_board(desk.me, BoardFilter(), only=column, offset=offset, limit=3)
            (shown,) = page.columns
            found += [card.task.id for card in shown.cards]
            assert (shown.total, shown.matching) == (len(expected), len(expected))
        event.remove(reads.sync_engine, "after_cursor_execute", note)
        assert found == expected
    assert max(read) <= 12  # the counts by project and column


async def test_allowed_moves(desk: Desk) -> None:
    task = await desk.card()
    with pytest.raises(MoveRefusedError, match="moves to review automatically"):
        await desk.tasks.move(desk.me, task.id, IN_REVIEW)
    await desk.tasks.move(desk.me, task.id, IN_PROGRESS)
    with pytest.raises(MoveRefusedError, match="backlog or cancelled"):
        await desk.tasks.move(desk.me, task.id, DONE)
    (attempt,) = await desk.attempts_of(task)
    await desk.becomes(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    for words in (None, "  \n"):
        with pytest.raises(FeedbackNeededError):
            await desk.tasks.move(desk.me, task.id, IN_PROGRESS, feedback=words)
    await desk.tasks.move(desk.member.principal, task.id, IN_PROGRESS, feedback=" Use a set. ")
    assert desk.attempts.said == [(attempt.id, "Use a set.", desk.member.principal.user_id)]
    assert len(await desk.attempts_of(task)) == 1
    await desk.becomes(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    await desk.tasks.move(desk.me, task.id, DONE)
    done = await desk.tasks.get(desk.me, task.id)
    assert done.finished_at is not None
    await desk.tasks.move(desk.me, task.id, BACKLOG)
    await desk.tasks.move(desk.me, task.id, IN_PROGRESS)
    assert [(row.number, row.status) for row in await desk.attempts_of(task)] == [(1, "archived"), (2, "queued")]
    ways = [(event.data["from"], event.data["to"]) for event in await desk.told("task.moved")]
    assert ways == [
        (BACKLOG, IN_PROGRESS),
        (IN_PROGRESS, IN_REVIEW),
        (IN_REVIEW, IN_PROGRESS),
        (IN_PROGRESS, IN_REVIEW),
        (IN_REVIEW, DONE),
        (DONE, BACKLOG),
        (BACKLOG, IN_PROGRESS),
    ]


async def test_feedback_requires_picked_attempt(desk: Desk) -> None:
    fields = TaskFields.model_validate({"title": "x", "attempts": [{"agent": "demo"}, {"agent": "demo"}]})
    task = await desk.tasks.create(desk.me, desk.project.id, fields, start=True)
    await desk.becomes(task, AttemptStatus.READY, IN_REVIEW)
    with pytest.raises(ConflictError, match="Pick one"):
        await desk.tasks.move(desk.me, task.id, IN_PROGRESS, feedback="x")
    await desk.becomes(task, AttemptStatus.FAILED, IN_REVIEW)
    with pytest.raises(NothingInReviewError):
        await desk.tasks.move(desk.me, task.id, IN_PROGRESS, feedback="x")
    assert await desk.status(task) == IN_REVIEW


async def test_stop_and_retry(desk: Desk) -> None:
    task = await desk.card(start=True)
    await desk.tasks.stop(desk.me, task.id)
    await desk.tasks.stop(desk.me, task.id)
    assert [row.status for row in await desk.attempts_of(task)] == ["cancelled"]
    await desk.tasks.retry(desk.me, task.id)
    assert await desk.status(task) == IN_PROGRESS
    assert [row.status for row in await desk.attempts_of(task)] == ["queued"]
    await desk.tasks.move(desk.me, task.id, BACKLOG)
    assert [row.status for row in await desk.attempts_of(task)] == ["cancelled"]
    await desk.tasks.retry(desk.me, task.id)
    assert [row.status for row in await desk.attempts_of(task)] == ["archived", "queued"]
    await desk.tasks.delete(desk.me, task.id)
    with pytest.raises(NotFoundError):
        await desk.tasks.get(desk.me, task.id)


async def test_does_not_start_while_stopping(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(task_id: str) -> None:
        return None

    task = await desk.card(start=True)
    monkeypatch.setattr(desk.attempts, "cancel", slow)
    await desk.tasks.move(desk.me, task.id, BACKLOG)
    for again in (desk.tasks.move(desk.me, task.id, IN_PROGRESS), desk.tasks.delete(desk.me, task.id)):
        with pytest.raises(ConflictError, match="still being stopped"):
            await again
    monkeypatch.undo()
    await desk.tasks.recover()
    await desk.settle()
    assert [row.status for row in await desk.attempts_of(task)] == ["cancelled"]


async def test_column_limit_applies_to_people_but_not_platform(desk: Desk) -> None:
    await desk.configure(wipLimits={"backlog": 3, "in_progress": 1, "in_review": 1})
    one, two, three = [await desk.card(name) for name in ("one", "two", "three")]
    with pytest.raises(ColumnFullError):
        await desk.card("four")
    await desk.tasks.move(desk.me, one.id, IN_PROGRESS)
    with pytest.raises(ColumnFullError, match=r"is full \(1 of 1 tasks\)") as refused:
        await desk.tasks.move(desk.me, two.id, IN_PROGRESS)
    assert refused.value.extra == {"column": "in_progress", "limit": 1, "count": 1}
    for task in (one, two, three):
        if task is not one:
            await desk.tasks.move(desk.me, task.id, IN_PROGRESS)
        await desk.becomes(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    assert await desk.titles(IN_REVIEW) == ["one", "two", "three"]


async def test_failed_task_does_not_count_for_limit(desk: Desk) -> None:
    await desk.configure(wipLimits={"in_progress": 1})
    broken, waits = await desk.card("broken", start=True), await desk.card("waits", start=True)
    assert await desk.status(waits) == BACKLOG
    await desk.fails(broken, "It rains.")
    await desk.settle()
    assert await desk.titles(IN_PROGRESS) == ["broken", "waits"]
    page = await desk.tasks.get_board(
        desk.me, BoardFilter(), project_id=desk.project.id, only=IN_PROGRESS, offset=0, limit=9
    )
    assert [(one.total, one.failed) for one in page.columns] == [(2, 1)]
    assert await desk.tasks.count_by_column(desk.me) == {desk.project.id: ({IN_PROGRESS: 2}, 1)}
    with pytest.raises(ColumnFullError, match=r"is full \(1 of 1 tasks\)"):
        await desk.tasks.retry(desk.me, broken.id)
    await desk.tasks.stop(desk.me, waits.id)
    await desk.tasks.retry(desk.me, broken.id)
    assert await desk.tasks.count_by_column(desk.me) == {desk.project.id: ({IN_PROGRESS: 1, CANCELLED: 1}, 0)}


async def test_concurrent_moves_respect_limit(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    await desk.configure(wipLimits={"in_progress": 1})
    cards = [await desk.card(str(number)) for number in range(4)]
    moves = [desk.tasks.move(desk.me, card.id, IN_PROGRESS) for card in cards]
    outcomes = await asyncio.gather(*moves, return_exceptions=True)
    assert sum(isinstance(one, ColumnFullError) for one in outcomes) == 3
    assert len(await desk.titles(IN_PROGRESS)) == 1


async def test_needs_are_in_project_and_acyclic(desk: Desk) -> None:
    one = await desk.card("one")
    two = await desk.card("two", needs=[one])
    three = await desk.card("three", needs=[two])
    with pytest.raises(NeedsCycleError, match=f"{one.id} needs {three.id} needs {two.id} needs {one.id}"):
        await desk.tasks.update(desk.me, one.id, {}, needs=[three.id])
    with pytest.raises(NeedsCycleError, match=f"{one.id} needs {one.id}"):
        await desk.tasks.update(desk.me, one.id, {}, needs=[one.id])
    other = await desk.world.projects.create(desk.me, "other")
    foreign = await desk.tasks.create(desk.me, other.id, TaskFields(title="x"))
    with pytest.raises(InvalidInputError, match="in this project"):
        await desk.tasks.update(desk.me, one.id, {}, needs=[foreign.id])
    with pytest.raises(TaskBlockedError, match="'two', backlog") as blocked:
        await desk.tasks.move(desk.me, three.id, IN_PROGRESS)
    assert blocked.value.extra == {"blockedBy": [two.id]}


async def test_starts_when_last_need_is_done(desk: Desk) -> None:
    one, two = await desk.card("one"), await desk.card("two", start=True)
    waiting = await desk.card("waiting", needs=[one, two], start=True)
    unasked = await desk.card("unasked", needs=[one])
    (event,) = await desk.told("task.waiting")
    assert event.task_id == waiting.id
    assert event.data["code"] == "task_blocked"
    await desk.tasks.move(desk.me, one.id, DONE)
    await desk.settle()
    assert await desk.status(waiting) == BACKLOG
    await desk.becomes(two, AttemptStatus.MERGED, DONE)
    await desk.settle()
    assert await desk.status(waiting) == IN_PROGRESS
    assert await desk.status(unasked) == BACKLOG
    assert "startsFor" not in (await desk.tasks.get(desk.me, waiting.id)).source


async def test_starts_after_database_outage(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.db.retry.RETRY_S", 0.01)
    first = await desk.card()
    second = await desk.card(needs=[first], start=True)
    await desk.settle()
    lock_board = moves.lock_board

    async def away(tx: Transaction, project_id: str) -> Project:
        monkeypatch.setattr(moves, "lock_board", lock_board)
        raise DatabaseUnavailableError

    monkeypatch.setattr(moves, "lock_board", away)
    await desk.tasks.move(desk.me, first.id, DONE)
    await desk.settle()
    assert await desk.status(second) == IN_PROGRESS


async def test_waiting_tasks_start_by_priority(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    await desk.configure(wipLimits={"in_progress": 1})
    first = await desk.card("first", start=True)
    low, high = await desk.card("low", start=True), await desk.card("high", start=True)
    await desk.tasks.update(desk.me, high.id, {"priority": 5})
    await desk.becomes(first, AttemptStatus.IN_REVIEW, IN_REVIEW)
    await desk.settle()
    assert await desk.titles(IN_PROGRESS) == ["high"]
    await desk.tasks.update(desk.me, low.id, {}, start=False)
    await desk.tasks.stop(desk.me, high.id)
    await desk.settle()
    assert await desk.titles(IN_PROGRESS) == []
    await desk.world.projects.remove_member(desk.me, desk.project.id, desk.member.principal.user_id)
    await desk.tasks.update(desk.me, low.id, {}, start=True)
    assert await desk.titles(IN_PROGRESS) == ["low"]


@pytest.mark.parametrize("how", ["removed", "disabled"])
async def test_waiting_task_does_not_start_for_user_without_access(desk: Desk, how: str) -> None:
    """Nobody else would know what runs on their behalf."""
    mo, first = desk.member.principal, await desk.card("first")
    fields = TaskFields(title="later")
    later = await desk.tasks.create(mo, desk.project.id, fields, needs=[first.id], start=True)
    if how == "removed":
        await desk.world.projects.remove_member(desk.me, desk.project.id, mo.user_id)
    else:
        await desk.world.users.update(ROOT, mo.user_id, disabled=True)
    await desk.tasks.move(desk.me, first.id, DONE)
    await desk.settle()
    assert await desk.status(later) == BACKLOG
    assert await desk.attempts_of(later) == []
    source = (await desk.tasks.get(desk.me, later.id)).source
    assert "startsFor" not in source
    assert "mo, for whom the task was to start automatically" in source["startError"]
    (event,) = await desk.told("task.not_started")
    assert (event.task_id, event.data["code"]) == (later.id, "owner_without_access")
    assert event.data["reason"] == source["startError"]

    await desk.tasks.move(desk.me, later.id, IN_PROGRESS)
    assert [row.owner_id for row in await desk.attempts_of(later)] == [desk.me.user_id]
    assert "startError" not in (await desk.tasks.get(desk.me, later.id)).source


async def test_nothing_starts_automatically_for_disabled_owner(desk: Desk) -> None:
    """Such as a task from a labelled issue."""
    await desk.world.users.update(ROOT, desk.me.user_id, disabled=True)
    async with desk.world.database.transaction() as tx:
        project = await moves.lock_board(tx, desk.project.id)
        task = await desk.tasks.add(
            tx,
            project,
            TaskFields(title="x"),
            created_by=desk.me.user_id,
            source={"kind": "issue"},
            start_for=desk.me.user_id,
        )
    assert (task.status, await desk.attempts_of(task)) == (BACKLOG, [])
    assert "olga" in task.source["startError"]


@pytest.mark.parametrize("how", ["failed", "stopped"])
async def test_retry_replaces_attempts_of_member_who_left(desk: Desk, how: str) -> None:
    mo, me = desk.member.principal, desk.me
    task = await desk.tasks.create(mo, desk.project.id, TaskFields(title="x"), start=True)
    if how == "failed":
        await desk.fails(task, "lost access")
    else:
        await desk.tasks.stop(mo, task.id)
    await desk.world.projects.remove_member(me, desk.project.id, mo.user_id)
    with pytest.raises(ConflictError, match="without a message"):
        await desk.tasks.retry(me, task.id, message="Go on.")
    await desk.tasks.retry(me, task.id)
    assert await desk.status(task) == IN_PROGRESS
    first, second = await desk.attempts_of(task)
    assert (first.owner_id, first.status) == (mo.user_id, "archived")
    assert (second.owner_id, second.status) == (me.user_id, "queued")
    assert second.session_id != first.session_id


async def test_archived_project_starts_nothing(desk: Desk) -> None:
    task = await desk.card()
    await desk.world.projects.update(desk.me, desk.project.id, archived=True)
    with pytest.raises(ConflictError, match="archived"):
        await desk.tasks.move(desk.me, task.id, IN_PROGRESS)
    with pytest.raises(ConflictError, match="archived"):
        await desk.card()


async def test_retry_of_closed_task_starts_over(desk: Desk) -> None:
    """Its attempts were archived, so there is none to continue."""
    task = await desk.card(start=True)
    await desk.becomes(task, AttemptStatus.ARCHIVED, Column.CANCELLED)
    await desk.tasks.retry(desk.me, task.id)
    assert await desk.status(task) == Column.IN_PROGRESS
    assert [row.status for row in await desk.attempts_of(task)] == [AttemptStatus.ARCHIVED, AttemptStatus.QUEUED]


async def test_card_is_consistent_snapshot(desk: Desk) -> None:
    task = await desk.card(start=True)
    await desk.becomes(task, AttemptStatus.IN_REVIEW, IN_REVIEW)
    card = await desk.tasks.cards.get_card(task)  # as it was read earlier
    assert (card.task.status, card.attempts[0].attempt.status) == (IN_REVIEW, AttemptStatus.IN_REVIEW)
    await desk.tasks.delete(desk.me, task.id)
    assert (await desk.tasks.cards.get_card(task)).attempts == []


@pytest.mark.parametrize("status", ["running", "paused"])
async def test_task_from_session(desk: Desk, status: str) -> None:
    source = await desk.session(status)
    mo, fields = desk.member.principal, TaskFields(title="x")
    task = await desk.tasks.create(mo, desk.project.id, fields, from_session_id=source)
    assert task.from_session_id == source
    with pytest.raises(InvalidInputError, match="baseBranch"):
        await desk.tasks.update(mo, task.id, {"base_branch": "dev"})
    assert (await desk.tasks.update(mo, task.id, {"priority": 3})).from_session_id == source
    changed = await desk.tasks.update(mo, task.id, {"from_session_id": None, "base_branch": "dev"})
    assert (changed.from_session_id, changed.base_branch) == (None, "dev")
    assert [event.data["changed"] for event in await desk.told("task.updated")][-1] == [
        "base_branch",
        "from_session_id",
    ]


async def test_only_usable_sessions_of_the_project_are_sources_of_tasks(desk: Desk) -> None:
    other = await desk.world.projects.create(desk.me, "shop")  # the member does not see it
    source, foreign = await desk.session("running"), await desk.session("running", project_id=other.id)

    async def create(caller: Principal, session_id: str, **fields: Any) -> None:
        wanted = TaskFields(title="x", **fields)
        await desk.tasks.create(caller, desk.project.id, wanted, from_session_id=session_id)

    with pytest.raises(InvalidInputError, match="there is no session"):
        await create(desk.me, "ses_none")
    with pytest.raises(InvalidInputError, match="there is no session"):
        await create(desk.member.principal, foreign)
    with pytest.raises(InvalidInputError, match="is not in the task's project"):
        await create(desk.me, foreign)
    with pytest.raises(InvalidInputError, match="baseBranch"):
        await create(desk.me, source, base_branch="dev")
    for status in ("error", "destroyed"):
        with pytest.raises(ConflictError, match="Create a new sandbox for it first"):
            await create(desk.me, await desk.session(status))
    assert (await desk.tasks.list(desk.me, PageRequest())).items == []
