"""All sandboxes of this engine in memory: the database rows, each with the runtime state of a live engine."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.sandboxes.errors import make_not_found_error
from sandyard.engine.sandboxes.metrics import Series
from sandyard.engine.sandboxes.model import Page, Sandbox, SandboxQuery, State
from sandyard.kit.errors import InvalidInputError

AUTOMATIC_BOOTS = 3
"""How often a sandbox whose processes ended by themselves is booted again within `reconciler.BOOTS_WITHIN_S`."""


class LiveSandbox:
    """A sandbox that has a record, with its state in this process.

    Hold `lock` to change it; anyone may read `record`, which is replaced, never modified.
    """

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
        self.boots: tuple[float, ...] = ()
        self.watch: asyncio.Task[None] | None = None
        self.series: Series | None = None
        self.oom_kills: int | None = (
            None  # at the last sample; None before the first one, if an earlier engine started it
        )

    @property
    def id(self) -> str:
        return self.record.id


class Registry:
    """The live sandboxes in order of creation. `running_count` is the number of sandboxes whose record says running; those being
    created or resumed have no such record yet."""

    def __init__(self) -> None:
        self._sandboxes: dict[str, LiveSandbox] = {}
        self.running_count = self.creating_count = self.resuming_count = 0

    @property
    def started_count(self) -> int:
        """The number of sandboxes that are running, being created or being resumed."""
        return self.running_count + self.creating_count + self.resuming_count

    def __len__(self) -> int:
        return len(self._sandboxes)

    def __iter__(self) -> Iterator[LiveSandbox]:
        return iter(tuple(self._sandboxes.values()))

    def find(self, sandbox_id: str) -> LiveSandbox | None:
        return self._sandboxes.get(sandbox_id)

    def get(self, sandbox_id: str) -> LiveSandbox:
        """Return the live sandbox. Raises NotFoundError."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            raise make_not_found_error(sandbox_id)
        return sandbox

    def add(self, record: Sandbox) -> LiveSandbox:
        sandbox = self._sandboxes[record.id] = LiveSandbox(record)
        self.running_count += record.running
        return sandbox

    def change(self, sandbox: LiveSandbox, **changes: Any) -> Sandbox:
        """Replace the record with a copy that has these changes."""
        before = sandbox.record
        sandbox.record = replace(before, **changes)
        self.running_count += sandbox.record.running - before.running
        return sandbox.record

    def remove(self, sandbox: LiveSandbox, reason: str) -> None:
        if self._sandboxes.pop(sandbox.id, None) is not None:
            sandbox.removal_reason = reason
            self.running_count -= sandbox.record.running

    def find_policy(self, sandbox_id: str) -> NetworkPolicy | None:
        """Return the network policy of a sandbox, or None if there is no such sandbox."""
        sandbox = self._sandboxes.get(sandbox_id)
        return sandbox.record.network.policy if sandbox is not None else None

    def get_page(self, query: SandboxQuery) -> Page[Sandbox]:
        """Return a page. A cursor is a position in the order of creation, which never changes, so paging neither skips
        nor repeats items."""
        after = None if query.cursor is None else decode_cursor(query.cursor)
        found: list[Sandbox] = []
        sandboxes = self._sandboxes.values()
        for sandbox in sandboxes if query.oldest_first else reversed(sandboxes):
            record = sandbox.record
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
        return sum(_matches(sandbox.record, query) for sandbox in self._sandboxes.values())


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
