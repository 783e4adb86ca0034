"""One writer per repository at a time, and a queue that is fair: who was served least recently comes first, then who asked first,
which its id says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Waiting:
    id: str
    who: str
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Line:
    busy: str | None = None
    waiting: list[_Waiting] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    """Who was served last, by a number that grows."""


class Turns:
    """In memory: what outlives a restart are the operations, which queue up again in the order they were asked for."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._count = itertools.count(1)

    def enter(self, repository: str, *, id: str, who: str) -> asyncio.Future[None]:
        """Queue up; the future is done when it is its turn, at once if nobody else is there. Then, and also if it is no longer
        wanted before, call `leave`. `who` is served in turn with the others, however many of theirs wait."""
        line = self._lines.setdefault(repository, _Line())
        entry = _Waiting(id, who, asyncio.get_running_loop().create_future())
        line.waiting.append(entry)
        if line.busy is None:
            self._next(repository, line)
        return entry.turn

    def leave(self, repository: str, id: str) -> None:
        """Its turn is over, or it no longer waits for it."""
        line = self._lines[repository]
        if line.busy == id:
            self._next(repository, line)
        else:
            line.waiting = [entry for entry in line.waiting if entry.id != id]

    def _next(self, repository: str, line: _Line) -> None:
        line.busy = None
        if not line.waiting:
            del self._lines[repository]
            return
        entry = next(iter(_order(line)))
        line.waiting.remove(entry)
        line.busy, line.served[entry.who] = entry.id, next(self._count)
        if not entry.turn.done():  # else whoever waited was cancelled, and is about to leave
            entry.turn.set_result(None)

    def position(self, repository: str, id: str) -> int | None:
        """0: it is its turn; 1: it is next; None: it does not wait here."""
        line = self._lines.get(repository)
        if line is None:
            return None
        if line.busy == id:
            return 0
        for place, entry in enumerate(_order(line), 1):
            if entry.id == id:
                return place
        return None


def _order(line: _Line) -> Iterable[_Waiting]:
    """Those who wait, in the order in which they will be served if nobody else comes."""
    served, left = dict(line.served), list(line.waiting)
    now = max(served.values(), default=0)
    while left:
        first = min(left, key=lambda entry: (served.get(entry.who, 0), entry.id))
        left.remove(first)
        now += 1
        served[first.who] = now
        yield first
