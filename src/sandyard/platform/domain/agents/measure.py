"""Limit how much an agent may send. An agent that exceeds the limits is ended, because its messages are stored and
shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandyard.platform.domain.agents import wire
from sandyard.platform.domain.agents.transcript import Transcript

LINES, BYTES = 100, 1 << 20
"""Limits of one batch, which is written in one transaction: others need to write too."""
MESSAGES, KEPT = 20_000, 64 << 20
"""Limits of one turn: messages, and approximately the characters in them."""
REQUESTS, REQUESTED = 10_000, 64 << 20
"""Limits of one process: requests, cancellations of them and answers sent by the agent, and bytes of them."""
NOTICES = 100_000
"""Limit of one process: other notices, which are ignored. Updates are limited by what is stored of them."""

Line = tuple[int, bytes]


def batches(lines: Sequence[Line], consumed: int) -> Iterator[tuple[Sequence[Line], int]]:
    """Split lines into batches, each with the offset up to which the output was read."""
    begin = size = 0
    for at, (end, line) in enumerate(lines):
        size += len(line)
        if at + 1 < len(lines) and (at + 1 - begin >= LINES or size >= BYTES):
            yield lines[begin : at + 1], end
            begin, size = at + 1, 0
    if lines:
        yield lines[begin:], consumed


class Measure:
    """Count the messages of one process, as far as this platform has seen it."""

    def __init__(self) -> None:
        self._requests = self._requested = self._notices = 0

    def count(self, told: wire.Incoming, size: int) -> None:
        if not isinstance(told, wire.Notice) or told.method == wire.CANCEL_REQUEST:
            self._requests += 1
            self._requested += size
        elif told.method != wire.UPDATE:
            self._notices += 1

    def fault(self, transcript: Transcript) -> str | None:
        """Return a sentence if a limit is exceeded."""
        if len(transcript) > MESSAGES or transcript.weight > KEPT:
            return f"The agent has sent more than can be stored in one turn: {MESSAGES} messages or {KEPT >> 20} MiB."
        if self._requests > REQUESTS or self._requested > REQUESTED:
            return f"The agent has sent more than {REQUESTS} requests, or more than {REQUESTED >> 20} MiB of them."
        if self._notices > NOTICES:
            return f"The agent has sent more than {NOTICES} notifications that are not updates."
        return None
