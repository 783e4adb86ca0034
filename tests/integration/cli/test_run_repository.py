"""`sandyard run` reads a local repository with git. The repository may be hostile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sandyard.cli.run import describe_uncommitted, resolve_repository


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A repository whose configuration names a program wherever `git status` would run one."""
    folder = tmp_path / "repository"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path / "ran"}\nexec cat\n')
    program.chmod(0o755)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)

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


def test_no_program_named_by_the_repository_is_run(hostile: Path) -> None:
    assert resolve_repository(str(hostile), is_local=True) == str(hostile)
    assert (describe_uncommitted(str(hostile)) or "").startswith("2 files are not committed")
    assert not (hostile.parent / "ran").exists(), (hostile.parent / "ran").read_text()


@pytest.mark.parametrize("name", [b"a=b", b"a\x0cb", b"a\x1cb", "a\u2028b".encode(), b"a\xff"], ids=ascii)
def test_filters_with_unusual_names_are_not_run(hostile: Path, name: bytes) -> None:
    program = hostile.parent / "program"
    (hostile / ".gitattributes").write_bytes(b"* filter=" + name + b"\n")
    with (hostile / ".git" / "config").open("ab") as config:
        config.write(b'[filter "' + name + b'"]\n\tclean = ' + bytes(program) + b"\n")
    subprocess.run(["git", "-C", str(hostile), "-c", "core.fsmonitor=false", "status"], check=True, capture_output=True)
    ran = hostile.parent / "ran"
    assert ran.read_text(), "git itself runs the filter"
    ran.unlink()
    assert describe_uncommitted(str(hostile))
    assert not ran.exists(), ran.read_text()
