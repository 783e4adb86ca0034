"""Stored pull requests: who may see which, and changes with their events and messages in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, String, literal, select, true
from sqlalchemy.exc import IntegrityError

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.text import make_storable
from sandyard.kit.times import rfc3339
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Message, Project, PullRequest, Session
from sandyard.platform.db.models.git_details import CheckRunFields, StoredRemark
from sandyard.platform.db.models.message_parts import FeedbackPart
from sandyard.platform.domain.forge.feedback import MAX_TEXT, find_news
from sandyard.platform.domain.forge.markdown import truncate
from sandyard.platform.domain.forge.model import CheckRun, ForgeKind, Pull, PullState, Remark
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects import service as projects
from sandyard.platform.domain.users.model import Principal

MAX_PARTS = 50
"""Maximum number of parts of one message."""
MAX_SHOWN = 100
"""Maximum number of remarks and runs stored for display, newest first."""
_VISIBLE_FIELDS = ("title", "state", "draft", "base_branch", "head_commit", "mergeable", "review", "checks")


def is_visible_to(caller: Principal) -> ColumnElement[bool]:
    """Return the condition for pull requests the user may see: those of their projects.

    Not those of their own sessions in projects that they have left, which would show them new comments.
    """
    if caller.is_admin:
        return true()
    return PullRequest.project_id.in_(select(Project.id).where(projects.is_visible_to(caller)))


class PullRequestReader:
    """Finds stored pull requests. Methods with a `caller` return only those that the caller may see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get_by_id(self, caller: Principal, pull_id: str) -> PullRequest:
        found = await self._list_newest(caller, PullRequest.id == pull_id)
        if not found:
            raise NotFoundError(f"There is no pull request {pull_id[:60]!r}.")
        return found[0]

    async def get_by_number(self, caller: Principal, project_id: str | None, number: int) -> PullRequest:
        """Return a pull request by number. Raises ConflictError if several of the user's projects have it and none is named."""
        conditions = [PullRequest.number == number]
        if project_id is not None:
            conditions.append(PullRequest.project_id == project_id)
        found = await self._list_newest(caller, *conditions)
        if not found:
            raise NotFoundError(f"There is no pull request {number}.")
        if len(found) > 1:
            raise ConflictError(f"Several of your projects have a pull request {number}. Set projectId.")
        return found[0]

    async def get_newest(self, caller: Principal, condition: ColumnElement[bool], subject: str) -> PullRequest:
        found = await self._list_newest(caller, condition)
        if not found:
            raise NotFoundError(f"{subject} has no pull request.")
        return found[0]

    async def _list_newest(self, caller: Principal, *conditions: ColumnElement[bool]) -> list[PullRequest]:
        """Return the newest match, and a second one if there are several."""
        query = select(PullRequest).where(is_visible_to(caller), *conditions).order_by(PullRequest.id.desc()).limit(2)
        async with self._database.reading() as session:
            return list(await session.scalars(query))

    async def list_page(
        self, caller: Principal, page: PageRequest, project_id: str | None, state: PullState | None
    ) -> Listing[PullRequest]:
        query = select(PullRequest).where(is_visible_to(caller))
        if project_id is not None:
            query = query.where(PullRequest.project_id == project_id)
        if state is not None:
            query = query.where(PullRequest.state == state)
        async with self._database.reading() as session:
            return await list_newest_first(session, query, PullRequest.id, page)

    async def list_by_branch(self, project_id: str, branch: str) -> list[PullRequest]:
        """List pull requests of a branch, newest first."""
        query = select(PullRequest).where(PullRequest.project_id == project_id, PullRequest.head_branch == branch)
        async with self._database.reading() as session:
            return list(await session.scalars(query.order_by(PullRequest.id.desc())))

    async def is_merge_target(self, project_id: str, branch: str) -> bool:
        """Return whether an open pull request is to be merged into this branch."""
        query = select(PullRequest.id).where(
            PullRequest.project_id == project_id,
            PullRequest.base_branch == branch,
            PullRequest.state == PullState.OPEN,
        )
        async with self._database.reading() as session:
            return await session.scalar(query.limit(1)) is not None


@dataclass(frozen=True, slots=True)
class Provenance:
    """The project, branch, sandbox, session and task that a pull request came from."""

    project_id: str
    forge: ForgeKind
    branch: str
    sandbox_id: str | None = None
    session_id: str | None = None
    task_id: str | None = None


