"""Dependencies between tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.db.models import Task, TaskNeed
from sandyard.platform.domain.tasks.errors import NeedsCycleError
from sandyard.platform.domain.tasks.fields import MAX_NEEDS
from sandyard.platform.domain.tasks.model import Column


async def replace_needs(session: AsyncSession, task: Task, needs: Iterable[str]) -> None:
    """Replace a task's needs, inside a transaction that holds the board, so that concurrent changes cannot create a cycle.

    Raises InvalidInputError for tasks that are not in the project, and NeedsCycleError.
    """
    wanted = list(dict.fromkeys(needs))
    if len(wanted) > MAX_NEEDS:
        raise InvalidInputError(f"A task can need at most {MAX_NEEDS} other tasks.")
    known = select(Task.id).where(Task.id.in_(wanted), Task.project_id == task.project_id)
    unknown = set(wanted) - set(await session.scalars(known))
    if unknown:
        raise InvalidInputError(f"There is no task {min(unknown)[:60]!r} in this project.")
    await _refuse_cycles(session, task, wanted)
    await session.execute(delete(TaskNeed).where(TaskNeed.task_id == task.id))
    session.add_all(TaskNeed(task_id=task.id, needs_id=needed) for needed in wanted)
    await session.flush()


async def list_needs(session: AsyncSession, task_ids: Sequence[str]) -> dict[str, list[Task]]:
    """Return the needs of each task, done or not. Tasks without needs are left out."""
    query = select(TaskNeed.task_id, Task).join(Task, Task.id == TaskNeed.needs_id)
    found: dict[str, list[Task]] = {}
    for task_id, needed in (await session.execute(query.where(TaskNeed.task_id.in_(task_ids)).order_by(Task.id))).all():
        found.setdefault(task_id, []).append(needed)
    return found


async def list_blockers(session: AsyncSession, task_id: str) -> list[tuple[str, str, str]]:
    """Return id, title and column of the task's needs that are not done. Cancelled tasks are not done."""
    query = select(Task.id, Task.title, Task.status).join(TaskNeed, Task.id == TaskNeed.needs_id)
    query = query.where(TaskNeed.task_id == task_id, Task.status != Column.DONE).order_by(Task.id)
    return [(row[0], row[1], row[2]) for row in (await session.execute(query)).all()]


async def _refuse_cycles(session: AsyncSession, task: Task, wanted: Sequence[str]) -> None:
    """Raise NeedsCycleError if the wanted needs lead back to the task."""
    came_from = dict.fromkeys(wanted, task.id)
    edge = list(wanted)
    while edge and task.id not in came_from:
        rows = select(TaskNeed.task_id, TaskNeed.needs_id).where(TaskNeed.task_id.in_(edge))
        edge = []
        for task_id, needed in (await session.execute(rows)).all():
            if needed not in came_from:
                came_from[needed] = task_id
                edge.append(needed)
    if task.id not in came_from:
        return
    circle = [task.id]
    while len(circle) == 1 or circle[-1] != task.id:
        circle.append(came_from[circle[-1]])
    raise NeedsCycleError(f"Tasks cannot need each other in a cycle: {' needs '.join(reversed(circle))}.")
