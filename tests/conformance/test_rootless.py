"""Runs these tests again as a user who is not root: some always, all with --all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
_SAME_VERSION = f"import sys, pytest; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"


def _as_nobody(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    return subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=variables | environment,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture
def checkout_copy(template: Path) -> Iterator[Path]:
    """A copy of everything that user needs, in a directory that it can read: the checkout may be in somebody's home, and pytest's own
    directories are closed to other users."""
    directory = Path(tempfile.mkdtemp(prefix="sandyard-rootless-"))
    repository = Path(__file__).parents[2]
    for name in ("src", "tests"):
        shutil.copytree(repository / name, directory / name)  # including the compiled bytecode
    shutil.copy(repository / "pyproject.toml", directory)
    shutil.copytree(template, directory / "template/rootfs", symlinks=True)
    for path in (directory, *directory.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    yield directory
    shutil.rmtree(directory)


def _find_python(packages: str) -> str | None:
    """Return a Python of this version that the user `nobody` may run."""
    for candidate in (sys.executable, getattr(sys, "_base_executable", ""), "/usr/bin/python3"):
        if candidate and Path(candidate).exists():
            try:
                if _as_nobody([candidate, "-c", _SAME_VERSION], PYTHONPATH=packages).returncode == 0:
                    return candidate
            except PermissionError:
                continue
    return None


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "files",
    [
        ("test_connect.py",),
        pytest.param((".",), marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="this is already the run without root")
def test_the_suite_passes_without_root(checkout_copy: Path, files: tuple[str, ...]) -> None:
    packages = sysconfig.get_path("purelib")
    python = _find_python(packages)
    if python is None:
        pytest.skip("no Python of this version that another user may run")
    allowed = _as_nobody([python, "-c", "import ctypes; exit(ctypes.CDLL(None).unshare(0x10000000))"])
    if allowed.returncode:
        pytest.skip("this machine does not let users make user namespaces")
    command = [
        python,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(checkout_copy),
        "--basetemp",
        str(checkout_copy / "tmp"),
    ]
    result = subprocess.run(
        [*command, "-x", *(f"tests/conformance/{name}" for name in files)],
        cwd=checkout_copy,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(checkout_copy),
            "PYTHONPATH": f"{checkout_copy / 'src'}:{checkout_copy}:{packages}",
            "SANDYARD_TINY_TEMPLATE": str(checkout_copy / "template/rootfs"),
        },
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert " passed" in result.stdout or "[100%]" in result.stdout
