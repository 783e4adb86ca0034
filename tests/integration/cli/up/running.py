"""A supervisor under test: its process, what it has said, and which processes it has left."""

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
    """Everything it says is kept in `said`, a line each."""

    def __init__(self, command: Sequence[str], marker: str, environment: dict[str, str] | None = None) -> None:
        self.marker = marker
        self.said: list[str] = []
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
            self.said.append(line.rstrip("\n"))

    def heard(self, pattern: str, times: int = 1, seconds: float = SECONDS) -> re.Match[str]:
        """The `times`th line that `pattern` is found in; waits for it."""
        deadline = time.monotonic() + seconds
        while True:
            found = [match for line in list(self.said) if (match := re.search(pattern, line))]
            if len(found) >= times:
                return found[times - 1]
            if self.process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"it ended before {pattern!r} was heard:\n{self.text}")
            assert time.monotonic() < deadline, f"{pattern!r} was not heard:\n{self.text}"
            time.sleep(0.02)

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    def ends(self, seconds: float = SECONDS) -> int:
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code

    def nothing_left(self, seconds: float = SECONDS) -> None:
        """Waits until no process is left whose environment names the data directory."""
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)

    def processes(self) -> dict[int, str]:
        """Of this supervisor, itself included: their command lines by number."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                told = (folder / "environ").read_bytes().decode(errors="replace")
                if line and (self.marker in line or self.marker in told):
                    found[int(folder.name)] = line
        return found

    def close(self) -> None:
        for number in [self.process.pid, *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()
