"""The board: the number of tasks in each column, and a page of them.

Without a filter, only the tasks on the page are read, and the rest is counted. With one, position and filter fields are read for all tasks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import ColumnElement, Select, String, and_, cast, exists, func, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from sandyard.kit.pacing import take_turn
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Ask, Attempt, Project, PullRequest, Session, Task
from sandyard.platform.domain.agents.model import AskStatus
from sandyard.platform.domain.tasks.cards import Card, Cards
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.positions import is_failed

_ACTIVE_ATTEMPTS = (AttemptStatus.RUNNING, AttemptStatus.QUEUED)
_MOST_RELEVANT_FIRST = (
    *(AttemptStatus.RUNNING, AttemptStatus.QUEUED, AttemptStatus.READY, AttemptStatus.IN_REVIEW),
    *(AttemptStatus.MERGED, AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.ARCHIVED),
)
"""Which of several attempts represents the task, most relevant first. The web application uses the same order."""
MAX_WORDS = 8
"""Maximum number of different words in a search; later words are ignored."""
SEARCHED_CHARACTERS = 10_000
"""Searched characters of a description."""
RANGES_AT_ONCE = 50
"""Ranges of columns read in one query. SQLite allows 500."""
_ROWS = 500
"""Rows processed between two pauses for other tasks."""
_WITHOUT_DESCRIPTION = select(Task).options(defer(Task.description))


class Show(StrEnum):
    """Filter by condition. NEEDS_YOU: an agent waits for an answer, or a person has to pick an attempt."""

    NEEDS_YOU = "needs-you"
    RUNNING = "running"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """All given conditions must hold. `words`: see `match_words`. `agent`: has worked, works or will work on it."""

    words: str = ""
    agent: str | None = None
    show: Show | None = None


@dataclass(frozen=True, slots=True)
class ColumnPage:
    """A page of a column.

    `total` tasks are in the column, `matching` of them match the filter, and `failed` of them have failed: see `is_failed`. `cards` are
    those on the page.
    """

    column: Column
    total: int
    matching: int
    failed: int
    cards: Sequence[Card]


@dataclass(frozen=True, slots=True)
class BoardPage:
    """A page of the board. `titles`: of tasks that block tasks on the page but are not on it."""

    columns: Sequence[ColumnPage]
    titles: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _TaskPlace:
    """The position of a task on the board. `index`: in the column of its project, starting at 0."""

    id: str
    project_id: str
    column: Column
    index: int


@dataclass(frozen=True, slots=True)
class _Range:
    """The tasks `start` to `end` (exclusive) of a project's column."""

    project_id: str
    column: Column
    start: int
    end: int


@dataclass(slots=True)
class _TaskFacts:
    """The properties of a task that filters use. `attempts`: agent, status and session of each, oldest first."""

    column: Column
    agents: set[str]
    has_error: bool
    attempts: list[tuple[str, AttemptStatus, str]] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return any(status in _ACTIVE_ATTEMPTS for _, status, _ in self.attempts)

    @property
    def has_failed(self) -> bool:
        if self.has_error:
            return True
        if self.is_running or self.column != Column.IN_PROGRESS or not self.attempts:
            return False
        return min((status for _, status, _ in self.attempts), key=_MOST_RELEVANT_FIRST.index) == AttemptStatus.FAILED

    def needs_person(self, asked: set[str]) -> bool:
        if any(status in _ACTIVE_ATTEMPTS and session in asked for _, status, session in self.attempts):
            return True
        ready = any(status == AttemptStatus.READY for _, status, _ in self.attempts)
        return self.column == Column.IN_REVIEW and ready and not self.is_running


async def read_board(
    database: Database,
    cards: Cards,
    seen: ColumnElement[bool],
    asks: ColumnElement[bool],
    wanted: BoardFilter,
    *,
    user_id: str,
    only: Column | None,
    offset: int,
    limit: int,
) -> BoardPage:
    """Read `limit` tasks of each column, or of one column, from `offset` on.

    `seen` is the condition for the board's tasks, `asks` the one for sessions whose questions count. With several projects:
    the first task of each, then the second of each, and so on.
    """
    columns = [only] if only is not None else list(Column)
    is_filtered = wanted != BoardFilter()
    async with database.searching(user_id) if is_filtered else database.reading() as session:
        counts = await _count_tasks(session, seen)
        failed = await session.scalar(select(func.count()).select_from(Task).where(seen, is_failed())) or 0
        totals = {column: sum(counts[column].values()) for column in columns}
        if is_filtered:
            found = await _list_matching_by_column(session, seen, asks, wanted, columns)
            matching = {column: len(ids) for column, ids in found.items()}
            page = {column: ids[offset : offset + limit] for column, ids in found.items()}
        else:
            matching = totals
            page = await _read_page(session, {column: counts[column] for column in columns}, offset, limit)
        ids = [task_id for found in page.values() for task_id in found]
        rows = {row.id: row for row in await session.scalars(_WITHOUT_DESCRIPTION.where(Task.id.in_(ids)))}
    gathered = await cards.list_cards([rows[task_id] for task_id in ids if task_id in rows])
    by_id = {card.task.id: card for card in gathered}
    blockers = {blocker for card in gathered for blocker in card.blocked_by} - by_id.keys()
    return BoardPage(
        columns=[
            ColumnPage(
                column=column,
                total=totals[column],
                matching=matching[column],
                failed=failed if column == Column.IN_PROGRESS else 0,
                cards=[by_id[task_id] for task_id in page[column] if task_id in by_id],
            )
            for column in columns
        ],
        titles=await cards.get_titles(sorted(blockers)),
    )


