"""All sandboxes of this engine in memory: the database rows, each with the runtime state of a live engine."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sandyard.engine.sandboxes.errors import make_not_found_error
from sandyard.engine.sandboxes.metrics import Series
from sandyard.engine.sandboxes.model import Page, Sandbox, SandboxQuery, State
from sandyard.kit.errors import InvalidInputError

AUTOMATIC_BOOTS = 3
"""How often a sandbox whose processes ended by themselves is booted again within `reconciler.BOOTS_WITHIN_S`."""


class Entry:
    """One live sandbox. Hold `lock` to change it; anyone may read `record`, which is replaced, never modified."""

    __slots__ = (
        "boots",
        "changing",
        "failure_count",
        "lock",
        "lost_reason",
        "oom_kills",
        "record",
        "removal_reason",
        "series",
        "watch",
    )

    def __init__(self, record: Sandbox) -> None:
        self.record = record
        self.lock = asyncio.Lock()
        self.changing: asyncio.Future[None] | None = None  # set while its state changes; traffic waits for it
        self.removal_reason: str | None = None  # why it no longer has a record
        # Failures since its condition was last seen; while not 0, check the condition before use.
        self.failure_count = 0
        self.lost_reason: str | None = None  # why its processes ended, until the reconciler has handled that
        # Times of the latest boots after its processes had ended.
        self.boots: deque[float] = deque(maxlen=AUTOMATIC_BOOTS)
        self.watch: asyncio.Task[None] | None = None
        self.series: Series | None = None
        self.oom_kills: int | None = (
            None  # at the last sample; None before the first one, if an earlier engine started it
        )

    @property
    def id(self) -> str:
        return self.record.id


class Registry:
    """All entries in order of creation. `running_count` is the number of sandboxes whose record says running."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self.running_count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def find(self, sandbox_id: str) -> Entry | None:
        return self._entries.get(sandbox_id)

    def get(self, sandbox_id: str) -> Entry:
        """Return the entry. Raises NotFoundError."""
        entry = self._entries.get(sandbox_id)
        if entry is None:
            raise make_not_found_error(sandbox_id)
        return entry

    def add(self, record: Sandbox) -> Entry:
        entry = self._entries[record.id] = Entry(record)
        self.running_count += record.running
        return entry

    def change(self, entry: Entry, **changes: Any) -> Sandbox:
        """Replace the entry's record with a copy of its latest one with `changes`."""
        before = entry.record
        entry.record = replace(before, **changes)
        self.running_count += entry.record.running - before.running
        return entry.record

    def remove(self, entry: Entry, reason: str) -> None:
        if self._entries.pop(entry.id, None) is not None:
            entry.removal_reason = reason
            self.running_count -= entry.record.running

    def get_page(self, query: SandboxQuery) -> Page[Sandbox]:
        """Return a page. A cursor is a position in the order of creation, which never changes, so paging neither skips
        nor repeats items."""
        after = None if query.cursor is None else decode_cursor(query.cursor)
        found: list[Sandbox] = []
        entries = self._entries.values()
        for entry in entries if query.oldest_first else reversed(entries):
            record = entry.record
            if after is not None and (record.seq <= after if query.oldest_first else record.seq >= after):
                continue
            if _matches(record, query):
                found.append(record)
                if len(found) > query.limit:
                    break
        return make_page(found, query.limit)

    def count(self, query: SandboxQuery) -> int:
        """Return how many match, on all pages."""
        if query.states == {State.RUNNING} and _is_unfiltered(query):
            return self.running_count
        return sum(_matches(entry.record, query) for entry in self._entries.values())


def _is_unfiltered(query: SandboxQuery) -> bool:
    times = (query.started_after, query.started_before)
    return not query.metadata and query.template is None and times == (None, None)


def make_page(found: list[Any], limit: int) -> Page[Any]:
    """Return a page of at most `limit` items (one more in `found` means that there is a next page)."""
    if len(found) <= limit:
        return Page(tuple(found))
    return Page(tuple(found[:limit]), encode_cursor(found[limit - 1].seq))


def encode_cursor(seq: int) -> str:
    return base64.urlsafe_b64encode(f"seq:{seq}".encode()).decode("ascii").rstrip("=")


def decode_cursor(cursor: str) -> int:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        prefix, _, number = base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii").partition(":")
    except (ValueError, binascii.Error):
        prefix = number = ""
    if prefix != "seq" or not number.isdecimal() or len(number) > 18:
        raise InvalidInputError("The next token is not valid.")
    return int(number)


def _matches(record: Sandbox, query: SandboxQuery) -> bool:
    return (
        record.state in query.states
        and (query.template is None or query.template in {record.template_id, record.alias, record.name})
        and (query.started_after is None or round(record.started_at, 6) >= query.started_after)
        and (query.started_before is None or record.started_at < query.started_before)
        and all(record.metadata.get(key) == value for key, value in query.metadata.items())
    )
