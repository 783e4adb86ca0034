"""Progress of a backup or a restore: one line that changes on a terminal, and a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time

from sandyard.cli.output import echo, escape, format_size

TERMINAL_SECONDS, PIPE_SECONDS = 0.2, 10.0


class ProgressLine:
    """Counts bytes and prints how many are done, with the percentage if `total` is known."""

    def __init__(self, verb: str, total: int = 0) -> None:
        self._verb = verb
        self._total = total
        self._done = 0
        self._is_terminal = sys.stderr.isatty()
        self._shown_at = time.monotonic()
        self._has_line = False

    def add(self, size: int, what: str) -> None:
        self._done += size
        now = time.monotonic()
        if now - self._shown_at >= (TERMINAL_SECONDS if self._is_terminal else PIPE_SECONDS):
            self._shown_at = now
            self._show(what)

    def finish(self) -> None:
        """Remove the line from a terminal."""
        if self._has_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_line = False

    def _show(self, what: str) -> None:
        share = f" {min(100, self._done * 100 // self._total)} %," if self._total else ""
        line = f"{self._verb}:{share} {format_size(self._done)}, {escape(what)[:60]}"
        if not self._is_terminal:
            echo(line, err=True)
            return
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
        self._has_line = True
