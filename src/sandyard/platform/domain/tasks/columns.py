"""The board: the number of tasks in each column, and a page of them.

Position and filter fields are read for all tasks; everything else only for the tasks on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import ColumnElement, String, cast, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Ask, Attempt, Project, PullRequest, Session, Task
from sandyard.platform.domain.agents.model import AskStatus
from sandyard.platform.domain.tasks.cards import Card, Cards
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.placing import is_failed

_AT_WORK = (AttemptStatus.RUNNING, AttemptStatus.QUEUED)
_TELLING = (
    *(AttemptStatus.RUNNING, AttemptStatus.QUEUED, AttemptStatus.READY, AttemptStatus.IN_REVIEW),
    *(AttemptStatus.MERGED, AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.ARCHIVED),
)
"""Which of several attempts represents the task, most relevant first. The web application uses the same order."""
MAX_WORDS = 8
"""Maximum number of different words in a search; later words are ignored."""
SEARCHED_CHARACTERS = 10_000
"""Searched characters of a description."""
_WITHOUT_DESCRIPTION = select(Task).options(defer(Task.description))


class Show(StrEnum):
    """Filter by condition. NEEDS_YOU: an agent waits for an answer, or a person has to pick an attempt."""

    NEEDS_YOU = "needs-you"
    RUNNING = "running"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """All given conditions must hold. `words`: see `has_words`. `agent`: works, worked or would work on it."""

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
class _Place:
    """The place of a task. `index`: in the column of its project, starting at 0."""

    id: str
    project_id: str
    column: Column
    index: int
    failed: bool


@dataclass(slots=True)
class _Facts:
    """What filters need to know of a task. `attempts`: agent, status and session of each, oldest first."""

    column: Column
    agents: set[str]
    failed: bool
    attempts: list[tuple[str, AttemptStatus, str]] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return any(status in _AT_WORK for _, status, _ in self.attempts)

    @property
    def has_failed(self) -> bool:
        if self.failed:
            return True
        if self.running or self.column != Column.IN_PROGRESS or not self.attempts:
            return False
        return min((status for _, status, _ in self.attempts), key=_TELLING.index) == AttemptStatus.FAILED

    def needs_person(self, asked: set[str]) -> bool:
        if any(status in _AT_WORK and session in asked for _, status, session in self.attempts):
            return True
        ready = any(status == AttemptStatus.READY for _, status, _ in self.attempts)
        return self.column == Column.IN_REVIEW and ready and not self.running


async def read_board(
    database: Database,
    cards: Cards,
    seen: ColumnElement[bool],
    asks: ColumnElement[bool],
    wanted: BoardFilter,
    *,
    who: str,
    only: Column | None,
    offset: int,
    limit: int,
) -> BoardPage:
    """Read `limit` tasks of each column, or of one column, from `offset` on.

    `seen` is the condition for the board's tasks, `asks` the one for sessions whose questions count, `who` the user. With several projects:
    the first task of each, then the second of each, and so on.
    """
    async with database.searching(who) if wanted.words else database.reading() as session:
        places = await _places(session, seen)
        matching = await _matching(session, seen, asks, wanted)
        shown = {
            column: [one for one in places if one.column == column and (matching is None or one.id in matching)]
            for column in ([only] if only is not None else list(Column))
        }
        page = {column: found[offset : offset + limit] for column, found in shown.items()}
        ids = [one.id for found in page.values() for one in found]
        rows = {row.id: row for row in await session.scalars(_WITHOUT_DESCRIPTION.where(Task.id.in_(ids)))}
    gathered = await cards.of([rows[one] for one in ids if one in rows])
    by_id = {card.task.id: card for card in gathered}
    blockers = {one for card in gathered for one in card.blocked_by} - by_id.keys()
    return BoardPage(
        columns=[
            ColumnPage(
                column=column,
                total=sum(one.column == column for one in places),
                matching=len(shown[column]),
                failed=sum(one.column == column and one.failed for one in places),
                cards=[by_id[one.id] for one in found if one.id in by_id],
            )
            for column, found in page.items()
        ],
        titles=await cards.titles(sorted(blockers)),
    )


async def _places(session: AsyncSession, seen: ColumnElement[bool]) -> list[_Place]:
    index = func.row_number().over(partition_by=(Task.project_id, Task.status), order_by=(Task.position, Task.id))
    rows = await session.execute(select(Task.id, Task.project_id, Task.status, index, is_failed()).where(seen))
    places = [
        _Place(id_, project, Column(status), number - 1, bool(failed)) for id_, project, status, number, failed in rows
    ]
    return sorted(places, key=lambda one: (one.index, one.project_id))


async def _matching(
    session: AsyncSession, seen: ColumnElement[bool], asks: ColumnElement[bool], wanted: BoardFilter
) -> set[str] | None:
    """Return the ids of matching tasks; None means all match."""
    found: set[str] | None = None
    if words := has_words(wanted.words):
        found = set(await session.scalars(select(Task.id).where(seen, *words)))
    if wanted.agent is not None or wanted.show is not None:
        asked = await _asked(session, asks) if wanted.show == Show.NEEDS_YOU else set[str]()
        tests: dict[Show, Callable[[_Facts], bool]] = {
            Show.RUNNING: lambda facts: facts.running,
            Show.FAILED: lambda facts: facts.has_failed,
            Show.NEEDS_YOU: lambda facts: facts.needs_person(asked),
        }
        known = {
            id_
            for id_, facts in (await _facts(session, seen)).items()
            if (wanted.agent is None or wanted.agent in facts.agents)
            and (wanted.show is None or tests[wanted.show](facts))
        }
        found = known if found is None else found & known
    return found


def has_words(text: str) -> list[ColumnElement[bool]]:
    """Return one condition for each of the first MAX_WORDS different words of `text`."""
    return [_has_word(word) for word in list(dict.fromkeys(text.lower().split()))[:MAX_WORDS]]


def _has_word(word: str) -> ColumnElement[bool]:
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


async def _asked(session: AsyncSession, asks: ColumnElement[bool]) -> set[str]:
    """Return the sessions in which something waits for a person."""
    query = select(Ask.session_id).join(Session, Session.id == Ask.session_id)
    return set(await session.scalars(query.where(Ask.status == AskStatus.PENDING, asks)))


async def _facts(session: AsyncSession, seen: ColumnElement[bool]) -> dict[str, _Facts]:
    of_board = Project.id.in_(select(Task.project_id).where(seen))
    defaults = {
        id_: ((settings or {}).get("agent") or {}).get("default")
        for id_, settings in (await session.execute(select(Project.id, Project.settings).where(of_board)))
    }
    query = select(Task.id, Task.project_id, Task.status, Task.agent, Task.attempts, Task.error).where(seen)
    found: dict[str, _Facts] = {}
    chosen: dict[str, str] = {}
    for id_, project, status, agent, wanted, error in await session.execute(query):
        agents = {one["agent"] for one in wanted or [] if one.get("agent")}
        found[id_] = _Facts(Column(status), agents, bool(error))
        takes_default = not wanted or any(not one.get("agent") for one in wanted)
        if takes_default and (default := agent or defaults.get(project)):
            chosen[id_] = default
    attempts = select(Attempt.task_id, Attempt.agent, Attempt.status, Attempt.session_id).join(
        Task, Task.id == Attempt.task_id
    )
    for task_id, agent, status, session_id in await session.execute(
        attempts.where(seen).order_by(Attempt.task_id, Attempt.number)
    ):
        if (facts := found.get(task_id)) is None:
            continue  # it was created after the tasks were read
        facts.attempts.append((agent, AttemptStatus(status), session_id))
        facts.agents.add(agent)
        chosen.pop(task_id, None)  # it was started with this agent
    for id_, agent in chosen.items():
        found[id_].agents.add(agent)
    return found
