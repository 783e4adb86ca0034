"""Start Python with the modules of this process, and never with those of the current working directory.

`python -m` searches the working directory first: a repository with a `tarfile.py` in it would run on this machine for anyone who runs a
command there. Nothing else in this program starts Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

PYTHON = sys.executable
SAFE_FOLDER = "/"
"""The working directory for processes that do not need the caller's. Only root can create files there."""


def make_python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as a program. Start it with `make_python_environment()`, and in `SAFE_FOLDER` unless its
    arguments are relative paths."""
    return [PYTHON, "-P", "-m", module, *arguments]


def make_bare_python_command(*arguments: str) -> list[str]:
    """Return a command that runs a file, or a program after `-c`, with only the standard library and without the environment."""
    return [PYTHON, "-I", "-S", *arguments]


def make_python_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `environ`, by default that of this process, changed so that Python does not search the working directory for modules."""
    changed = dict(os.environ if environ is None else environ)
    changed["PYTHONSAFEPATH"] = "1"
    folders = [folder for folder in changed.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(folder)]  # noqa: PTH117 - a string
    return changed | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})
