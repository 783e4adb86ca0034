"""A root file system of a few megabytes, built in a second from this machine's own programs: a shell, the usual tools, and as much
of Python as a program needs to open a socket. That is enough to test a driver, which does not depend on the contents of a template."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = tuple(
    """
    sh cat chmod cp date dd df echo head id kill ln ls mkdir mkfifo mknod mv nproc
    rm rmdir seq sha256sum sleep stat sync tail touch tr true uname wc
    """.split()
)
PYTHON = "/opt/python/bin/python3"

_PASSWD = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
_GROUP = "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"
_LIST_MODULES = """
import sys, socket, time, os, mmap, ctypes
print("\\n".join(m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)))
"""


def build(root: Path) -> None:
    """Build the tree in `root`, which must not exist."""
    for folder in ("bin", "etc", "tmp", "root", "home/user", "var/data/inner", "proc", "sys", "dev"):
        (root / folder).mkdir(parents=True)
    for path, mode in ((root, 0o755), (root / "tmp", 0o1777), (root / "root", 0o700)):
        path.chmod(mode)
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text(_GROUP)
    (root / "var/data/inner/file").write_text("of the template\n")
    for name in TOOLS:
        _copy_program(root, Path(shutil.which(name) or f"/bin/{name}"), root / "bin" / name)
    _copy_python(root)


def _copy_program(root: Path, source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source.resolve(), target)
    target.chmod(0o755)
    _copy_libraries(root, source.resolve())


def _copy_libraries(root: Path, binary: Path) -> None:
    output = subprocess.run(["ldd", str(binary)], check=False, capture_output=True, text=True).stdout
    for match in re.findall(r"(/\S+)", output):
        library = root / match.lstrip("/")
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(match).resolve(), library)


def _copy_python(root: Path) -> None:
    """Copy the interpreter and the modules that a program loads to open a socket."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys;print(sys.base_prefix,getattr(sys,'_base_executable',sys.executable));{_LIST_MODULES}",
    ]
    first, *modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    prefix, executable = first.split()
    home = root / "opt/python"
    _copy_program(root, Path(executable), home / "bin/python3")
    for module in modules:
        source = Path(module)
        target = home / source.relative_to(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        if source.suffix == ".so":
            _copy_libraries(root, source)
    version = f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    # without this directory, Python prints a warning at every start
    (home / version / "lib-dynload").mkdir(parents=True, exist_ok=True)
