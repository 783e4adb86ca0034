"""Local repositories, served to a platform whose user may not read them. Real git on both sides."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.cli.up import local_git
from sandyard.cli.up.local_git import LocalGit, RefusedError, find_repository
from sandyard.platform.domain.repositories.errors import RemoteMissingError, RemoteRefusedError
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.remote import parse_remote

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="switches to the owner of a repository")
NOBODY = pwd.getpwnam("nobody")
HOOKS = "pre-receive update post-receive post-update reference-transaction proc-receive push-to-checkout".split()


def git(folder: Path, *words: str) -> str:
    options = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@localhost",
        "-c",
        "safe.directory=*",
        "-c",
        "core.hooksPath=/dev/null",
    )
    done = subprocess.run(["git", "-C", str(folder), *options, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A hostile repository of root: wherever git could run a program of the repository, that program leaves a trace."""
    folder = tmp_path / "a repository"
    folder.mkdir(mode=0o755)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    program = folder / ".git" / "program"
    program.write_text(f"#!/bin/sh\necho $0 $* >> '{tmp_path}/ran'\ncat\n")
    program.chmod(0o755)
    (folder / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in HOOKS:
        (folder / ".git" / "hooks" / hook).symlink_to(program)
    other = tmp_path / "other.git"
    git(tmp_path, "clone", "-q", "--bare", str(folder), str(other))
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{other}/objects\n")
    for (
        name
    ) in "core.fsmonitor core.alternateRefsCommand core.sshCommand uploadpack.packObjectsHook gpg.program".split():
        git(folder, "config", name, f"'{program}'")
    git(folder, "config", "core.hooksPath", str(folder / ".git" / "hooks"))
    git(folder, "config", "receive.denyCurrentBranch", "updateInstead")
    git(folder, "config", "receive.autogc", "true")
    git(folder, "config", "gc.auto", "1")
    return folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that all users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def platform_git(tmp_path: Path) -> Iterator[Git]:
    server = LocalGit(os.geteuid())
    server.start()
    yield Git(tmp_path / "platform" / "git", timeout_s=60, local=server.name)
    server.close()


async def test_fetch_and_push_run_no_program_of_the_repository(
    platform_git: Git, repository: Path, tmp_path: Path
) -> None:
    remote = parse_remote(str(repository))
    head = git(repository, "rev-parse", "main")
    listing = await platform_git.run("ls-remote", "--", remote.url, cwd=None, remote=remote)
    assert f"{head}\trefs/heads/main".encode() in listing.stdout
    mirror = tmp_path / "platform" / "mirror.git"
    await platform_git.run("init", "-q", "--bare", str(mirror), cwd=None)
    await platform_git.run("fetch", remote.url, "+refs/heads/*:refs/heads/*", cwd=mirror, remote=remote)
    tree = git(mirror, "rev-parse", "main^{tree}")
    made = git(mirror, "commit-tree", tree, "-p", "main", "-m", "more")
    await platform_git.run("push", "--", remote.url, f"{made}:refs/heads/work", cwd=mirror, remote=remote)
    assert git(repository, "rev-parse", "work") == made
    refused = await platform_git.run(
        "push", "--porcelain", "--", remote.url, f"{made}:refs/heads/main", cwd=mirror, remote=remote, ok=(0, 1)
    )
    assert b"branch is currently checked out" in refused.stdout, "the work tree is not written either"
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


async def test_git_runs_as_the_owner_and_writes_only_to_the_repository(platform_git: Git, open_folder: Path) -> None:
    folder, elsewhere, mirror = (open_folder / name for name in ("bare.git", "elsewhere", "mirror.git"))
    for bare in (folder, mirror):
        git(open_folder, "init", "-q", "--bare", "-b", "main", str(bare))
    elsewhere.mkdir()
    (folder / "refs" / "heads").rmdir()
    (folder / "refs" / "heads").symlink_to(elsewhere)
    made = git(mirror, "commit-tree", git(mirror, "mktree", "--missing"), "-m", "first")
    remote = parse_remote(str(folder))
    words = ("push", "--porcelain", "--", remote.url, f"{made}:refs/heads/work")
    await platform_git.run(*words, cwd=mirror, remote=remote, ok=(0, 1))
    assert not list(elsewhere.iterdir()), "a link in a repository of root must not lead to other files of root"
    (folder / "refs" / "heads").unlink()
    (folder / "refs" / "heads").mkdir()
    subprocess.run(["chown", "-R", f"{NOBODY.pw_uid}:{NOBODY.pw_gid}", str(folder)], check=True)
    await platform_git.run(*words, cwd=mirror, remote=remote)
    assert (folder / "refs" / "heads" / "work").stat().st_uid == NOBODY.pw_uid


async def test_requests_of_other_users_are_rejected(repository: Path, tmp_path: Path) -> None:
    server = LocalGit(NOBODY.pw_uid)
    server.start()
    client = Git(tmp_path / "platform" / "git", timeout_s=60, local=server.name)
    remote = parse_remote(str(repository))
    try:
        with pytest.raises(RemoteRefusedError, match="did not respond"):
            await client.run("ls-remote", "--", remote.url, cwd=None, remote=remote)
    finally:
        server.close()


async def test_a_missing_repository_is_reported(platform_git: Git, tmp_path: Path) -> None:
    for path, kind, words in [
        (tmp_path, RemoteMissingError, "does not appear to be"),
        (tmp_path / "none", RemoteRefusedError, "No such file"),
    ]:
        remote = parse_remote(str(path))
        with pytest.raises(kind, match=words):
            await platform_git.run("ls-remote", "--", remote.url, cwd=None, remote=remote)


def test_only_repositories_of_one_owner_in_allowed_directories_are_served(repository: Path, tmp_path: Path) -> None:
    found = find_repository(str(repository))
    assert (found.folder, found.uid) == (f"{repository}/.git", 0)
    assert find_repository(f"{repository}/.git").folder == f"{repository}/.git"
    tree = tmp_path / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    assert find_repository(str(tree)).folder == f"{repository}/.git"
    link = tmp_path / "link"
    link.symlink_to(repository)
    for wrong in (str(link), f"{link}/.git"):
        with pytest.raises(RefusedError, match="symbolic link"):
            find_repository(wrong)
    for wrong in ("relative", f"{repository}/../x", "", f"{repository}\0"):
        with pytest.raises(RefusedError):
            find_repository(wrong)
    for folders in ([], [str(repository / "x")], [f"{tmp_path}/a"]):
        with pytest.raises(RefusedError, match="SANDYARD_LOCAL_REPOSITORIES"):
            find_repository(str(repository), folders)
    assert find_repository(str(repository), ["/srv", str(tmp_path)]) == found
    repository.chmod(0o777)
    with pytest.raises(RefusedError, match="other users may write"):
        find_repository(str(repository))
    os.chown(repository, NOBODY.pw_uid, NOBODY.pw_gid)
    with pytest.raises(RefusedError, match="a different user"):
        find_repository(str(repository))


def test_hooks_are_disabled() -> None:
    words = local_git.make_command("receive-pack", local_git.Repository("/x", 1, 1))
    assert "core.hooksPath=/dev/null" in words
    assert words[-2:] == ["receive-pack", "/x"]
