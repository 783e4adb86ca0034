"""The programs that run in sandboxes are complete and valid, and use the platform's Git options."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path

import pytest

from sandyard.platform.domain.git.checkout.program_runner import GIT, load_program

PROGRAMS = sorted(
    Path(str(path)) for path in (resources.files("sandyard.platform.domain.git.checkout") / "programs").iterdir()
)
GUEST_PROGRAMS = sorted(Path(str(resources.files("sandyard.platform.domain.sandboxes.e2b.guest"))).glob("*.sh"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_complete_and_valid(path: Path) -> None:
    text = load_program(path.stem)
    assert ". ./" not in text, "included files are part of the text"
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("path", [*PROGRAMS, *GUEST_PROGRAMS], ids=lambda path: path.stem)
def test_programs_pass_shellcheck(path: Path) -> None:
    checked = subprocess.run(
        ["shellcheck", "--shell=bash", "--severity=error", path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_programs_and_reads_use_the_same_git_options(tmp_path: Path) -> None:
    fake = tmp_path / "git"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    script = load_program("functions") + 'g "a b" "*"'
    ran = subprocess.run(
        ["bash", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [*GIT[1:], "a b", "*"]
