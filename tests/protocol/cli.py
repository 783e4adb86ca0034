"""Run the real `e2b` command in its own process with its own home directory, on a pipe or on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from tests.harness.engine import Engine
from tests.harness.processes import ROOT

from .compatibility.recording import note_command

PACKAGES = Path(__file__).parent / "js" / "node_modules"
SCRIPT = PACKAGES / "@e2b/cli/dist/index.js"
SECONDS = 60


def find_node() -> str:
    path = shutil.which("node", path=f"{ROOT / '.venv-node/bin'}{os.pathsep}{os.environ['PATH']}")
    assert path, "node is missing: run `make setup-test`"
    return path


def _command_words(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command group and command, such as `sandbox snapshot list`, without options."""
    return arguments[: 3 if arguments[:2] == ("sandbox", "snapshot") else 2]


class Cli:
    """`cli("sandbox", "list")` runs the command, checks its exit code (`code`, by default 0) and returns its output."""

    def __init__(self, engine: Engine, home: Path) -> None:
        assert SCRIPT.exists(), "@e2b/cli is missing: run `make setup-test`"
        self._command = [find_node(), str(SCRIPT)]
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "NO_UPDATE_NOTIFIER": "1",  # the check would contact npm's registry
            **engine.environment,
        }

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None, **variables: str) -> str:
        note_command(*_command_words(arguments))
        result = subprocess.run(
            [*self._command, *arguments],
            env={**self._environment, **variables},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert result.returncode == code, f"{result.returncode}: {result.stdout}{result.stderr}"
        return result.stdout + result.stderr

    @contextlib.contextmanager
    def terminal(self, *arguments: str, **variables: str) -> Iterator[Terminal]:
        """Run the command on a pseudo terminal with 100 columns and 30 rows."""
        note_command(*_command_words(arguments))
        own_end, child_end = pty.openpty()
        fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        process = subprocess.Popen(
            [*self._command, *arguments],
            env={**self._environment, "TERM": "xterm", **variables},
            stdin=child_end,
            stdout=child_end,
            stderr=child_end,
            start_new_session=True,
        )
        os.close(child_end)
        try:
            yield Terminal(process, own_end)
        finally:
            process.kill()
            process.wait()
            os.close(own_end)


class Terminal:
    """Types into a command on a terminal and waits for expected output."""

    def __init__(self, process: subprocess.Popen[bytes], handle: int) -> None:
        self._process = process
        self._handle = handle
        self.seen = ""

    def type(self, line: str) -> None:
        os.write(self._handle, f"{line}\r".encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process.send_signal(28)  # SIGWINCH: the session has no controlling terminal that would send it

    def expect(self, text: str, seconds: float = SECONDS) -> None:
        """Wait until `text` appears after the previous match; if it does not, fail and show the output so far."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown:\n{self.seen}"
            if select.select([self._handle], [], [], left)[0]:
                self.seen += self._read(text)
        self.seen = self.seen.partition(text)[2]

    def wait_for_exit(self, seconds: float = SECONDS) -> int:
        """Read the output until the command exits, and return its exit code."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            if select.select([self._handle], [], [], 0.1)[0]:
                with contextlib.suppress(AssertionError):
                    self.seen += self._read("")
        return self._process.wait(1)

    def _read(self, expected: str) -> str:
        try:
            return os.read(self._handle, 65536).decode(errors="replace")
        except OSError as error:  # the other end is closed
            raise AssertionError(f"the command ended before {expected!r} was shown:\n{self.seen}") from error