class PullRequestRecorder:
    """Stores pull requests, and emits an event for every change."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def record(
        self, origin: Provenance, pull: Pull, *, created: bool, given_body: str | None = None
    ) -> PullRequest:
        """Create or update the row of a pull request. `given_body`: the opener's text in place of ours, kept for the next update.

        Idempotent; a platform that records it at the same time creates no second row.
        """
        try:
            return await self._record(origin, pull, created=created, given_body=given_body)
        except IntegrityError:
            return await self._record(origin, pull, created=created, given_body=given_body)

    async def _record(self, origin: Provenance, pull: Pull, *, created: bool, given_body: str | None) -> PullRequest:
        now = get_time(self._clock)
        async with self._database.transaction() as tx:
            # Another platform must not record the same branch of a plain remote, which no index prevents. Transactions that only refer to
            # the project do not wait for this lock.
            await tx.session.get(Project, origin.project_id, with_for_update={"key_share": True})
            row = await tx.session.scalar(_select_recorded(origin, pull).with_for_update())
            if row is None:
                row = PullRequest(
                    id=make_ordered_id("pul_"),
                    project_id=origin.project_id,
                    forge=origin.forge,
                    number=pull.number,
                    state=pull.state,
                    created_at=now,
                    updated_at=now,
                    detail={},
                    told={},
                )
                tx.add(row)
            row.session_id = origin.session_id or row.session_id
            row.task_id = origin.task_id or row.task_id
            row.sandbox_id = origin.sandbox_id or row.sandbox_id
            row.head_branch = origin.branch  # what was pushed here, whatever the forge calls it
            row.updated_at = now
            if given_body is not None:
                row.told = {**row.told, "words": make_storable(given_body)}
            _set_description(row, pull)
            await _emit(tx, row, "pull_request.opened" if created else "pull_request.updated", {})
        return row

    async def apply(self, pull_id: str, pull: Pull) -> PullRequest:
        """Store what the forge reports and emit what is new, in one transaction. An outdated response changes nothing."""
        now = get_time(self._clock)
        async with self._database.transaction() as tx:
            row = await tx.session.get(PullRequest, pull_id, with_for_update=True)
            if row is None:
                raise NotFoundError("The platform no longer has this pull request.")
            row.looked_at = now
            if _is_outdated(row, pull):
                return row
            news = find_news(row.told, row.state, row.review, pull)
            if pull.updated_at is not None:
                news.reported["updatedAt"] = rfc3339(pull.updated_at)
            before = [getattr(row, name) for name in _VISIBLE_FIELDS]
            _set_description(row, pull)
            _set_status(row, pull, now)
            row.told = news.reported
            for kind, data in news.events:
                await _emit(tx, row, kind, data)
            if before != [getattr(row, name) for name in _VISIBLE_FIELDS]:
                row.updated_at = now
                if not news.events:
                    await _emit(tx, row, "pull_request.updated", {})
            for first in range(0, len(news.parts), MAX_PARTS):
                await add_message(tx, row, news.parts[first : first + MAX_PARTS], now)
        return row

    async def record_branch_end(self, pull_id: str, *, deleted: bool) -> PullRequest:
        """Record that the branch was deleted after the merge, or has moved on (`deleted` False) and is kept permanently."""
        async with self._database.transaction() as tx:
            row = await tx.session.get(PullRequest, pull_id, with_for_update=True)
            if row is None:
                raise NotFoundError("The platform no longer has this pull request.")
            if row.branch_deleted_at is not None or row.told.get("branch") == "kept":
                return row
            if deleted:
                row.branch_deleted_at = get_time(self._clock)
                await _emit(tx, row, "pull_request.branch_deleted", {"branch": row.head_branch})
            else:
                row.told = {**row.told, "branch": "kept"}
        return row


def _select_recorded(origin: Provenance, pull: Pull) -> Select[PullRequest]:
    query = select(PullRequest).where(PullRequest.project_id == origin.project_id)
    if pull.number is not None:
        return query.where(PullRequest.number == pull.number)
    not_merged = PullRequest.state != PullState.MERGED  # a push after a merge is a new one
    return query.where(PullRequest.number.is_(None), PullRequest.head_branch == origin.branch, not_merged)


def _is_outdated(row: PullRequest, pull: Pull) -> bool:
    if row.state == PullState.MERGED and pull.state != PullState.MERGED:
        return True
    known = row.told.get("updatedAt")
    return known is not None and pull.updated_at is not None and rfc3339(pull.updated_at) < known


def _set_description(row: PullRequest, pull: Pull) -> None:
    row.url, row.title = pull.url[:2000], truncate(make_storable(pull.title), 300)
    row.draft, row.base_branch, row.head_commit = pull.draft, pull.base, pull.head_commit
    row.mergeable = pull.mergeable
    row.review, row.checks = row.review or pull.review, row.checks or pull.checks
    warnings = [_limit(warning) for warning in pull.warnings]
    row.detail = {**row.detail, "labels": [make_storable(label) for label in pull.labels], "warnings": warnings}


def _set_status(row: PullRequest, pull: Pull, now: datetime) -> None:
    row.state, row.review, row.checks = pull.state, pull.review, pull.checks
    row.merged_at = pull.merged_at or (now if pull.state == PullState.MERGED else None)
    row.closed_at = pull.closed_at or (now if pull.state in (PullState.CLOSED, PullState.MERGED) else None)
    remarks = sorted(pull.remarks, key=lambda remark: remark.at)[-MAX_SHOWN:]
    row.detail = {
        **row.detail,
        "runs": [_make_run_fields(run) for run in pull.runs[:MAX_SHOWN]],
        "remarks": [_make_stored_remark(remark) for remark in remarks],
    }


def _make_run_fields(run: CheckRun) -> CheckRunFields:
    return {
        "name": _limit(run.name),
        "status": _limit(run.status),
        "conclusion": _limit_optional(run.conclusion),
        "url": _limit_optional(run.url),
        "summary": _limit_optional(run.summary),
    }


def _make_stored_remark(remark: Remark) -> StoredRemark:
    return {
        "kind": _limit(remark.kind),
        "id": _limit(remark.id),
        "author": _limit(remark.author),
        "text": _limit(remark.text),
        "at": rfc3339(remark.at),
        "state": _limit_optional(remark.state),
        "path": _limit_optional(remark.path),
        "line": remark.line,
        "url": _limit_optional(remark.url),
        "association": _limit_optional(remark.association),
        "may_write": remark.may_write,
    }


def _limit(text: str) -> str:
    """Return the text as it is stored."""
    return truncate(make_storable(text), MAX_TEXT)


def _limit_optional(text: str | None) -> str | None:
    return None if text is None else _limit(text)


async def _find_session(tx: Transaction, row: PullRequest) -> Session | None:
    """Return the pull request's session, or None if there is none or its owner may no longer read what is new in the project."""
    session = await tx.session.get(Session, row.session_id) if row.session_id is not None else None
    if session is None:
        return None
    lost = projects.has_lost_access(literal(session.owner_id), literal(row.project_id, String()))
    return None if await tx.session.scalar(select(lost)) else session


