"""Record who did what, and read it back. Nothing here changes or removes an entry.

The log is never shortened, so what one user can add to it is limited: the size of each entry, and the entries for requests that are
refused. Those that are carried out have rate limits of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.times import rfc3339
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Audit as Entry
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.audit.detail import limit_detail
from sandyard.platform.domain.audit.refusals import FurtherRefusals, Refusals
from sandyard.platform.domain.paging import Listing, PageRequest, read_rows
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
_EXPORT_PAGE = 500
FURTHER_REFUSALS = "audit.further_refusals"
"""Action of an entry that stands for several refused requests of a user: see `Refusals`."""
_MAX_LENGTHS = {"target": 300, "action": 60, "outcome": 40, "request_id": 40, "address": 60}


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Conditions on audit entries, all of which must hold. `since` is inclusive, `until` is exclusive."""

    user_id: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Audit:
    """Operations on the audit log."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._pending: list[tuple[Entry, asyncio.Future[None]]] = []
        self._writing = asyncio.Lock()
        self._refusals = Refusals()
        self._counted: set[FurtherRefusals] = set()
        self._timers = TaskSet("audit of refusals")
        self.tasks = TaskSet("audit")

    async def record(
        self,
        principal: Principal | None,
        *,
        action: str,
        target: str | None = None,
        outcome: str = "ok",
        request_id: str | None = None,
        address: str | None = None,
        detail: Mapping[str, Any] | None = None,
        refused: bool = False,
    ) -> None:
        """Record an action. It is stored when this returns. Concurrent calls share a transaction.

        `refused`: nothing was changed. Such requests of a user beyond a number per minute get no entry of their own: they are counted, and
        stored as one entry at the end of that minute.
        """
        if refused and principal is not None:
            now = self._clock.now()
            further = self._refusals.count(principal, now)
            if further is not None:
                further.add(action, outcome, address, now)
                if further.number == 1:
                    self._counted.add(further)
                    self._timers.spawn(self._store_at_end(further))
                return
        texts = {"action": action, "target": target, "outcome": outcome, "request_id": request_id, "address": address}
        entry = Entry(
            at=get_time(self._clock),
            user_id=principal.user_id if principal else None,
            user_name=principal.name if principal else None,
            means=principal.means if principal else None,
            detail=limit_detail(detail or {}),
            **{name: text if text is None else text[: _MAX_LENGTHS[name]] for name, text in texts.items()},
        )
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((entry, written))
        await self.tasks.finish(self._write(written))

    async def _store_at_end(self, further: FurtherRefusals) -> None:
        """Store one entry for these requests when their period has ended."""
        await self._clock.sleep(further.until - self._clock.now())
        await retry_while_database_unavailable(
            lambda: self._store_further(further), "audit", user=further.principal.user_id
        )

    async def _store_further(self, further: FurtherRefusals) -> None:
        await self.record(further.principal, action=FURTHER_REFUSALS, outcome="refused", detail=further.to_detail())
        self._counted.discard(further)

    async def list(self, caller: Principal, query: AuditQuery, page: PageRequest) -> Listing[Entry]:
        """List entries, newest first. The cursor is a sequence number."""
        caller.require_admin()
        before = _parse_cursor(page.cursor)
        return await self._read_page(query, page.limit, before)

    async def export(self, caller: Principal, query: AuditQuery) -> AsyncIterator[bytes]:
        """Stream all matching entries, newest first, as one JSON object per line.

        Reads page by page, so that no transaction is open while a slow reader takes its time. Entries recorded
        meanwhile are not included.
        """
        caller.require_admin()
        return self._stream_lines(query)

    async def close(self) -> None:
        """Store what was only counted until now, and wait for entries that are being stored."""
        await self._timers.cancel()
        for further in list(self._counted):
            try:
                await self._store_further(further)
            except SandyardError as error:
                log.warning(
                    "audit_failed", user=further.principal.user_id, requests=further.number, reason=error.message
                )
        await self.tasks.wait(5)
        await self.tasks.cancel()

    async def _stream_lines(self, query: AuditQuery) -> AsyncIterator[bytes]:
        before = None
        while True:
            page = await self._read_page(query, _EXPORT_PAGE, before)
            if page.items:
                yield b"".join(_to_line(entry) for entry in page.items)
            if page.next_cursor is None:
                return
            before = int(page.next_cursor)

    async def _read_page(self, query: AuditQuery, limit: int, before: int | None) -> Listing[Entry]:
        rows = _build_query(query)
        if before is not None:
            rows = rows.where(Entry.seq < before)
        async with self._database.reading() as session:
            found = await read_rows(session, rows.order_by(Entry.seq.desc()), Entry.seq, limit)
        return Listing(found.items, str(found.last) if found.more else None)

    async def _write(self, written: asyncio.Future[None]) -> None:
        async with self._writing:
            batch, self._pending = self._pending, []
            try:
                if batch:
                    async with self._database.transaction() as tx:
                        tx.add(*(entry for entry, _ in batch))
            except Exception as error:
                for _, waiting in batch:
                    waiting.set_exception(error)
                    waiting.exception()  # mark it as retrieved, even if nobody is waiting
            else:
                for _, waiting in batch:
                    waiting.set_result(None)
        await written


def _build_query(query: AuditQuery) -> Select[Entry]:
    rows = select(Entry)
    for column, value in ((Entry.user_id, query.user_id), (Entry.action, query.action), (Entry.target, query.target)):
        if value is not None:
            rows = rows.where(column == value)
    if query.since is not None:
        rows = rows.where(Entry.at >= query.since)
    if query.until is not None:
        rows = rows.where(Entry.at < query.until)
    return rows


def _parse_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInputError("cursor is invalid: use nextCursor of the previous page.")
    return int(cursor)


def to_json(entry: Entry) -> dict[str, Any]:
    """Return the entry as the API shows it."""
    return {
        "seq": entry.seq,
        "at": rfc3339(entry.at),
        "userId": entry.user_id,
        "userName": entry.user_name,
        "means": entry.means,
        "action": entry.action,
        "target": entry.target,
        "outcome": entry.outcome,
        "requestId": entry.request_id,
        "address": entry.address,
        "detail": entry.detail,
    }


def _to_line(entry: Entry) -> bytes:
    return json.dumps(to_json(entry), ensure_ascii=False).encode() + b"\n"
