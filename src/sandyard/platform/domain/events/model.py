"""Events as delivered to readers, and filters for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement

from sandyard.kit.times import rfc3339
from sandyard.platform.db.models import Event

COLUMNS = (
    Event.seq,
    Event.at,
    Event.kind,
    Event.owner_id,
    Event.project_id,
    Event.task_id,
    Event.session_id,
    Event.sandbox_id,
    Event.data,
)
"""In the order of EventView's fields."""


@dataclass(frozen=True)
class EventView:
    """One event, shared by all readers and immutable."""

    seq: int
    at: datetime
    kind: str
    owner_id: str | None
    project_id: str | None
    task_id: str | None
    session_id: str | None
    sandbox_id: str | None
    data: dict[str, Any]

    @classmethod
    def from_row(cls, event: Event) -> EventView:
        """Return the event as it would be read from its row."""
        fields = {column.key: getattr(event, column.key) for column in COLUMNS}
        return cls(**{**fields, "data": json.loads(json.dumps(event.data))})

    @cached_property
    def frame(self) -> bytes:
        """The event in wire format (SSE), encoded once for all readers."""
        body = {
            "seq": self.seq,
            "at": rfc3339(self.at),
            "kind": self.kind,
            "ownerId": self.owner_id,
            "projectId": self.project_id,
            "taskId": self.task_id,
            "sessionId": self.session_id,
            "sandboxId": self.sandbox_id,
            "data": self.data,
        }
        # JSON has no raw line breaks, so it fits one data line; lone surrogates must be escaped
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        try:
            line = text.encode()
        except UnicodeEncodeError:
            line = json.dumps(body, separators=(",", ":")).encode()
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.seq, self.kind.encode(), line)


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Match events that carry all of these ids. None matches any."""

    session_id: str | None = None
    task_id: str | None = None
    project_id: str | None = None
    sandbox_id: str | None = None

    def matches(self, event: EventView) -> bool:
        return (
            self.session_id in (None, event.session_id)
            and self.task_id in (None, event.task_id)
            and self.project_id in (None, event.project_id)
            and self.sandbox_id in (None, event.sandbox_id)
        )

    def make_clauses(self) -> Iterator[ColumnElement[bool]]:
        """Yield the same conditions for the database."""
        for column, wanted in (
            (Event.session_id, self.session_id),
            (Event.task_id, self.task_id),
            (Event.project_id, self.project_id),
            (Event.sandbox_id, self.sandbox_id),
        ):
            if wanted is not None:
                yield column == wanted
