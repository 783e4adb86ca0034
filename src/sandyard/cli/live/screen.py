"""Output of commands that follow something: lines and, on a terminal, a status line below them."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

import click

from sandyard.cli.output import echo, escape, wants_colour

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
CLEAR = "\r\x1b[2K"


class Screen:
    """Lines go to standard output, notes and the status line to standard error. The caller must escape control characters in lines and
    notes; they may contain our own colours."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.uses_colour = wants_colour()
        self.is_input_active = False
        """While the user types, the last line belongs to the input."""
        self._status = ""
        self._status_since = 0.0
        self._drawn = False

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def print_line(self, text: str, *, err: bool = False, **style: object) -> None:
        """Print a line. `style` holds arguments of click.style."""
        self.clear()
        coloured = text and style and (self.is_terminal if err else self.uses_colour)
        echo(click.style(text, **style) if coloured else text, err=err)  # type: ignore[arg-type]
        (sys.stderr if err else sys.stdout).flush()

    def print_note(self, text: str, **style: object) -> None:
        """Print progress information, which is not part of the result."""
        self.print_line(text, err=True, **style)

    def set_status(self, text: str) -> None:
        """Set the status line. Shown at the next `redraw`, only on terminals. Control characters are escaped."""
        text = escape(text)
        if text != self._status:
            self._status, self._status_since = text, time.monotonic()

    def redraw(self) -> None:
        """Redraw the status line."""
        if not self.is_terminal or self.is_input_active or not self._status:
            return
        from rich.cells import set_cell_size  # noqa: PLC0415 - slow to load

        now = time.monotonic()
        frame = FRAMES[int(now * 8) % len(FRAMES)]
        seconds = int(now - self._status_since)
        tail = f"  {format_duration(seconds)}" if seconds >= 2 else ""
        width = max(10, shutil.get_terminal_size().columns - 1)
        sys.stderr.write(CLEAR + set_cell_size(f"{frame} {self._status}{tail}", width).rstrip())
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Remove the status line. Idempotent."""
        if self._drawn:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
            self._drawn = False


def format_duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 9.95 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = int(seconds + 0.5)  # rounded like in the web
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
