"""These tests once more, as a user who is not root: some always, all with --all."""

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
    path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    return subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env=path | environment,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture
def workshop(template: Path) -> Iterator[Path]:
    """A copy of everything that user needs, in a place it can reach: the checkout may lie in somebody's home, and pytest's own
    directories are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="sandyard-rootless-"))
    repository = Path(__file__).parents[2]
    for name in ("src", "tests"):
        shutil.copytree(repository / name, place / name)  # with what Python has compiled of it
    shutil.copy(repository / "pyproject.toml", place)
    shutil.copytree(template, place / "template/rootfs", symlinks=True)
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    yield place
    shutil.rmtree(place)


def _interpreter(packages: str) -> str | None:
    """A Python of this version that this user may run."""
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
@pytest.mark.skipif(os.geteuid() != 0, reason="this is that run")
def test_the_suite_as_another_user(workshop: Path, files: tuple[str, ...]) -> None:
    packages = sysconfig.get_path("purelib")
    python = _interpreter(packages)
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
        str(workshop),
        "--basetemp",
        str(workshop / "tmp"),
    ]
    done = subprocess.run(
        [*command, "-x", *(f"tests/conformance/{name}" for name in files)],
        cwd=workshop,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(workshop),
            "PYTHONPATH": f"{workshop / 'src'}:{workshop}:{packages}",
            "SANDYARD_TINY_TEMPLATE": str(workshop / "template/rootfs"),
        },
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or "[100%]" in done.stdout
