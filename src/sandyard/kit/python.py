"""Starting Python again: with the modules that this process has, and never with those of the directory somebody happens to be in.

`python -m` looks into the working directory first: a repository with a `tarfile.py` in it would run on this machine, for whoever
starts a command there. Nothing else in this program starts a Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

PYTHON = sys.executable
SAFE_FOLDER = "/"
"""The working directory of processes that have no business in the caller's. Nobody but root can put a file there."""


def python_command(module: str, *arguments: str) -> list[str]:
    """What runs a module as a program. To be started with `python_environment()`, and in `SAFE_FOLDER` where paths allow it."""
    return [PYTHON, "-P", "-m", module, *arguments]


def bare_python_command(*arguments: str) -> list[str]:
    """With the standard library alone, and nothing of the environment. A file, or `-c` and a program, is run."""
    return [PYTHON, "-I", "-S", *arguments]


def python_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """`environ` (this process's), in which every Python leaves the working directory aside."""
    kept = dict(os.environ if environ is None else environ)
    kept["PYTHONSAFEPATH"] = "1"
    folders = [folder for folder in kept.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(folder)]  # noqa: PTH117 - a text
    return kept | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {})
