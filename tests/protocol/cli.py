"""The real `e2b` command, in a process of its own, with a home of its own, on a pipe or on a terminal."""

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

from .compatibility.recording import note_command
from .engine import ROOT, Engine

PACKAGES = Path(__file__).parent / "js" / "node_modules"
SCRIPT = PACKAGES / "@e2b/cli/dist/index.js"
SECONDS = 60


def node() -> str:
    found = shutil.which("node", path=f"{ROOT / '.venv-node/bin'}{os.pathsep}{os.environ['PATH']}")
    assert found, "node is missing: `make setup-test` brings it"
    return found


def _verb(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """`sandbox snapshot list` of what was typed: names of groups and the command in them."""
    return arguments[: 3 if arguments[:2] == ("sandbox", "snapshot") else 2]


class Cli:
    """`cli("sandbox", "list")` runs it to its end and hands back what it said; it must succeed unless `code` is another."""

    def __init__(self, engine: Engine, home: Path) -> None:
        assert SCRIPT.exists(), "@e2b/cli is missing: `make setup-test` brings it"
        self._command = [node(), str(SCRIPT)]
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "NO_UPDATE_NOTIFIER": "1",  # it would ask npm's registry
            **engine.environment,
        }

    def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None, **variables: str) -> str:
        note_command(*_verb(arguments))
        ran = subprocess.run(
            [*self._command, *arguments],
            env={**self._environment, **variables},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == code, f"{ran.returncode}: {ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    @contextlib.contextmanager
    def terminal(self, *arguments: str, **variables: str) -> Iterator[Terminal]:
        """The command on a pseudo terminal of 100 columns and 30 rows."""
        note_command(*_verb(arguments))
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        process = subprocess.Popen(
            [*self._command, *arguments],
            env={**self._environment, "TERM": "xterm", **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            process.wait()
            os.close(ours)


class Terminal:
    """A person at a keyboard: types, and looks for what must appear."""

    def __init__(self, process: subprocess.Popen[bytes], handle: int) -> None:
        self._process = process
        self._handle = handle
        self.seen = ""

    def type(self, line: str) -> None:
        os.write(self._handle, f"{line}\r".encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process.send_signal(28)  # SIGWINCH: its session has no controlling terminal that would send it

    def expect(self, text: str, seconds: float = SECONDS) -> None:
        """Return when the screen has shown `text` since the last time; fail with all it has shown."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown:\n{self.seen}"
            if select.select([self._handle], [], [], left)[0]:
                self.seen += self._read(text)
        self.seen = self.seen.partition(text)[2]

    def ends(self, seconds: float = SECONDS) -> int:
        """Its exit code, with all it said until then read."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            if select.select([self._handle], [], [], 0.1)[0]:
                with contextlib.suppress(AssertionError):
                    self.seen += self._read("")
        return self._process.wait(1)

    def _read(self, wanted: str) -> str:
        try:
            return os.read(self._handle, 65536).decode(errors="replace")
        except OSError as error:  # the other side is closed
            raise AssertionError(f"it ended before {wanted!r} was shown:\n{self.seen}") from error
