"""Processes under test. `Program` is forked from a process that has already imported the modules of `sandyard`, because the
imports take most of the startup time. `Running` is any command, started as a user does, with its output line by line."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.net.syscalls import enter_network_namespace
from tests.harness.releases import Release

ROOT = Path(__file__).parents[2]
"""The repository, in which all programs run."""
SECONDS = 60

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.harness.preload"])


def kill_users(folder: Path) -> None:
    """Kill all processes that have this folder in their arguments, including those that they start meanwhile."""
    quiet = 0
    while quiet < 3:
        users = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if _is_named(folder, path)]
        for process in users:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        quiet = 0 if users else quiet + 1
        time.sleep(0.05)


def _is_named(folder: Path, cmdline: Path) -> bool:
    try:
        return str(folder) in cmdline.read_text(errors="replace")
    except OSError:
        return False


class Program:
    """A `sandyard` process with the part of the interface of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str],
        folder: Path,
        out: Path,
        err: Path,
        *,
        network: Path | None = None,
        release: Release | None = None,
    ) -> None:
        """`network`: the network namespace that it runs in. `release`: None is the present one."""
        self._arguments = arguments
        details = (arguments, environment, folder, out, err, network, release)
        self._process = _context.Process(target=_run, args=details, daemon=True)
        self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: list[str],
    environment: dict[str, str],
    folder: Path,
    out: Path,
    err: Path,
    network: Path | None,
    release: Release | None,
) -> None:
    # the fork server ends with the tests, also if these are killed
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    if network is not None:
        namespace = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
        enter_network_namespace(namespace)
        os.close(namespace)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["sandyard", *arguments]
    if release is not None:
        release.apply()
    from sandyard.__main__ import main  # noqa: PLC0415 - it is loaded in the forked process already, and not needed here

    main()


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
        """Return the processes of this command, including itself: command lines by process id."""
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
