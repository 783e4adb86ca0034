"""Positions of tasks in their columns. Positions are numbers with gaps, so that most moves write one row."""

from __future__ import annotations

import functools

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from sandyard.platform.db.models import Task
from sandyard.platform.domain.tasks.model import Column

GAP = 1 << 10
LARGEST = (1 << 31) - 1
NEWEST_FIRST = (Column.DONE, Column.CANCELLED)
"""Columns in which a moved task goes to the top; in the others it goes to the end."""


def is_failed() -> ColumnElement[bool]:
    """Return the condition for tasks in progress whose attempts have all failed."""
    return and_(Task.status == Column.IN_PROGRESS, Task.error.is_not(None))


async def choose_position(session: AsyncSession, task: Task, column: Column, index: int | None = None) -> int:
    """Return the position number for the task at `index` of the column, not counting itself.

    None means where new tasks go; larger indexes mean the end. Other tasks may be renumbered, in the same order.
    """
    others = _is_other(task, column)
    if index is None:
        index = 0 if column in NEWEST_FIRST else LARGEST
    before, after = await _find_neighbours(session, others, index)
    number = _find_gap(before, after)
    if number is None:
        rows = list(await session.scalars(select(Task).where(others).order_by(Task.position, Task.id)))
        for count, row in enumerate(rows):
            row.position = (count if count < index else count + 1) * GAP
        number = min(index, len(rows)) * GAP
    return number


async def get_index(session: AsyncSession, task: Task) -> int:
    """Return the number of tasks before it in its column, as stored."""
    return int(await session.scalar(select(select_index()).where(Task.id == task.id)) or 0)


@functools.cache  # building it takes SQLAlchemy longer than it takes SQLite to execute it
def select_index() -> ScalarSelect[int]:
    """Return a subquery for a query of tasks."""
    other = aliased(Task)
    before = or_(other.position < Task.position, and_(other.position == Task.position, other.id < Task.id))
    same = and_(other.project_id == Task.project_id, other.status == Task.status)
    return select(func.count()).select_from(other).where(same, before).correlate(Task).scalar_subquery()


def _is_other(task: Task, column: Column) -> ColumnElement[bool]:
    return and_(Task.project_id == task.project_id, Task.status == column, Task.id != task.id)


async def _find_neighbours(
    session: AsyncSession, others: ColumnElement[bool], index: int
) -> tuple[int | None, int | None]:
    if index >= LARGEST:
        return await session.scalar(select(func.max(Task.position)).where(others)), None
    query = select(Task.position).where(others).order_by(Task.position, Task.id)
    found = list(await session.scalars(query.offset(max(index - 1, 0)).limit(2 if index else 1)))
    if index == 0:
        return None, found[0] if found else None
    if not found:  # beyond the end
        return await session.scalar(select(func.max(Task.position)).where(others)), None
    return found[0], found[1] if len(found) > 1 else None


def _find_gap(before: int | None, after: int | None) -> int | None:
    """Return a number between the two, or None if there is no gap."""
    if before is None and after is None:
        return 0
    if before is None:
        assert after is not None
        number = after - GAP
    elif after is None:
        number = before + GAP
    else:
        number = (before + after) // 2
        if number in (before, after):
            return None
    return number if -LARGEST <= number <= LARGEST else None
