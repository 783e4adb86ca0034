"""Sandyard's own part of the code interpreter's template, as a thin layer: the server, the kernels and their kernel specs."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import shutil
import sys
from pathlib import Path

from sandyard.engine import interpreter as program
from sandyard.engine.sandboxes.model import StartCommand
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion

NAME = "interpreter-program"
PROGRAM = Path(program.__file__).parent
HOME = "opt/interpreter"
START = StartCommand(
    command=f"exec sudo -n /{HOME}/start", ready="exec curl -fso /dev/null --max-time 5 http://127.0.0.1:49999/health"
)
KERNELS = {"python3": "python", "javascript": "javascript", "typescript": "typescript", "bash": "bash"}
USER_ID = 1000
"""The owner of /usr/local in the base; files added there belong to the same user."""


def ensure_layer(folder: TemplateFolder, python: str) -> TemplateVersion:
    """Return the layer with the current program for a template with this Python version, creating it if needed. Blocks
    briefly."""
    digest = hashlib.sha256(json.dumps([python, _read_content()]).encode()).hexdigest()[:16]
    if existing := folder.find(NAME, digest):
        return existing
    with folder.open_build_directory(NAME) as work:
        if existing := folder.find(NAME, digest):
            return existing
        _write_program(work / ROOTFS, python)
        return folder.publish(work, folder.make_version(NAME, digest, f"for Python {python}", {}))


def _list_files() -> list[Path]:
    return [path for path in sorted(PROGRAM.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def _read_content() -> list[list[str]]:
    own = [["kernels", json.dumps(KERNELS)], ["this", Path(__file__).read_text()]]
    return [*own, *([str(path.relative_to(PROGRAM)), path.read_text()] for path in _list_files())]


def _write_program(root: Path, python: str) -> None:
    """Write the program. `sandyard` and `sandyard.engine` are plain namespace folders there."""
    home = root / HOME
    shutil.copytree(
        PROGRAM, home / "sandyard/engine/interpreter", ignore=shutil.ignore_patterns("__pycache__", "programs")
    )
    for script in (PROGRAM / "programs").iterdir():
        shutil.copyfile(script, home / script.name)
    for name, kernel in KERNELS.items():
        target = root / "usr/local/share/jupyter/kernels" / name
        target.mkdir(parents=True)
        spec = {
            "argv": [f"/{HOME}/jupyter-server", kernel, "-f", "{connection_file}"],
            "display_name": kernel.title(),
            "language": kernel,
            "metadata": {"forked": kernel},
        }
        (target / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n")
    if python == f"{sys.version_info.major}.{sys.version_info.minor}":  # otherwise it is compiled at each start
        for path in home.rglob("*.py"):
            py_compile.compile(
                str(path),
                dfile=f"/{path.relative_to(root)}",
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
    _set_owners(root)


def _set_owners(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        program_file = path.parent == root / HOME and path.is_file()
        path.chmod(0o755 if path.is_dir() or program_file else 0o644)
        if os.geteuid() == 0:
            owner = USER_ID if path.is_relative_to(root / "usr/local") else 0
            os.chown(path, owner, owner, follow_symlinks=False)
