"""What `sandyard run` asks git about a repository on this machine, which may be anybody's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sandyard.cli.tasks.trying import left_out, repository_of


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A repository whose configuration names programs wherever `git status` would run one."""
    folder = tmp_path / "repository"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path / "ran"}\nexec cat\n')
    program.chmod(0o755)

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)

    folder.mkdir()
    git("init", "-q", "-b", "main")
    (folder / ".gitattributes").write_text("*.txt filter=one\n*.md filter=two\n")
    for name in ("a.txt", "b.md"):
        (folder / name).write_text("before\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    for name in ("a.txt", "b.md"):
        (folder / name).write_text("after!\n")
    git("config", "core.fsmonitor", str(program))
    git("config", "filter.one.clean", str(program))
    git("config", "filter.two.process", str(program))
    git("config", "filter.two.required", "true")
    return folder


def test_nothing_that_a_repository_names_is_run(hostile: Path) -> None:
    assert repository_of(str(hostile), local=True) == str(hostile)
    assert (left_out(str(hostile)) or "").startswith("2 files are not committed")
    assert not (hostile.parent / "ran").exists(), (hostile.parent / "ran").read_text()
