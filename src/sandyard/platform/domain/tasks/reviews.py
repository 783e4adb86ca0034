"""What happens to pull requests, and what that means for the tasks they came from.

Follows the feed of events from the last one it has dealt with, so that nothing said while the platform was away is missed, and each
thing counts once: what follows from an event is written with its number in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Attempt, Message, Project, Setting, Task
from sandyard.platform.domain.events.feed import Feed
from sandyard.platform.domain.events.model import EventView
from sandyard.platform.domain.forge.model import Review
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.tasks.attempts import Attempts
from sandyard.platform.domain.tasks.board import Tasks
from sandyard.platform.domain.tasks.model import OPEN_ATTEMPTS, AttemptStatus, Column
from sandyard.platform.domain.tasks.rows import locked, settle
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)

_SEEN = "reviews_seen"
_EVERYTHING = Principal("", "platform", "admin", "platform")
_RETRY_S = 5.0
_NOTED_EVERY = 5000
"""So many events may have to be read again after a start."""
_KINDS = frozenset(
    f"pull_request.{kind}" for kind in ("merged", "closed", "checks_failed", "reviewed", "commented")
) | {"task.moved"}
_RESTING = (AttemptStatus.READY, AttemptStatus.IN_REVIEW)
_LISTENING = (AttemptStatus.QUEUED, AttemptStatus.RUNNING, AttemptStatus.IN_REVIEW)


class Reviews:
    def __init__(self, database: Database, feed: Feed, attempts: Attempts, tasks: Tasks) -> None:
        self._database = database
        self._feed = feed
        self._attempts = attempts
        self._board = tasks
        self._tasks = TaskSet("reviews")

    def start(self) -> None:
        self._tasks.spawn(self._follow())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _follow(self) -> None:
        while not self._feed.closed:
            try:
                noted = await self._seen()
                subscription = await self._feed.subscribe(_EVERYTHING, after=noted)
                while not subscription.ended:
                    for event in await subscription.batch():
                        if event.kind in _KINDS:
                            await self._surely(event)
                    if subscription.position - noted > _NOTED_EVERY:
                        noted = subscription.position
                        await self._note(noted)
            except SandyardError as error:
                log.warning("reviews_interrupted", reason=error.message)
            except Exception as error:
                log.error("reviews_crashed", exc=error)  # noqa: TRY400
            await asyncio.sleep(_RETRY_S)

    async def _seen(self) -> int:
        """What is there when this installation first looks is nobody's news."""
        async with self._database.transaction() as tx:
            mark = await tx.session.get(Setting, _SEEN)
            if mark is None:
                mark = Setting(name=_SEEN, value=str(self._feed.last))
                tx.add(mark)
            return int(mark.value)

    async def _surely(self, event: EventView) -> None:
        """One that cannot be dealt with must not be in the way of all others for ever."""
        try:
            await self._deal_with(event)
        except SandyardError:
            raise
        except Exception as error:
            log.error("review_skipped", seq=event.seq, kind=event.kind, exc=error)  # noqa: TRY400
            await self._note(event.seq)

    async def _note(self, seq: int) -> None:
        """All up to here are dealt with."""
        async with self._database.transaction() as tx:
            mark = await tx.session.get(Setting, _SEEN, with_for_update=True)
            if mark is not None and seq > int(mark.value):
                mark.value = str(seq)

    async def _deal_with(self, event: EventView) -> None:
        left: list[Attempt] = []
        async with self._database.transaction() as tx:
            mark = await tx.session.get(Setting, _SEEN, with_for_update=True)
            if mark is None or event.seq <= int(mark.value):
                return
            mark.value = str(event.seq)
            if event.kind == "task.moved":
                left = await self._moved(tx, event)
            elif event.session_id is not None:
                query = select(Attempt.id).where(Attempt.session_id == event.session_id)
                attempt_id = await tx.session.scalar(query)
                found = await locked(tx, attempt_id) if attempt_id is not None else None
                if found is not None:
                    left = await self._heard(tx, event, *found)
        for row in left:
            self._attempts.leave(row.session_id, row.project_id, archive=row.status == AttemptStatus.ARCHIVED)
        self._attempts.nudge()

    async def _moved(self, tx: Transaction, event: EventView) -> list[Attempt]:
        """A person has called the task done: what waits waits no longer, and what works on it ends."""
        if event.data.get("to") != Column.DONE or event.task_id is None:
            return []
        task = await tx.session.get(Task, event.task_id, with_for_update=True)
        if task is None or task.status != Column.DONE:
            return []
        left = (*OPEN_ATTEMPTS, AttemptStatus.FAILED)
        query = select(Attempt).where(Attempt.task_id == event.task_id, Attempt.status.in_(left))
        rows = list((await tx.session.scalars(query.with_for_update())).all())
        for row in rows:
            if row.status == AttemptStatus.RUNNING:
                row.cancel_at = row.cancel_at or utc_now()  # its round sees that, and leaves by itself
            elif row.status != AttemptStatus.FAILED:
                settle(tx, row, AttemptStatus.ARCHIVED)
        return [row for row in rows if row.status != AttemptStatus.RUNNING]

    async def _heard(self, tx: Transaction, event: EventView, task: Task, attempt: Attempt) -> list[Attempt]:
        if event.kind == "pull_request.merged":
            return await self._merged(tx, task, attempt)
        if event.kind == "pull_request.closed":
            return await self._closed(tx, task, attempt)
        if attempt.status in _LISTENING and task.status in (Column.IN_PROGRESS, Column.IN_REVIEW):
            await self._said(tx, event, task, attempt)
        return []

    async def _merged(self, tx: Transaction, task: Task, attempt: Attempt) -> list[Attempt]:
        settle(tx, attempt, AttemptStatus.MERGED)
        task.error = None
        await self._board.advance(tx, task, Column.DONE)
        return [attempt]

    async def _closed(self, tx: Transaction, task: Task, attempt: Attempt) -> list[Attempt]:
        """Somebody does not want it, whatever it does just now. With nothing else to review, the task is over."""
        if AttemptStatus(attempt.status).over:
            return []
        settle(tx, attempt, AttemptStatus.ARCHIVED, error="Its pull request was closed without being merged.")
        others = select(Attempt.id).where(Attempt.task_id == task.id, Attempt.status.in_((*_LISTENING, *_RESTING)))
        if (await tx.session.scalars(others.limit(1))).first() is None:
            await self._board.advance(tx, task, Column.CANCELLED, reason="Its pull request was closed.")
        return [attempt]

    async def _said(self, tx: Transaction, event: EventView, task: Task, attempt: Attempt) -> None:
        """A failed check, a requested change, or a comment that names the agent goes to it."""
        project = await tx.session.get(Project, task.project_id)
        if project is None:
            return
        settings, automatic = ProjectSettings.of(project).tasks, event.kind == "pull_request.checks_failed"
        if automatic:
            rounds = int(attempt.detail.get("automatic", 0))
            if rounds >= settings.feedback_rounds:
                return
            attempt.detail = {**attempt.detail, "automatic": rounds + 1}
        elif not _is_for_agent(event, settings.mention, attempt.agent):
            return
        words = await self._words(tx, event)
        self._attempts.send_back(tx, task, attempt, words, event.data.get("author") or "github", automatic=automatic)
        await self._board.advance(tx, task, Column.IN_PROGRESS)

    async def _words(self, tx: Transaction, event: EventView) -> str:
        """In full, as the session got them: an event has only their beginning."""
        wanted = {run.get("remarkId") for run in event.data.get("runs", [])} | {event.data.get("remarkId")}
        query = select(Message.parts).where(Message.session_id == event.session_id, Message.role == "system")
        newest = (await tx.session.scalars(query.order_by(Message.id.desc()).limit(20))).all()
        parts = [
            part
            for parts in newest
            for part in parts
            if part.get("type") == "feedback" and part.get("remarkId") in wanted
        ]
        said = [_quoted(part) for part in parts] or [_quoted(event.data)]
        return "\n\n".join([_HEADS[event.kind].format(number=event.data.get("number")), *said])


_HEADS = {
    "pull_request.checks_failed": "Checks of pull request #{number} have failed. Please mend what they found.",
    "pull_request.reviewed": "Changes were requested on pull request #{number}. Please make them.",
    "pull_request.commented": "Somebody has asked you for something on pull request #{number}.",
}


def _is_for_agent(event: EventView, mention: str, agent: str) -> bool:
    text = str(event.data.get("text") or "").lower()
    if event.kind == "pull_request.reviewed":
        verdict = event.data.get("verdict") or event.data.get("review")
        return str(verdict).lower() == Review.CHANGES_REQUESTED or _names(text, mention, agent)
    return _names(text, mention, agent)


def _names(text: str, mention: str, agent: str) -> bool:
    return mention.lower() in text or f"@{agent.lower()}" in text


def _quoted(said: Mapping[str, Any]) -> str:
    where = f" on {said['path']}" + (f", line {said['line']}" if said.get("line") else "") if said.get("path") else ""
    text = str(said.get("text") or "").strip() or "(without words)"
    quoted = "\n".join(f"> {line}" for line in text.splitlines())
    return f"{said.get('author') or 'A check'}{where}:\n{quoted}"
