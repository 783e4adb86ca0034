"""Starts `sandyard` by forking a process that has already imported its modules: the imports take most of the startup time.
Tests of the startup itself (tests/integration/cli) start it as a user does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.preload"])


class Program:
    """A `sandyard` process with the part of the interface of `subprocess.Popen` that tests need."""

    def __init__(self, arguments: list[str], environment: dict[str, str], folder: Path, out: Path, err: Path) -> None:
        self._arguments = arguments
        self._process = _context.Process(target=_run, args=(arguments, environment, folder, out, err), daemon=True)
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


def _run(arguments: list[str], environment: dict[str, str], folder: Path, out: Path, err: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["sandyard", *arguments]
    from sandyard.__main__ import main  # noqa: PLC0415 - it is loaded in the forked process already, and not needed here

    main()