async def _get_owner(tx: Transaction, row: PullRequest) -> str | None:
    session = await _find_session(tx, row)
    if session is not None:
        return session.owner_id
    project = await tx.session.get(Project, row.project_id)
    return project.owner_id if project is not None else None


async def _emit(tx: Transaction, row: PullRequest, kind: str, data: Mapping[str, Any]) -> None:
    pull_request = {"pullRequestId": row.id, "number": row.number, "url": row.url, "title": row.title}
    status = {"state": row.state, "review": row.review, "checks": row.checks}
    names = {"kind": "remark", "url": "remarkUrl", "state": "verdict"}  # a remark's own fields are renamed
    tx.emit(
        kind,
        owner_id=await _get_owner(tx, row),
        project_id=row.project_id,
        task_id=row.task_id,
        session_id=row.session_id,
        sandbox_id=row.sandbox_id,
        **pull_request,
        **status,
        **{names.get(name, name): value for name, value in data.items()},
    )


async def add_message(tx: Transaction, row: PullRequest, parts: list[FeedbackPart], now: datetime) -> None:
    """Write one message with all parts, so that the session is woken once. Writes none if the session's owner has lost access."""
    session = await _find_session(tx, row)
    if session is None:
        return
    message = Message(
        id=make_ordered_id("msg_"),
        session_id=session.id,
        role="system",
        parts=[{**part, "pullRequestId": row.id, "number": row.number} for part in parts],
        created_at=now,
    )
    tx.add(message)
    tx.emit(
        "message.created",
        owner_id=session.owner_id,
        project_id=session.project_id,
        task_id=session.task_id,
        session_id=session.id,
        sandbox_id=session.sandbox_id,
        messageId=message.id,
        role=message.role,
        by="github",
    )
