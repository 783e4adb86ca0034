"""`sandyard up` for tests: the real engine, the real platform and the CLI."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.harness.engine import SCRATCH
from tests.harness.processes import ROOT, Running

SECONDS = 60


@dataclass(frozen=True)
class CommandResult:
    returncode: int
    stdout: bytes
    stderr: bytes


class Installation:
    """One `sandyard up` with its own data directory, and a CLI that is logged in as administrator."""

    def __init__(
        self,
        *options: str,
        settings: dict[str, str] | None = None,
        wrapper: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        """`wrapper`: the start of a command that runs `sandyard up`. `python`: the interpreter that has the version to run."""
        self.folder = Path(tempfile.mkdtemp(prefix="sandyard-cli-", dir=SCRATCH))
        self.data = self.folder / "data"
        self.options = options
        self.wrapper = wrapper
        self.python = python
        self.settings = {"SANDYARD_POOL_SIZE": "1", **(settings or {})}
        self.token = ""
        self.url = ""
        self.start()

    def start(self) -> None:
        command = [self.python, "-m", "sandyard", "up", "--port", self.port, "--data-dir", str(self.data)]
        self.up = Running([*self.wrapper, *command, *self.options], str(self.data), self.settings)
        try:
            self.url = self.up.wait_for_line(r"Sandyard is at (http://\S+);", seconds=120)[1]
            self.up.wait_for_line("^To use it from the command line:")  # the next line
        except AssertionError:
            self.stop()
            raise
        if not self.token:
            self.token = self.up.wait_for_line(r"^admin token: (sy_\S+)$")[1]

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2] or "0"

    @property
    def environment(self) -> dict[str, str]:
        config = {"XDG_CONFIG_HOME": str(self.folder / "config"), "COLUMNS": "200"}
        return {**os.environ, **config, "SANDYARD_URL": self.url, "SANDYARD_TOKEN": self.token}

    def pids(self, name: str) -> list[int]:
        """Process ids of `sandyard engine` or `sandyard platform`."""
        return [number for number, line in self.up.processes().items() if f"-m sandyard {name}" in line]

    def kill(self, name: str, *, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Send SIGKILL to the engine or the platform, and wait until it is ready again. `meanwhile` is called in between."""
        before = len([line for line in self.up.lines if re.match(rf"{name} +ready", line)])
        (number,) = self.pids(name)
        os.kill(number, signal.SIGKILL)
        meanwhile()
        self.up.wait_for_line(rf"^{name} +ready", before + 1)

    def run(self, *arguments: str, stdin: bytes = b"", **settings: str | None) -> CommandResult:
        """Run a command in this process, where all modules are loaded already. `settings`: variables to change; None unsets one."""
        result = CliRunner().invoke(cli, arguments, input=stdin, env=self.environment | settings)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return CommandResult(result.exit_code, result.stdout_bytes, result.stderr_bytes)

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must succeed. Returns its output."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout.decode()

    def start_command(self, *arguments: str) -> Running:
        return Running(self.command(*arguments), str(self.folder), self.environment)

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "sandyard", *arguments]

    def stop(self) -> None:
        if self.up.process.poll() is None:
            with contextlib.suppress(Exception):
                self.kill_sandboxes()
            self.up.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.up.wait_for_exit()
        self.up.close()
        self.unmount()
        shutil.rmtree(self.folder, ignore_errors=True)

    def unmount(self) -> None:
        """Unmount what the engine has mounted."""
        for mount in sorted(self._mounts(), key=len, reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)

    def kill_sandboxes(self) -> None:
        for sandbox in json.loads(self.ok("sandbox", "list", "--limit", "200"))["items"]:
            self.run("sandbox", "kill", sandbox["id"])

    def _mounts(self) -> list[str]:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [point for point in points if point.startswith(f"{self.folder}/")]


def run_json(installation: Installation, *arguments: str) -> Any:
    """Run a command and return the JSON that it prints."""
    return json.loads(installation.ok(*arguments, "-o", "json"))


class Terminal:
    """A command in its own terminal. Its output is kept in `shown`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.shown = b""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(command[0], command, {**environment, "TERM": "xterm"})
        self._code: int | None = None

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: str, seconds: float = SECONDS) -> None:
        """Wait until the text is shown, and drop the output up to there."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self.shown!r}"
            assert self._read(0.1) or self._code is None, f"the command ended before it showed {text!r}: {self.shown!r}"
        self.shown = self.shown.partition(text.encode())[2]

    def wait_for_exit(self, seconds: float = SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while self._code is None:
            assert time.monotonic() < deadline, f"the command did not end: {self.shown!r}"
            self._read(0.1)
        return self._code

    def close(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)

    def _read(self, seconds: float) -> bool:
        if select.select([self._master], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                if data := os.read(self._master, 65536):
                    self.shown += data
                    return True
        if self._code is None:
            number, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if number else None
        return False


@contextlib.contextmanager
def in_terminal(installation: Installation, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(installation.command(*arguments), installation.environment)
    try:
        yield terminal
    finally:
        terminal.close()