async def _count_tasks(session: AsyncSession, seen: ColumnElement[bool]) -> dict[Column, dict[str, int]]:
    """Return, by column and project, the number of tasks. The index has all that is needed."""
    counts: dict[Column, dict[str, int]] = {column: {} for column in Column}
    query = select(Task.project_id, Task.status, func.count()).where(seen).group_by(Task.project_id, Task.status)
    for project_id, status, count in await session.execute(query):
        counts[Column(status)][project_id] = count
    return counts


async def _read_page(
    session: AsyncSession, counts: Mapping[Column, Mapping[str, int]], offset: int, limit: int
) -> dict[Column, list[str]]:
    """Return the ids of the tasks on the page, by column and in order."""
    ranges = [
        part for column, of_column in counts.items() for part in _split_range(column, of_column, offset, offset + limit)
    ]
    found: dict[tuple[str, Column], list[tuple[int, str]]] = {}
    for at in range(0, len(ranges), RANGES_AT_ONCE):
        query = union_all(*(_select_range(part) for part in ranges[at : at + RANGES_AT_ONCE]))
        for project_id, status, position, id_ in await session.execute(query):
            found.setdefault((project_id, Column(status)), []).append((position, id_))
    places = [
        _TaskPlace(id_, part.project_id, part.column, index)
        for part in ranges
        for index, (_, id_) in enumerate(sorted(found.get((part.project_id, part.column), ())), part.start)
    ]
    return _group_by_column(places, list(counts))


def _split_range(column: Column, counts: Mapping[str, int], start: int, end: int) -> list[_Range]:
    """Return which tasks of each project are among the tasks `start` to `end` of the whole column."""
    before, until = _compute_shares(counts, start), _compute_shares(counts, end)
    return [
        _Range(project, column, before[project], until[project])
        for project in sorted(counts)
        if before[project] < until[project]
    ]


