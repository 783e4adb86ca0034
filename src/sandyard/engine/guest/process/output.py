"""The output of a process, on its way to its readers.

An attached reader loses nothing: if it is slow, the process has to wait. While no reader is attached, the newest output
is kept, up to a limit, and is sent first to the next reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Reading from a process pauses when a reader has HIGH_WATER bytes to take, and resumes at LOW_WATER.
HIGH_WATER = 256 << 10
LOW_WATER = 64 << 10
# Bytes kept for the next reader, and while all processes together exceed their budget.
BACKLOG_LIMIT = 1 << 20
BACKLOG_TAIL = 64 << 10
_OVERHEAD = 128  # memory of a chunk in addition to its bytes, which matters if there are very many tiny ones
_MERGE_LIMIT = 4096  # chunks up to this size are joined while they are kept

Chunk = tuple[str, bytes]  # "stdout", "stderr" or "pty", and the data


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process, in the format of Go's os.ProcessState, as envd reports it."""

    exit_code: int
    exited: bool
    status: str
    error: str | None = None

    def render(self) -> dict[str, Any]:
        event: dict[str, Any] = {"exitCode": self.exit_code, "exited": self.exited, "status": self.status}
        if self.error is not None:
            event["error"] = self.error
        return event


class Budget:
    """The total output that all processes keep for future readers. When it is used up, each process keeps only the tail
    of its output."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 16 << 20) -> None:
        self.limit = limit
        self.used = 0


class Reader:
    """One attached client. `wake` is called when there is something to take, or at the end."""

    __slots__ = ("_output", "_wake", "chunks", "size")

    def __init__(self, output: Output, wake: Callable[[], None]) -> None:
        self._output = output
        self._wake = wake
        self.chunks: deque[Chunk] = deque()
        self.size = 0

    def push(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk[1]) + _OVERHEAD
        self._wake()

    def wake(self) -> None:
        self._wake()

    def take(self) -> Chunk | None:
        """Return the next chunk, which then counts as delivered."""
        if not self.chunks:
            return None
        chunk = self.chunks.popleft()
        before, self.size = self.size, self.size - len(chunk[1]) - _OVERHEAD
        if before > LOW_WATER >= self.size:
            self._output.notify_room()
        return chunk

    def give_back(self, chunks: list[Chunk]) -> None:
        """Return the chunks taken last, because they could not be delivered."""
        self.chunks.extendleft(reversed(chunks))
        self.size += sum(len(data) + _OVERHEAD for _, data in chunks)

    @property
    def end(self) -> End | None:
        """The end of the process, or None while there is output to take or the process runs."""
        return None if self.chunks else self._output.end


class Output:
    """Output of a process that its readers have not yet taken. `on_room` is called when there is room for more."""

    __slots__ = ("_backlog", "_backlog_size", "_budget", "_on_room", "_readers", "end")

    def __init__(self, budget: Budget, on_room: Callable[[], None]) -> None:
        self._budget = budget
        self._on_room = on_room
        self._readers: list[Reader] = []
        self._backlog: deque[Chunk] = deque()
        self._backlog_size = 0
        self.end: End | None = None

    @property
    def congested(self) -> bool:
        """Whether a reader has HIGH_WATER bytes to take, so that nothing more should be read from the process."""
        return any(reader.size >= HIGH_WATER for reader in self._readers)

    def feed(self, kind: str, data: bytes) -> None:
        """Add output for all readers, or keep it for the next one if there is none."""
        chunk = (kind, data)
        if not self._readers:
            self._keep(chunk)
        for reader in self._readers:
            reader.push(chunk)

    def finish(self, end: End) -> None:
        """Mark the output as complete. `on_room` is no longer called."""
        self.end = end
        self._on_room = _ignore
        for reader in self._readers:
            reader.wake()

    def attach(self, wake: Callable[[], None]) -> Reader:
        """Add a reader. It gets the kept output, if it is the only one, and everything from now on."""
        reader = Reader(self, wake)
        if not self._readers:
            reader.chunks, self._backlog = self._backlog, reader.chunks
            reader.size = self._backlog_size
            self._count(-self._backlog_size)
        self._readers.append(reader)
        return reader

    def detach(self, reader: Reader) -> None:
        """Remove a reader. What the last one had not taken is kept for the next."""
        if reader not in self._readers:
            return
        self._readers.remove(reader)
        if not self._readers:
            for chunk in reader.chunks:
                self._keep(chunk)
        reader.chunks = deque()
        self.notify_room()

    def drop(self) -> None:
        """Drop the kept output."""
        self._backlog.clear()
        self._count(-self._backlog_size)

    def notify_room(self) -> None:
        """Call `on_room` unless a reader is congested."""
        if not self.congested:
            self._on_room()

    def _keep(self, chunk: Chunk) -> None:
        kind, data = chunk
        if self._backlog:
            last_kind, last = self._backlog[-1]
            if last_kind == kind and len(last) + len(data) <= _MERGE_LIMIT:
                self._backlog[-1] = (kind, last + data)
                self._count(len(data))
                return
        self._backlog.append(chunk)
        self._count(len(data) + _OVERHEAD)
        limit = BACKLOG_LIMIT if self._budget.used <= self._budget.limit else BACKLOG_TAIL
        while self._backlog_size > limit and len(self._backlog) > 1:
            self._count(-len(self._backlog.popleft()[1]) - _OVERHEAD)

    def _count(self, change: int) -> None:
        self._backlog_size += change
        self._budget.used += change


def _ignore() -> None:
    pass
