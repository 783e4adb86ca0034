"""The programs with which the files in `deploy/` are tested, unpacked by scripts/deployment-programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.harness.processes import ROOT

DEPLOY = ROOT / "deploy"
_UNPACKED = ROOT / ".cache" / "deployment" / "root" / "usr"
STOP_SECONDS = 20


def find_program(name: str) -> str:
    """Return the path of a program, or skip the test."""
    folders = os.pathsep.join((str(_UNPACKED / "bin"), str(_UNPACKED / "sbin"), os.environ["PATH"]))
    found = shutil.which(name, path=folders)
    if found is None:
        pytest.skip(f"{name} is missing: run scripts/deployment-programs")
    return found


@contextlib.contextmanager
def running_program(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent) as process:
        try:
            yield process
        except BaseException:
            print(log.read_text()[-5000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
