"""Find events in a stream of server-sent events."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MAX_LINES = 10_000
"""Maximum number of lines in an event. Longer ones are ignored."""


class EventStream:
    """Finds the events that match a pattern, and holds at most one incomplete event.

    All other events are skipped without running any Python code for them, because a stream may contain millions of empty lines.
    """

    def __init__(self, pattern: re.Pattern[bytes], *, largest: int) -> None:
        """An event of more than `largest` bytes is ignored."""
        self._pattern = pattern
        self._largest = largest
        self.buffer = bytearray()
        self._searched = 0
        self._skipping = False  # the rest of an event whose beginning was dropped

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Return the data of each event that matches and is complete with this chunk."""
        self.buffer += chunk
        since = max(0, self._searched - 2)
        end = max(self.buffer.rfind(b"\n\n", since), self.buffer.rfind(b"\n\r\n", since) + 1) + 2
        complete = b""
        if end > 2:
            complete = bytes(self.buffer[:end]).replace(b"\r\n", b"\n")
            del self.buffer[:end]
            if self._skipping:
                self._skipping = False
                complete = complete.partition(b"\n\n")[2]
        if len(self.buffer) > self._largest:
            self.buffer.clear()
            self._skipping = True
        self._searched = len(self.buffer)
        return self._find(complete)

    def finish(self) -> Iterator[bytes]:
        """Return the data of the last event, if it matches and the stream ended without an empty line."""
        remaining = b"" if self._skipping else bytes(self.buffer).replace(b"\r\n", b"\n")
        self.buffer.clear()
        return self._find(remaining)

    def _find(self, events: bytes) -> Iterator[bytes]:
        position = 0
        while (found := self._pattern.search(events, position)) is not None:
            before = events.rfind(b"\n\n", position, found.start())
            start = position if before < 0 else before + 2
            end = events.find(b"\n\n", found.start())
            end = len(events) if end < 0 else end
            if data := _get_data(events[start:end]):
                yield data
            position = end + 2


def _get_data(event: bytes) -> bytes:
    if event.count(b"\n") > _MAX_LINES:
        return b""
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
