"""A command under test: its process, its output, and the processes that it left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[4]
SECONDS = 60


class Running:
    """A running command. Its output is kept in `lines`."""

    def __init__(self, command: Sequence[str], marker: str, environment: dict[str, str] | None = None) -> None:
        self.marker = marker
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for_line(self, pattern: str, times: int = 1, seconds: float = SECONDS) -> re.Match[str]:
        """Wait for the `times`th line that matches the pattern."""
        deadline = time.monotonic() + seconds
        while True:
            found = [match for line in list(self.lines) if (match := re.search(pattern, line))]
            if len(found) >= times:
                return found[times - 1]
            if self.process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"the command ended before it printed {pattern!r}:\n{self.text}")
            assert time.monotonic() < deadline, f"{pattern!r} was not printed:\n{self.text}"
            time.sleep(0.02)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for_exit(self, seconds: float = SECONDS) -> int:
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def wait_until_none_left(self, seconds: float = SECONDS) -> None:
        """Wait until no process is left whose command line or environment names the data directory."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, f"processes left behind: {left}"
            time.sleep(0.05)

    def processes(self) -> dict[int, str]:
        """The processes of this command, including itself: command lines by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environ = (folder / "environ").read_bytes().decode(errors="replace")
                if line and (self.marker in line or self.marker in environ):
                    found[int(folder.name)] = line
        return found

    def close(self) -> None:
        for number in [self.process.pid, *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()
