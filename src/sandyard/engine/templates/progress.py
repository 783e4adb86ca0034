"""Progress of a long build: a bar on a terminal, lines elsewhere, based on what apt actually did."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

STAGES = (
    # what mmdebstrap prints when the stage starts, the position of the bar, and the text for users
    ("running apt-get update", 0.00, "package lists"),
    ("downloading packages with apt", 0.05, "downloading the essentials"),
    ("extracting archives", 0.16, "unpacking the essentials"),
    ("installing essential packages", 0.20, "installing the essentials"),
    ("installing remaining packages", 0.38, "downloading packages"),
    ("running --customize-hook", 0.94, "adding node, user and settings"),
    ("cleaning package lists", 0.97, "cleaning up"),
)
UNPACK_FROM, UNPACK_TO = 0.55, 0.94  # the share of the last big apt run after its download
_STAGE = re.compile(r"^I: (.*)")
_TOTAL = re.compile(r"^\d+ upgraded, (\d+) newly installed")
_STEP = re.compile(r"^(Get:\d+|Unpacking|Setting up) ")
_SCRIPT_STEP = re.compile(r"^step (\d\.\d+)(?:-(\d\.\d+))? (.*)")


class Report(Protocol):
    """Called often with the progress (0 to 1, never decreasing) and the current activity."""

    def update(self, fraction: float, activity: str) -> None: ...

    def finish(self, text: str) -> None: ...


class MmdebstrapProgress:
    """Turns the output of `mmdebstrap --verbose` into a fraction. Unknown lines are ignored."""

    def __init__(self, report: Callable[[float, str], None]) -> None:
        self._report = report
        self._stage = 0
        self._total = 0
        self._fetched = 0
        self._steps = 0
        self._fraction = 0.0

    def feed(self, line: str) -> None:
        if stage := _STAGE.match(line):
            self._start_stage(stage[1])
        elif total := _TOTAL.match(line):
            self._total, self._fetched, self._steps = int(total[1]), 0, 0
        elif step := _STEP.match(line):
            if step[1].startswith("Get:"):
                self._fetched += 1
            else:
                self._steps += 1
            self._advance()

    def _start_stage(self, text: str) -> None:
        for index, (marker, _, _) in enumerate(STAGES):
            if text.startswith(marker) and index >= self._stage:
                if index != self._stage:
                    self._stage, self._fetched, self._steps = index, 0, 0
                self._report_fraction(STAGES[index][1], STAGES[index][2])
                return

    def _advance(self) -> None:
        marker, start, activity = STAGES[self._stage]
        if not self._total:
            return
        end = STAGES[self._stage + 1][1] if self._stage + 1 < len(STAGES) else 1.0
        fetched, stepped = self._fetched / self._total, self._steps / (2 * self._total)
        if not marker.startswith("installing remaining"):
            self._report_fraction(start + (end - start) * min(1.0, fetched or stepped), activity)
        elif self._steps:
            self._report_fraction(UNPACK_FROM + (UNPACK_TO - UNPACK_FROM) * min(1.0, stepped), "installing packages")
        else:
            self._report_fraction(
                start + (UNPACK_FROM - start) * min(1.0, fetched), f"{activity} {self._fetched}/{self._total}"
            )

    def _report_fraction(self, fraction: float, activity: str) -> None:
        self._fraction = max(self._fraction, fraction)
        self._report(self._fraction, activity)


class StepProgress:
    """Turns the output of a script into a fraction: lines such as "step 0.1-0.4 downloading packages" give the position
    of the bar at the start and end of the step, and apt's output moves it in between. Other lines are ignored."""

    def __init__(self, report: Callable[[float, str], None]) -> None:
        self._report = report
        self._begin = self._end = 0.0
        self._activity = ""
        self._expected = self._seen = 0

    def feed(self, line: str) -> None:
        if step := _SCRIPT_STEP.match(line):
            self._begin, self._activity = float(step[1]), step[3]
            self._end = float(step[2] or step[1])
            self._expected = self._seen = 0
            self._report(self._begin, self._activity)
        elif total := _TOTAL.match(line):
            self._expected, self._seen = int(total[1]), 0
        elif (step := _STEP.match(line)) and self._expected:
            self._seen += 1
            events = self._expected if step[1].startswith("Get:") else 2 * self._expected  # unpacked, then set up
            self._report(self._begin + (self._end - self._begin) * min(1.0, self._seen / events), self._activity)


class ProgressBar:
    """A single line that is redrawn. For terminals."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title, self._stream = title, stream
        self._started_at = time.monotonic()
        self._drawn = ""

    def update(self, fraction: float, activity: str) -> None:
        columns = shutil.get_terminal_size().columns
        seconds = f"{time.monotonic() - self._started_at:3.0f} s"
        width = max(10, min(40, columns - len(self._title) - 50))
        filled = round(width * min(max(fraction, 0.0), 1.0))
        line = f"{self._title} [{'█' * filled}{'·' * (width - filled)}] {fraction:4.0%} {seconds}  {activity}"[
            : columns - 1
        ]
        if line != self._drawn:
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()
            self._drawn = line

    def finish(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{self._title}: {text} ({time.monotonic() - self._started_at:.0f} s)\n")
        self._stream.flush()


class ProgressLines:
    """Writes a line for each new activity and for each tenth. For logs and pipes."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title, self._stream = title, stream
        self._started_at = time.monotonic()
        self._tenth = -1

    def update(self, fraction: float, activity: str) -> None:
        tenth = int(fraction * 10)
        if tenth > self._tenth:
            self._tenth = tenth
            self._write(f"{tenth * 10}% {activity}")

    def finish(self, text: str) -> None:
        self._write(f"{text} ({time.monotonic() - self._started_at:.0f} s)")

    def _write(self, text: str) -> None:
        self._stream.write(f"{self._title}: {text}\n")
        self._stream.flush()


def make_report(title: str, stream: TextIO | None = None) -> Report:
    """Return a report that suits the stream (default: standard error)."""
    stream = stream or sys.stderr
    return ProgressBar(title, stream) if stream.isatty() else ProgressLines(title, stream)
