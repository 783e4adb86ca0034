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
"""The path of the files in a sandbox: below a directory that is not part of its image."""
_OMITTED = (  # parts of the standard library that the agent does not use
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "distutils",
    "pydoc_data",
    "config-*",  # of the C compiler, with a static library of 40 MB
    "lib2to3",
    "_tkinter*",
    "_test*",
    "_ctypes_test*",
    "xx*",
    "site-packages",
    "dist-packages",
)
_GUEST = "sandyard/engine/guest"
_PYTHON = (f"{MOUNT_POINT}/ld.so", "--library-path", f"{MOUNT_POINT}/lib", f"{MOUNT_POINT}/python")
OCI_RUNTIME = "oci-runtime"
"""A program in this folder that runs containers; see `guest.containers`."""
SUDO = "sudo"
"""A program in this folder that replaces the image's sudo; see `guest.elevation`."""
_SUDO_SCRIPT = f"""#!/bin/sh
exec {" ".join(_PYTHON)} -I -S -B {MOUNT_POINT}/packages/{_GUEST}/elevation_client.py "$@"
"""

_ORIGINAL_SUDO = "original-sudo"  # an empty file, on which the image's own sudo is mounted
_OCI_RUNTIME_SCRIPT = f"""#!/bin/sh
exec {" ".join(_PYTHON)} -I -S -B {MOUNT_POINT}/packages/{_GUEST}/containers/oci_runtime.py "$@"
"""
_SCRIPTS = {SUDO: _SUDO_SCRIPT, OCI_RUNTIME: _OCI_RUNTIME_SCRIPT}


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
    """Return the agent's command. `config` is the agent's configuration as JSON, which all users of the sandbox can read.
    The secret by which the agent recognizes the engine is its standard input."""
    start = "from sandyard.engine.guest.__main__ import main; main()"
    options = ["--socket", f"0.0.0.0:{AGENT_PORT}", "--secret", "--config", config]
    return [*_PYTHON, "-S", "-P", "-B", "-c", start, *options]


def make_container_service(address: str) -> list[str]:
    """Return the command of the service that starts Docker in a sandbox with this address; see `guest.containers`."""
    program = f"{MOUNT_POINT}/packages/{_GUEST}/containers/service.py"
    return [*_PYTHON, "-I", "-S", "-B", program, address, f"{MOUNT_POINT}/{OCI_RUNTIME}"]


def make_environment() -> list[str]:
    """Return the environment variables of the agent's command."""
    return [f"PYTHONHOME={MOUNT_POINT}", f"PYTHONPATH={MOUNT_POINT}/packages"]


def _get_guest_folder() -> Path:
    return Path(sandyard.__file__).parent.parent / _GUEST


def _compute_digest() -> str:
    """Return a digest of the Python version and of the agent's code."""
    digest = hashlib.sha256(f"{sys.version}{PYTHON}{_OMITTED}{_SCRIPTS}{_ORIGINAL_SUDO}".encode())
    for path in sorted(_get_guest_folder().rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _create(target: Path) -> None:
    """Copy everything into the new directory `target`."""
    (target / "lib").mkdir(parents=True)
    python, stdlib = Path(PYTHON).resolve(), Path(sysconfig.get_path("stdlib"))
    shutil.copy2(python, target / "python")
    shutil.copytree(stdlib, target / "lib" / stdlib.name, ignore=shutil.ignore_patterns(*_OMITTED), symlinks=False)
    packages = target / "packages" / _GUEST
    shutil.copytree(_get_guest_folder(), packages, ignore=shutil.ignore_patterns("__pycache__", "*.toml"))
    for parent in (packages.parent, packages.parent.parent):
        (parent / "__init__.py").touch()
    extensions = (target / "lib" / stdlib.name / "lib-dynload").glob("*.so")
    loader = _copy_libraries([target / "python", *extensions], target / "lib")
    shutil.copy2(loader, target / "ld.so")
    for name, script in _SCRIPTS.items():
        (target / name).write_text(script)
        (target / name).chmod(0o755)
    (target / _ORIGINAL_SUDO).touch()
    for path in [target, *target.rglob("*")]:  # readable by the sandbox's users, independent of this process's umask
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def _copy_libraries(programs: Iterable[Path], target: Path) -> Path:
    """Copy the shared libraries that these programs need. Return the path of the dynamic loader."""
    loader: Path | None = None
    output = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for path in map(Path, dict.fromkeys(re.findall(r"(/\S+) \(0x", output))):
        if path.name.startswith("ld-"):
            loader = path
        elif not (target / path.name).exists():
            shutil.copy2(path, target / path.name)
    if loader is None:
        raise SandyardError(
            f"Could not copy the Python at {PYTHON} for gVisor sandboxes: ldd found no dynamic loader. "
            "Run the engine with a dynamically linked Python."
        )
    return loader
