"""A progress line on standard error, only if it is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from sandyard.cli.output import escape, make_console

if TYPE_CHECKING:
    from rich.status import Status

PROGRESS_TEXTS = {
    "clone": "cloning",
    "push": "pushing",
    "update": "updating",
    "checkpoint": "creating a checkpoint",
    "restore": "restoring",
}


class ProgressLine:
    """The progress of one operation. Use it as a context manager, which removes the line at the end."""

    def __init__(self) -> None:
        self._enabled = sys.stderr.isatty()
        self._status: Status | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def show_queue(self, ahead: int | None) -> None:
        """Show the queue position. `ahead` is the number of operations before this one, or None if the server does not know it yet."""
        self._show("waiting" if ahead is None else f"waiting: {format_ordinal(ahead + 1)} in the queue")

    def show_kind(self, kind: str) -> None:
        self._show(PROGRESS_TEXTS.get(kind) or escape(kind))

    def show_progress(self, what: object, percent: object) -> None:
        text = escape(str(what or ""))
        self._show(f"{text}  {percent} %" if isinstance(percent, int) else text)

    def stop(self) -> None:
        """Remove the line. Idempotent."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, text: str) -> None:
        if not self._enabled:
            return
        from rich.text import Text  # noqa: PLC0415 - slow to load

        if self._status is None:
            self._status = make_console(err=True).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))


def format_ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
