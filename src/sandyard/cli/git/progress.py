"""A progress line on standard error, only if it is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from sandyard.cli.output import console, escape

if TYPE_CHECKING:
    from rich.status import Status

DOING = {
    "clone": "cloning",
    "push": "pushing",
    "update": "updating",
    "checkpoint": "creating a checkpoint",
    "restore": "restoring",
}


class ProgressLine:
    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._status: Status | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def show_queue(self, before: int | None) -> None:
        """Show the queue position. `before` is the number of operations ahead, or None if the server does not know it yet."""
        self._say("waiting" if before is None else f"waiting: {format_ordinal(before + 1)} in the queue")

    def show_kind(self, kind: str) -> None:
        self._say(DOING.get(kind) or escape(kind))

    def show_progress(self, what: object, percent: object) -> None:
        text = escape(str(what or ""))
        self._say(f"{text}  {percent} %" if isinstance(percent, int) else text)

    def stop(self) -> None:
        """Remove the line. Idempotent."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, text: str) -> None:
        if not self._shown:
            return
        from rich.text import Text  # noqa: PLC0415 - slow to load

        if self._status is None:
            self._status = console(err=True).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))


def format_ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
