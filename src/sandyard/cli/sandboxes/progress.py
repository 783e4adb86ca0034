"""A progress bar on standard error, only if it is a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress


class Progress:
    """The progress of file transfers, one at a time. Shows nothing unless `enabled`."""

    def __init__(self, *, enabled: bool) -> None:
        self._bar: rich.progress.Progress | None = _make_bar() if enabled else None
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start_transfer(self, name: str, total: int | None) -> None:
        """Start a transfer. The bar appears with the first one. `total` is in bytes, or None if unknown."""
        if self._bar is not None:
            self._bar.start()
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(name, total=total)

    def advance(self, count: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, count)


def _make_bar() -> rich.progress.Progress:
    from rich.progress import (  # noqa: PLC0415 - slow to load
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar  # noqa: PLC0415

    from sandyard.cli.output import make_console  # noqa: PLC0415

    name = TextColumn("{task.description}", markup=False)
    return Bar(
        name,
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=make_console(err=True),
    )
