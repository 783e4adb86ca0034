"""How much an agent may say. Whoever says more is ended: what it says is kept, and costs everybody's time and room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandyard.platform.domain.agents import wire
from sandyard.platform.domain.agents.transcript import Transcript

LINES, BYTES = 100, 1 << 20
"""Taken at once, in one transaction: others want to write too."""
MESSAGES, KEPT = 20_000, 64 << 20
"""Of a turn: how many, and about how many letters of them."""
REQUESTS, REQUESTED = 10_000, 64 << 20
"""Of the agent's own, in one life of its process: how many, and bytes of them."""

Line = tuple[int, bytes]


def batches(lines: Sequence[Line], consumed: int) -> Iterator[tuple[Sequence[Line], int]]:
    """Few enough at a time, each with the place up to which all was read then."""
    begin = size = 0
    for at, (end, line) in enumerate(lines):
        size += len(line)
        if at + 1 < len(lines) and (at + 1 - begin >= LINES or size >= BYTES):
            yield lines[begin : at + 1], end
            begin, size = at + 1, 0
    if lines:
        yield lines[begin:], consumed


class Measure:
    """Of one life of a process, as far as this platform has seen it."""

    def __init__(self) -> None:
        self._requests = self._requested = 0

    def count(self, told: wire.Incoming, size: int) -> None:
        if isinstance(told, wire.Request):
            self._requests += 1
            self._requested += size

    def fault(self, transcript: Transcript) -> str | None:
        """A sentence when it was too much."""
        if len(transcript) > MESSAGES or transcript.weight > KEPT:
            return f"The agent has sent more than can be stored in one turn: {MESSAGES} messages or {KEPT >> 20} MiB."
        if self._requests > REQUESTS or self._requested > REQUESTED:
            return f"The agent has sent more than {REQUESTS} requests, or more than {REQUESTED >> 20} MiB of them."
        return None