def _compute_shares(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """Return how many of the column's first `number` tasks each project has, if the projects take turns in the order of their ids."""
    rounds = range(max(counts.values(), default=0) + 1)
    full = (
        bisect_right(rounds, number, key=lambda round_count: sum(min(count, round_count) for count in counts.values()))
        - 1
    )
    shares = {project: min(count, full) for project, count in counts.items()}
    longer = [project for project in sorted(counts) if counts[project] > full]
    for project in longer[: number - sum(shares.values())]:
        shares[project] += 1
    return shares


def _select_range(wanted: _Range) -> Select[str, str, int, str]:
    query = select(Task.project_id, Task.status, Task.position, Task.id)
    query = query.where(Task.project_id == wanted.project_id, Task.status == wanted.column)
    query = query.order_by(Task.position, Task.id).offset(wanted.start).limit(wanted.end - wanted.start)
    return select(query.subquery())


def _group_by_column(places: Sequence[_TaskPlace], columns: Sequence[Column]) -> dict[Column, list[str]]:
    """Return the ids in each column: the first task of each project, then the second of each, and so on."""
    found: dict[Column, list[str]] = {column: [] for column in columns}
    for place in sorted(places, key=lambda place: (place.index, place.project_id)):
        found[place.column].append(place.id)
    return found


async def _list_matching_by_column(
    session: AsyncSession,
    seen: ColumnElement[bool],
    asks: ColumnElement[bool],
    wanted: BoardFilter,
    columns: Sequence[Column],
) -> dict[Column, list[str]]:
    """Return the ids of all matching tasks, by column and in order."""
    matching = await _find_matching(session, seen, asks, wanted)
    index = func.row_number().over(partition_by=(Task.project_id, Task.status), order_by=(Task.position, Task.id))
    query = select(Task.id, Task.project_id, Task.status, index).where(seen, Task.status.in_(columns))
    if len(matching) <= _ROWS:
        all_places = query.subquery()
        query = select(all_places).where(all_places.c.id.in_(matching))
    places: list[_TaskPlace] = []
    for rows in (await session.execute(query)).partitions(_ROWS):
        await take_turn()
        places += [
            _TaskPlace(id_, project, Column(status), n - 1) for id_, project, status, n in rows if id_ in matching
        ]
    return _group_by_column(places, columns)


async def _find_matching(
    session: AsyncSession, seen: ColumnElement[bool], asks: ColumnElement[bool], wanted: BoardFilter
) -> set[str]:
    """Return the ids of matching tasks."""
    found: set[str] | None = None
    if words := match_words(wanted.words):
        found = set(await session.scalars(select(Task.id).where(seen, *words)))
    if wanted.agent is not None or wanted.show is not None:
        asked = await _list_sessions_with_questions(session, asks) if wanted.show == Show.NEEDS_YOU else set[str]()
        predicates: dict[Show, Callable[[_TaskFacts], bool]] = {
            Show.RUNNING: lambda facts: facts.is_running,
            Show.FAILED: lambda facts: facts.has_failed,
            Show.NEEDS_YOU: lambda facts: facts.needs_person(asked),
        }
        known = {
            id_
            for id_, facts in (await _load_facts(session, _narrow_condition(seen, wanted.show))).items()
            if (wanted.agent is None or wanted.agent in facts.agents)
            and (wanted.show is None or predicates[wanted.show](facts))
        }
        found = known if found is None else found & known
    return found if found is not None else set(await session.scalars(select(Task.id).where(seen)))


def match_words(text: str) -> list[ColumnElement[bool]]:
    """Return one condition for each of the first MAX_WORDS different words of `text`."""
    return [_match_word(word) for word in list(dict.fromkeys(text.lower().split()))[:MAX_WORDS]]


def _match_word(word: str) -> ColumnElement[bool]:
    """Match the title, the beginning of the description, the branch or number of a pull request, or the id."""
    pull = PullRequest
    named = or_(
        pull.head_branch.icontains(word, autoescape=True),
        ("#" + cast(pull.number, String)).icontains(word, autoescape=True),
    )
    return or_(
        Task.id == word,
        Task.title.icontains(word, autoescape=True),
        func.substr(Task.description, 1, SEARCHED_CHARACTERS).icontains(word, autoescape=True),
        exists().where(pull.task_id == Task.id, named),
    )


async def _list_sessions_with_questions(session: AsyncSession, asks: ColumnElement[bool]) -> set[str]:
    """Return the sessions in which something waits for a person."""
    query = select(Ask.session_id).join(Session, Session.id == Ask.session_id)
    return set(await session.scalars(query.where(Ask.status == AskStatus.PENDING, asks)))


def _narrow_condition(seen: ColumnElement[bool], show: Show | None) -> ColumnElement[bool]:
    """Return a condition for tasks that `show` may include, so that most of a large board is not read."""
    at_work = Task.id.in_(select(Attempt.task_id).where(Attempt.status.in_(_ACTIVE_ATTEMPTS)))
    if show == Show.RUNNING:
        return and_(seen, at_work)
    if show == Show.FAILED:
        return and_(seen, or_(Task.error.is_not(None), Task.status == Column.IN_PROGRESS))
    if show == Show.NEEDS_YOU:
        return and_(seen, or_(at_work, Task.status == Column.IN_REVIEW))
    return seen


async def _load_facts(session: AsyncSession, seen: ColumnElement[bool]) -> dict[str, _TaskFacts]:
    of_board = Project.id.in_(select(Task.project_id).where(seen))
    defaults = {
        id_: ((settings or {}).get("agent") or {}).get("default")
        for id_, settings in (await session.execute(select(Project.id, Project.settings).where(of_board)))
    }
    query = select(Task.id, Task.project_id, Task.status, Task.agent, Task.attempts, Task.error).where(seen)
    found: dict[str, _TaskFacts] = {}
    chosen: dict[str, str] = {}
    for rows in (await session.execute(query)).partitions(_ROWS):
        await take_turn()
        for id_, project, status, agent, wanted, error in rows:
            agents = {name for attempt in wanted or [] if (name := attempt.get("agent"))}
            found[id_] = _TaskFacts(Column(status), agents, bool(error))
            takes_default = not wanted or any(not attempt.get("agent") for attempt in wanted)
            if takes_default and (default := agent or defaults.get(project)):
                chosen[id_] = default
    attempts = select(Attempt.task_id, Attempt.agent, Attempt.status, Attempt.session_id).join(
        Task, Task.id == Attempt.task_id
    )
    ordered = attempts.where(seen).order_by(Attempt.task_id, Attempt.number)
    for rows_of_attempts in (await session.execute(ordered)).partitions(_ROWS):
        await take_turn()
        for task_id, agent, status, session_id in rows_of_attempts:
            if (facts := found.get(task_id)) is None:
                continue  # it was created after the tasks were read
            facts.attempts.append((agent, AttemptStatus(status), session_id))
            facts.agents.add(agent)
            chosen.pop(task_id, None)  # it was started with this agent
    for id_, agent in chosen.items():
        found[id_].agents.add(agent)
    return found
