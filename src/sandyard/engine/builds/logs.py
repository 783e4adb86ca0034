"""Build logs: kept in memory while a build runs, and written to the database in batches."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sandyard.engine.builds.model import LogLine
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.sandboxes.model import LogLevel
from sandyard.kit.clock import Clock

BATCH_LINES = 64
LINE_LIMIT = 4096  # characters
OUTPUT_LIMIT = 4 << 20  # characters
_SEVERITY = {level: number for number, level in enumerate(LogLevel)}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class BuildLog:
    """The log of one build. After `limit` lines, or OUTPUT_LIMIT characters, command output is dropped; the engine's
    own messages are always kept."""

    def __init__(self, repository: BuildRepository, clock: Clock, build_id: str, limit: int) -> None:
        self._repository = repository
        self._clock = clock
        self._build_id = build_id
        self._limit = limit
        self._lines: list[LogLine] = []
        self._written = 0
        self._size = 0
        self._limit_reported = False

    def add_message(self, message: str, *, step: str | None = None, level: LogLevel = LogLevel.INFO) -> None:
        text = message if len(message) <= LINE_LIMIT else message[:LINE_LIMIT] + "…"
        self._lines.append(LogLine(self._clock.now(), level, _UNPRINTABLE.sub("", text), step))
        if len(self._lines) - self._written >= BATCH_LINES:
            self.flush()

    def add_output(self, prefix: str, stream: str, text: str, step: str) -> None:
        """Add a line of a command's output."""
        if self.is_full:
            if not self._limit_reported:
                self._limit_reported = True
                self.add_message("The output exceeds the limit; the rest is not logged.", level=LogLevel.WARN)
            return
        self._size += min(len(text), LINE_LIMIT)
        level = LogLevel.INFO if stream == "stdout" else LogLevel.WARN
        self.add_message(f"[{prefix}] [{stream}]: {text}", step=step, level=level)

    @property
    def is_full(self) -> bool:
        """Whether further output is dropped."""
        return len(self._lines) >= self._limit or self._size > OUTPUT_LIMIT

    def flush(self) -> None:
        """Write the new lines to the database."""
        new = self._lines[self._written :]
        if new:
            with self._repository.database.transaction():
                self._repository.add_lines(self._build_id, self._written, new)
            self._written = len(self._lines)

    @property
    def lines(self) -> list[LogLine]:
        return self._lines


class LineSplitter:
    """Splits the bytes of one stream into lines. A carriage return discards what was before it, as on a terminal."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete with this data."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_LIMIT * 4:
            complete.append(self._rest)
            self._rest = b""
        return [_decode_line(line) for line in complete]

    def end(self) -> list[str]:
        """Return the last line if it has no newline."""
        rest, self._rest = self._rest, b""
        return [_decode_line(rest)] if rest else []


def _decode_line(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def filter_by_level(lines: Sequence[LogLine], level: LogLevel | None) -> Sequence[LogLine]:
    """Return the lines with at least this level."""
    if level is None:
        return lines
    return [line for line in lines if _SEVERITY[line.level] >= _SEVERITY[level]]
