"""The files of the agent in a gVisor sandbox: its package, and a Python with its libraries to run it.

A sandbox of the namespace runtime is forked from a process that has loaded the agent; a gVisor sandbox starts it as a
program. Images need not contain Python, so the one that runs the engine is copied, with everything that it loads.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import sandyard
from sandyard.engine.contract import AGENT_PORT
from sandyard.kit.errors import SandyardError
from sandyard.kit.python import PYTHON

MOUNT_POINT = "/dev/.sandyard"
"""Where a sandbox finds the files: below a directory that is not part of its image."""
_SKIPPED = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
)
_GUEST = "sandyard/engine/guest"
_PYTHON = (f"{MOUNT_POINT}/ld.so", "--library-path", f"{MOUNT_POINT}/lib", f"{MOUNT_POINT}/python")
SUDO = "sudo"
"""A program in this folder that replaces the image's sudo; see `guest.elevation`."""
_SUDO_SCRIPT = f"""#!/bin/sh
exec {" ".join(_PYTHON)} -I -S -B {MOUNT_POINT}/packages/{_GUEST}/elevation_client.py "$@"
"""


def get_or_create(folder: Path) -> Path:
    """Return the agent's files in `folder`, created if they are missing. Blocks for a few seconds then."""
    target = folder / f"agent-{_compute_digest()}"
    if target.is_dir():
        return target
    partial = folder / f".{target.name}-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _create(partial)
    partial.rename(target)
    return target


def make_command(config: str) -> list[str]:
    """Return the agent's command. `config` is the agent's configuration as JSON."""
    start = "from sandyard.engine.guest.__main__ import main; main()"
    return [*_PYTHON, "-S", "-P", "-B", "-c", start, "--socket", f"0.0.0.0:{AGENT_PORT}", "--config", config]


def make_environment() -> list[str]:
    return [f"PYTHONHOME={MOUNT_POINT}", f"PYTHONPATH={MOUNT_POINT}/packages"]


def _get_guest_folder() -> Path:
    return Path(sandyard.__file__).parent.parent / _GUEST


def _compute_digest() -> str:
    """Return a digest of the Python version and of the agent's code."""
    digest = hashlib.sha256(f"{sys.version}{PYTHON}{_SKIPPED}{_SUDO_SCRIPT}".encode())
    for path in sorted(_get_guest_folder().rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _create(target: Path) -> None:
    (target / "lib").mkdir(parents=True)
    python, stdlib = Path(PYTHON).resolve(), Path(sysconfig.get_path("stdlib"))
    shutil.copy2(python, target / "python")
    shutil.copytree(stdlib, target / "lib" / stdlib.name, ignore=shutil.ignore_patterns(*_SKIPPED), symlinks=False)
    packages = target / "packages" / _GUEST
    shutil.copytree(_get_guest_folder(), packages, ignore=shutil.ignore_patterns("__pycache__", "*.toml"))
    for parent in (packages.parent, packages.parent.parent):
        (parent / "__init__.py").touch()
    extensions = (target / "lib" / stdlib.name / "lib-dynload").glob("*.so")
    loader = _copy_libraries([target / "python", *extensions], target / "lib")
    shutil.copy2(loader, target / "ld.so")
    (target / SUDO).write_text(_SUDO_SCRIPT)
    (target / SUDO).chmod(0o755)
    for path in [target, *target.rglob("*")]:  # readable by the sandbox's users, whatever this process's umask
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _copy_libraries(programs: Iterable[Path], target: Path) -> Path:
    """Copy the shared libraries that these programs need. Return the path of the dynamic loader."""
    loader: Path | None = None
    for program in programs:
        output = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for path in re.findall(r"(/\S+) \(0x", output):
            if Path(path).name.startswith("ld-"):
                loader = Path(path)
            elif not (target / Path(path).name).exists():
                shutil.copy2(path, target / Path(path).name)
    if loader is None:
        raise SandyardError(f"The Python at {PYTHON} is not a dynamic program of this machine's C library.")
    return loader
