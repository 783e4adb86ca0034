"""Test the way from a local repository to a pushed branch, with a real engine. Tests that need a forge are in tests/acceptance."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, SandyardError
from sandyard.platform.db.models import GitOperation, Sandbox, Session
from sandyard.platform.domain.git import ci_files
from sandyard.platform.domain.git.context import GitContext
from sandyard.platform.domain.git.errors import CommitMessageError, NoCheckoutError, NotInProjectError
from sandyard.platform.domain.git.operations import checkout_handlers, remote_handlers
from sandyard.platform.domain.git.operations.runner import OperationFailedError
from sandyard.platform.domain.git.sandbox_commits import list_refs_of_original
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.errors import TooMuchError
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import Change
from sandyard.platform.domain.sandboxes.service import is_work_snapshot
from sandyard.platform.domain.users.model import Principal
from tests.integration.platform.domain.sandboxes.platform_harness import DEADLINE, PlatformHarness


@dataclass
class Origin:
    """A bare repository as the remote."""

    path: Path

    def git(self, *arguments: str, cwd: Path | None = None, stdin: str | None = None) -> str:
        names = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main"]
        done = subprocess.run(
            ["git", *names, *arguments], cwd=cwd or self.path, input=stdin, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, branch: str = "main", /, **files: str) -> str:
        """Commit and push as somebody else."""
        clone = self.path.with_name(f"{self.path.name}.work")
        if not clone.exists():
            self.git("clone", "-q", str(self.path), str(clone), cwd=self.path.parent)
        self.git("fetch", "-q", "origin", cwd=clone)
        exists = branch in self.branches
        self.git("checkout", "-q", "-B", branch, *([f"origin/{branch}"] if exists else []), cwd=clone)
        for name, text in files.items():
            file = clone / f"{name}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        self.git("add", "-A", cwd=clone)
        self.git("commit", "-qm", "feat: of somebody else", cwd=clone)
        self.git("push", "-q", "origin", f"HEAD:{branch}", cwd=clone)
        return self.git("rev-parse", "HEAD", cwd=clone)

    @property
    def branches(self) -> dict[str, str]:
        lines = self.git("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").splitlines()
        return dict(line.split() for line in lines)


@dataclass
class GitHarness:
    """A platform with a project whose repository has one commit."""

    platform: PlatformHarness
    origin: Origin
    owner: Principal
    project_id: str

    async def create_session(self) -> tuple[Session, Sandbox]:
        """Create a session and wait for its checkout."""
        row, sandbox = await self.platform.services.sessions.create(self.owner, project_id=self.project_id)
        page = await self.platform.services.git.list_operations(self.owner, PageRequest(), sandbox_id=sandbox.id)
        await self.complete(page.items[0])
        return row, sandbox

    async def create_session_without_checkout(self, title: str) -> tuple[Session, Sandbox]:
        """Create a session of the project while that has no repository."""
        services = self.platform.services
        await services.projects.update(self.owner, self.project_id, repository=None)
        created = await services.sessions.create(self.owner, title=title, project_id=self.project_id)
        await services.projects.update(self.owner, self.project_id, repository=str(self.origin.path))
        return created

    async def complete(self, operation: GitOperation) -> dict[str, Any]:
        """Wait for the operation and return its result."""
        async with asyncio.timeout(DEADLINE):
            row = await self.platform.services.git.operations.wait(operation.id)
        self.platform.services.git.operations.raise_failure(row)
        return row.detail

    async def run(self, sandbox: Sandbox, command: str) -> str:
        services = self.platform.services
        row = await services.lifecycle.repository.get(sandbox.id)
        async with services.lifecycle.using(row) as engine_id:
            ran = await services.engine.programs.run(engine_id, ["bash", "-c", command], cwd="/home/user/workspace")
        assert ran.exit_code == 0, ran.stderr
        return ran.stdout.decode()

    async def commit(self, sandbox: Sandbox, message: str = "feat: a thing", **files: str) -> str:
        for name, text in files.items():
            await self.run(sandbox, f"printf '{text}' > {name}.txt")
        return str(
            (await self.complete(await self.platform.services.git.commit(self.owner, sandbox.id, message=message)))[
                "commit"
            ]
        )

    async def push(self, sandbox: Sandbox) -> dict[str, Any]:
        return await self.complete(await self.platform.services.git.push(self.owner, sandbox.id))

    async def update(self, sandbox: Sandbox, how: Any, source: Any = "base") -> dict[str, Any]:
        return await self.complete(
            await self.platform.services.git.update(self.owner, sandbox.id, how=how, source=source)
        )


@pytest.fixture
async def harness(platform: PlatformHarness, tmp_path: Path) -> AsyncIterator[GitHarness]:
    origin = Origin(tmp_path / "origin.git")
    origin.git("init", "-q", "--bare", str(origin.path), cwd=tmp_path)
    origin.commit(readme="hello\n")
    owner = await platform.create_person("chief", "admin")
    project = await platform.services.projects.create(owner, "site", repository=str(origin.path), base_branch="main")
    yield GitHarness(platform, origin, owner, project.id)


async def test_a_session_becomes_a_branch_on_the_remote(harness: GitHarness) -> None:
    git = harness.platform.services.git
    row, sandbox = await harness.create_session()
    assert await harness.run(sandbox, "cat readme.txt") == "hello\n"
    checkout = await git.get_checkout(harness.owner, sandbox.id)
    assert checkout.branch == f"session/untitled-session-{row.id[-4:]}"
    assert (await git.get_status(harness.owner, sandbox.id)).clean
    assert await git.list_commits(harness.owner, sandbox.id) == []
    assert [base_commit.subject for base_commit in await git.list_base_commits(harness.owner, sandbox.id)] == [
        "feat: of somebody else"
    ]

    await harness.run(sandbox, "echo more >> readme.txt; echo new > 'a b.txt'")
    status = await git.get_status(harness.owner, sandbox.id)
    assert {(entry.path, entry.worktree) for entry in status.entries} == {
        ("readme.txt", Change.MODIFIED),
        ("a b.txt", Change.UNTRACKED),
    }
    diff = await git.get_diff(harness.owner, sandbox.id)
    assert {file.path: (file.added, file.removed) for file in diff.files} == {"readme.txt": (1, 0), "a b.txt": (1, 0)}

    commit = await harness.commit(sandbox, "feat: say more")
    pushed = await harness.push(sandbox)
    assert (pushed["commit"], pushed["commits"], pushed["upToDate"]) == (commit, 1, False)
    assert harness.origin.branches[checkout.branch] == commit
    assert (
        harness.origin.git("log", "-1", "--format=%an <%ae> %s", commit)
        == "Sandyard <sandyard@localhost> feat: say more"
    )
    assert (await harness.push(sandbox))["upToDate"] is True  # repeating is safe
    assert [item.id for item in await git.list_commits(harness.owner, sandbox.id)] == [commit]
    commits, compared = await git.compare(harness.owner, harness.project_id, "main", checkout.branch)
    assert [item.id for item in commits] == [commit] and len(compared.files) == 2


async def test_a_fork_of_a_session_continues_its_work_on_a_branch_of_its_own(harness: GitHarness) -> None:
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    first = await harness.commit(sandbox, "feat: begin", begun="begun\\n")
    await harness.complete(await services.git.checkpoint(harness.owner, sandbox.id))
    await harness.run(sandbox, "echo half > unfinished.txt")

    copy, copied = await services.sessions.fork(harness.owner, row.id)
    assert (copy.title, copy.project_id, copied.session_id) == ("Fork of Untitled session", row.project_id, copy.id)
    page = await services.git.list_operations(harness.owner, PageRequest(), sandbox_id=copied.id)
    branch = (await harness.complete(page.items[0]))["branch"]
    assert branch == f"session/fork-of-untitled-session-{copy.id[-4:]}"
    assert (
        await harness.run(copied, "cat begun.txt unfinished.txt; git branch --show-current")
        == f"begun\nhalf\n{branch}\n"
    )

    assert (await harness.push(copied))["commit"] == first, "the commits of the original are the copy's, too"
    second = await harness.commit(copied, "feat: go on")
    await services.sessions.delete(harness.owner, row.id)
    assert (await harness.push(copied))["commit"] == second
    assert harness.origin.branches[branch] == second
    assert harness.origin.git("log", "--format=%s", "main.." + branch).splitlines() == ["feat: go on", "feat: begin"]


async def test_forks_of_a_session_whose_commits_were_never_sent_all_continue_its_work(harness: GitHarness) -> None:
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    first = await harness.commit(sandbox, "feat: begin", begun="begun\\n")
    forks = [await services.sessions.fork(harness.owner, row.id) for _ in range(2)]
    for _, copied in forks:
        page = await services.git.list_operations(harness.owner, PageRequest(), sandbox_id=copied.id)
        await harness.complete(page.items[0])
    await services.git.recover()  # keeps their commits
    await services.sessions.delete(harness.owner, row.id)
    for _, copied in forks:
        assert (await harness.push(copied))["commit"] == first


async def test_a_later_fork_may_be_the_first_to_send_the_commits(
    harness: GitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, proceed = asyncio.Event(), asyncio.Event()

    async def list_and_wait(context: GitContext, original_id: str) -> list[str]:
        refs = await list_refs_of_original(context, original_id)
        if not listed.is_set():
            listed.set()
            await proceed.wait()
        return refs

    monkeypatch.setattr(checkout_handlers, "list_refs_of_original", list_and_wait)
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    first = await harness.commit(sandbox, "feat: begin", begun="begun\n")
    _, early = await services.sessions.fork(harness.owner, row.id)
    await listed.wait()
    _, late = await services.sessions.fork(harness.owner, row.id)
    for copied in (late, early):
        page = await services.git.list_operations(harness.owner, PageRequest(), sandbox_id=copied.id)
        await harness.complete(page.items[0])
        proceed.set()
    assert (await harness.push(early))["commit"] == first


async def test_a_fork_without_a_branch_of_its_own_cannot_push_to_its_originals(harness: GitHarness) -> None:
    """A program in the sandbox can make git fail at that moment and repair it afterwards."""
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    first = await harness.commit(sandbox, "feat: begin", begun="begun\\n")
    original = (await harness.push(sandbox))["branch"]
    await harness.run(sandbox, "cp .git/config /tmp/config && echo '[broken' >> .git/config")
    _, copied = await services.sessions.fork(harness.owner, row.id)
    page = await services.git.list_operations(harness.owner, PageRequest(), sandbox_id=copied.id)
    with pytest.raises(OperationFailedError):
        await harness.complete(page.items[0])
    await harness.run(copied, "cp /tmp/config .git/config")
    second = await harness.commit(copied, "feat: go on", more="more")
    with pytest.raises(OperationFailedError):
        await harness.push(copied)
    assert harness.origin.branches[original] == first

    await harness.complete(await services.git.create_branch(harness.owner, copied.id, name="own"))
    assert (await harness.push(copied))["commit"] == second
    assert (harness.origin.branches["own"], harness.origin.branches[original]) == (second, first)


async def test_a_taken_branch_name_is_avoided(harness: GitHarness) -> None:
    row, sandbox = await harness.create_session_without_checkout("Fix the Löschen, don't wait!")
    harness.origin.git("update-ref", "refs/heads/session", "main")  # so no branch session/… can exist
    done = await harness.complete(
        await harness.platform.services.git.clone(harness.owner, sandbox.id, project_id=harness.project_id)
    )
    assert done["branch"] == f"session-fix-the-loschen-dont-wait-{row.id[-4:]}"
    harness.origin.git("update-ref", "-d", "refs/heads/session")
    row, sandbox = await harness.create_session_without_checkout("修复 登录")
    harness.origin.git("update-ref", f"refs/heads/session/修复-登录-{row.id[-4:]}", "main")
    done = await harness.complete(
        await harness.platform.services.git.clone(harness.owner, sandbox.id, project_id=harness.project_id)
    )
    assert done["branch"] == f"session/修复-登录-{row.id[-6:]}"
    await harness.commit(sandbox, new="x")
    await harness.push(sandbox)
    assert done["branch"] in harness.origin.branches
    with pytest.raises(OperationFailedError, match="already"):
        await harness.complete(
            await harness.platform.services.git.clone(harness.owner, sandbox.id, project_id=harness.project_id)
        )


async def test_a_checkout_starts_at_the_newest_base_commit(harness: GitHarness) -> None:
    await harness.create_session()
    newest = harness.origin.commit(later="x")
    _, sandbox = await harness.create_session()
    assert (await harness.platform.services.git.get_checkout(harness.owner, sandbox.id)).base_commit == newest


async def test_a_slow_fetch_of_one_project_does_not_block_another_with_the_same_repository(
    harness: GitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, fetching, proceed = harness.platform.services, asyncio.Event(), asyncio.Event()
    refresh = Mirror.refresh

    async def refresh_slowly(mirror: Mirror, *arguments: Any) -> None:
        if mirror.folder.stem == harness.project_id:
            fetching.set()
            await proceed.wait()
        await refresh(mirror, *arguments)

    monkeypatch.setattr(Mirror, "refresh", refresh_slowly)
    slow = asyncio.create_task(harness.create_session())
    async with asyncio.timeout(DEADLINE):
        await fetching.wait()
        project = await services.projects.create(
            harness.owner, "other", repository=str(harness.origin.path), base_branch="main"
        )
        other = GitHarness(harness.platform, harness.origin, harness.owner, project.id)
        _, sandbox = await other.create_session()
        await other.commit(sandbox, a="1")
        await other.push(sandbox)
        assert not slow.done()
        proceed.set()
        await slow


async def test_an_invalid_commit_message_is_rejected(harness: GitHarness) -> None:
    _, sandbox = await harness.create_session()
    with pytest.raises(CommitMessageError) as refused:
        await harness.commit(sandbox, "Fixed the login", a="x")
    assert refused.value.suggestion
    await harness.commit(sandbox, refused.value.suggestion)
    await harness.run(sandbox, "echo y > b.txt; git add -A; git commit -qm 'whatever I like'")
    with pytest.raises(OperationFailedError) as error:
        await harness.push(sandbox)
    assert (error.value.code, error.value.status) == ("commit_message", 400)
    settings = ProjectSettings.model_validate({"git": {"commitMessages": "any"}})
    await harness.platform.services.projects.update(harness.owner, harness.project_id, settings=settings)
    await harness.push(sandbox)


async def test_what_ci_runs_is_changed_only_if_the_project_allows_it(harness: GitHarness) -> None:
    """A forge runs a pushed workflow with the repository's secrets, before anybody has reviewed it."""
    _, sandbox = await harness.create_session()
    await harness.commit(sandbox, a="x")
    workflow = ".GitHub/Workflows/steal.yml"
    await harness.run(
        sandbox, f"mkdir -p .GitHub/Workflows; echo 'on: push' > {workflow}; git add -A; git commit -qm 'ci: a'"
    )
    # a tag could still name the commit before
    await harness.run(sandbox, f"git rm -q {workflow}; git commit -qm 'ci: b'")
    with pytest.raises(OperationFailedError, match=workflow) as error:
        await harness.push(sandbox)
    assert (error.value.code, error.value.status) == ("ci_files", 409)
    assert list(harness.origin.branches) == ["main"]
    settings = ProjectSettings.model_validate({"git": {"ciFiles": "allow"}})
    await harness.platform.services.projects.update(harness.owner, harness.project_id, settings=settings)
    await harness.push(sandbox)
    settings = ProjectSettings.model_validate({"git": {"ciFiles": "refuse"}})
    await harness.platform.services.projects.update(harness.owner, harness.project_id, settings=settings)
    await harness.commit(sandbox, b="y")
    await harness.push(sandbox)  # what was pushed before does not count again


async def test_a_merge_may_bring_what_others_have_changed_for_ci_and_nothing_else(harness: GitHarness) -> None:
    _, sandbox = await harness.create_session()
    await harness.commit(sandbox, a="x")
    await harness.push(sandbox)
    harness.origin.commit(**{".circleci/config": "version: 1"})
    await harness.update(sandbox, "merge")
    await harness.push(sandbox)
    harness.origin.commit(**{".circleci/config": "version: 2"})
    await harness.update(sandbox, "merge")
    await harness.run(sandbox, "echo 'version: 3' > .circleci/config.txt; git commit -qa --amend --no-edit")
    with pytest.raises(OperationFailedError, match=r"\.circleci/config\.txt"):
        await harness.push(sandbox)


@pytest.mark.parametrize(
    "command",
    [
        "git reset -q --hard {old}; echo x > x.txt; git add -A; git commit -qm 'feat: a thing'",
        "git reset -q --hard $(git commit-tree -p {base} -p {old} -m 'chore: merge' {old}^{{tree}})",
        "git reset -q --hard $(git commit-tree -p {old} -p {base} -m 'chore: merge' {old}^{{tree}})",
        "side=$(git commit-tree -p {old} -m 'feat: a thing' {old}^{{tree}});"
        "git reset -q --hard $(git commit-tree -p {base} -p $side -m 'chore: merge' {base}^{{tree}})",
        "git reset -q --hard {old}; printf x > a.txt; git add -A; git write-tree;"
        "git reset -q --hard $(echo {release} | base64 -d | git hash-object -t commit -w --stdin)",  # on the remote, but of another branch
        "git reset -q --hard $(git commit-tree -p {base} -p {empty} -m 'chore: merge' {empty}^{{tree}})",
    ],
    ids=["built on it", "merged", "merged into it", "in between", "another branch", "before there were any"],
)
async def test_old_files_of_ci_are_not_pushed_again(harness: GitHarness, command: str) -> None:
    """A workflow that was replaced because it is dangerous would run again, with today's secrets."""
    empty = harness.origin.branches["main"]
    old = harness.origin.commit(**{".circleci/config": "weak"})
    harness.origin.git("branch", "release", "main")
    release = harness.origin.git("cat-file", "commit", harness.origin.commit("release", a="x"))
    base = harness.origin.commit(**{".circleci/config": "strict"})
    _, sandbox = await harness.create_session()
    names = {"old": old, "base": base, "empty": empty}
    names["release"] = base64.b64encode(f"{release}\n".encode()).decode()
    await harness.run(sandbox, f"git config user.name a; git config user.email a@b; {command.format(**names)}")
    with pytest.raises(OperationFailedError, match=r"\.circleci/config\.txt") as error:
        await harness.push(sandbox)
    assert error.value.code == "ci_files"
    assert sorted(harness.origin.branches) == ["main", "release"]

    await harness.run(sandbox, f"git reset -q --hard {base}")
    await harness.commit(sandbox, a="x")
    await harness.push(sandbox)


async def test_a_branch_with_files_of_ci_that_it_started_with_is_pushed(harness: GitHarness) -> None:
    """Even if the base has others meanwhile, before and after updates, and in another sandbox."""
    services = harness.platform.services
    harness.origin.commit(**{".circleci/config": "version: 1"})
    _, sandbox = await harness.create_session()
    row, slow = await harness.create_session()
    await harness.commit(slow, readme="mine")
    harness.origin.commit(**{".circleci/config": "version: 2"})
    await harness.commit(sandbox, a="x")
    await harness.update(sandbox, "check")  # now the mirror has the new version
    await harness.push(sandbox)

    await harness.run(slow, "git commit -q --allow-empty -m 'feat: more'")
    harness.origin.commit(readme="theirs")
    assert (await harness.update(slow, "agent"))["conflictCount"] == 1
    harness.origin.commit(**{".circleci/config": "version: 3"})
    await harness.run(slow, "echo ours > readme.txt; git commit -qam 'chore: merge main'")
    await harness.update(slow, "check")
    saved = await harness.complete(await services.git.checkpoint(harness.owner, slow.id))
    await harness.complete(await services.sessions.restore(harness.owner, saved["checkpointId"]))
    await harness.push(await services.sessions.get_sandbox(harness.owner, row.id))


async def test_a_push_does_not_make_the_base_of_a_checkout_older(harness: GitHarness) -> None:
    older = harness.origin.branches["main"]
    newest = harness.origin.commit(b="y")
    _, sandbox = await harness.create_session()
    await harness.run(sandbox, f"git reset -q --hard {older}")
    await harness.commit(sandbox, a="x")
    await harness.push(sandbox)
    assert (await harness.platform.services.git.get_checkout(harness.owner, sandbox.id)).base_commit == newest


async def test_the_files_of_ci_of_too_many_commits_are_not_checked(
    harness: GitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sandbox = await harness.create_session()
    await harness.commit(sandbox, a="x")
    monkeypatch.setattr(remote_handlers, "MAX_CHECKED_COMMITS", 1)
    await harness.push(sandbox)
    await harness.commit(sandbox, a="y")
    await harness.push(sandbox)  # what was pushed before does not count again
    await harness.commit(sandbox, a="z")
    await harness.commit(sandbox, a="x")
    with pytest.raises(OperationFailedError, match="more than 1 new commits"):
        await harness.push(sandbox)


async def test_an_incomplete_comparison_of_files_of_ci_counts_as_a_difference(
    harness: GitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = harness.origin.commit(**{".circleci/config": "weak", ".circleci/other": "weak"})
    harness.origin.commit(**{".circleci/config": "strict", ".circleci/other": "strict"})
    _, sandbox = await harness.create_session()
    await harness.run(sandbox, f"git reset -q --hard {old}")
    await harness.commit(sandbox, a="x")
    monkeypatch.setattr(ci_files, "_MAX_DIFFERENCES_BYTES", 220)
    with pytest.raises(OperationFailedError, match=r"\.circleci/config\.txt or"):
        await harness.push(sandbox)


async def test_a_tag_does_not_bring_back_old_files_of_ci(harness: GitHarness) -> None:
    """Every old commit of the base is on the branch."""
    git = harness.platform.services.git
    old = harness.origin.commit(**{".circleci/config": "weak"})
    harness.origin.commit(**{".circleci/config": "strict"})
    _, sandbox = await harness.create_session()
    head = await harness.commit(sandbox, a="x")
    await harness.push(sandbox)
    await harness.run(sandbox, f"git checkout -q {old}")
    with pytest.raises(OperationFailedError, match=r"\.circleci/config\.txt"):
        await harness.complete(await git.create_tag(harness.owner, sandbox.id, name="v1", message="first", push=True))
    assert not harness.origin.git("tag")
    await harness.run(sandbox, f"git checkout -q {head}")
    await harness.complete(await git.create_tag(harness.owner, sandbox.id, name="v2", message="second", push=True))
    assert harness.origin.git("tag") == "v2"


async def test_an_empty_commit_or_push_is_rejected(harness: GitHarness) -> None:
    _, sandbox = await harness.create_session()
    with pytest.raises(OperationFailedError) as error:
        await harness.commit(sandbox)
    assert error.value.code == "nothing_to_commit"
    with pytest.raises(OperationFailedError) as error:
        await harness.push(sandbox)
    assert error.value.code == "nothing_to_push"
    assert list(harness.origin.branches) == ["main"]


async def test_commits_that_were_not_pushed_are_rebased(harness: GitHarness) -> None:
    _, sandbox = await harness.create_session()
    await harness.commit(sandbox, a="x")
    newest = harness.origin.commit(b="y")
    checked = await harness.update(sandbox, "check")
    assert (checked["behind"], checked["ahead"], checked["conflicts"]) == (1, 1, [])
    assert (await harness.platform.services.git.get_checkout(harness.owner, sandbox.id)).base_commit != newest
    done = await harness.update(sandbox, "rebase")
    assert await harness.run(sandbox, "cat b.txt; git rev-parse HEAD~1") == f"y{newest}\n"
    assert done["head"] == (await harness.push(sandbox))["commit"]


async def test_pushed_commits_are_merged_and_not_rebased(harness: GitHarness) -> None:
    _, sandbox = await harness.create_session()
    await harness.commit(sandbox, a="x")
    await harness.push(sandbox)
    harness.origin.commit(b="y")
    with pytest.raises(OperationFailedError) as error:
        await harness.update(sandbox, "rebase")
    assert error.value.code == "rebase_refused"
    await harness.update(sandbox, "merge")
    assert (await harness.push(sandbox))["commits"] == 2


async def test_conflicts_can_be_left_to_the_agent_or_given_up(harness: GitHarness) -> None:
    row, sandbox = await harness.create_session()
    mine = await harness.commit(sandbox, readme="mine\n")
    harness.origin.commit(readme="theirs\n")
    with pytest.raises(OperationFailedError) as error:
        await harness.update(sandbox, "rebase")
    assert error.value.code == "conflicts"
    assert [file["path"] for file in error.value.extra["files"]] == ["readme.txt"]  # type: ignore[attr-defined]
    assert await harness.run(sandbox, "git rev-parse HEAD; git status --porcelain") == f"{mine}\n"

    remaining = await harness.update(sandbox, "agent")
    assert [conflict["path"] for conflict in remaining["conflicts"]] == ["readme.txt"]
    assert "<<<<<<<" in await harness.run(sandbox, "cat readme.txt")
    message = (await harness.platform.services.sessions.list_messages(harness.owner, row.id, PageRequest())).items[0]
    assert message.role == "system" and "readme.txt" in message.parts[0]["text"]
    assert (await harness.platform.services.git.get_status(harness.owner, sandbox.id)).under_way == "merge"

    assert (await harness.update(sandbox, "give_up"))["ended"] is True
    assert await harness.run(sandbox, "cat readme.txt; git rev-parse HEAD") == f"mine\n{mine}\n"


async def test_a_branch_that_moved_on_the_remote_is_not_overwritten(harness: GitHarness) -> None:
    _, sandbox = await harness.create_session()
    await harness.commit(sandbox, a="x")
    await harness.push(sandbox)
    branch = (await harness.platform.services.git.get_checkout(harness.owner, sandbox.id)).branch
    theirs = harness.origin.commit(branch, b="y")
    await harness.commit(sandbox, c="z")
    with pytest.raises(OperationFailedError) as error:
        await harness.push(sandbox)
    assert error.value.code == "branch_moved"
    assert harness.origin.branches[branch] == theirs
    await harness.update(sandbox, "rebase", "branch")
    await harness.push(sandbox)
    assert harness.origin.git("ls-tree", "--name-only", branch).split() == ["a.txt", "b.txt", "c.txt", "readme.txt"]


async def test_a_paused_sandbox_is_read_from_its_checkpoint(harness: GitHarness) -> None:
    git, services = harness.platform.services.git, harness.platform.services
    row, sandbox = await harness.create_session()
    commit = await harness.commit(sandbox, a="x")
    await harness.run(sandbox, "echo staged > s.txt; git add s.txt; echo loose > l.txt")
    before = await git.get_status(harness.owner, sandbox.id)
    await services.sandboxes.pause(harness.owner, sandbox.id)
    after = await git.get_status(harness.owner, sandbox.id)
    assert (after.live, after.entries, after.head, after.branch) == (False, before.entries, commit, before.branch)
    assert [item.id for item in await git.list_commits(harness.owner, sandbox.id)] == [commit]
    assert {file.path for file in (await git.get_diff(harness.owner, sandbox.id)).files} == {"a.txt", "s.txt", "l.txt"}
    assert {file.path for file in (await git.get_diff(harness.owner, sandbox.id, against="head")).files} == {
        "s.txt",
        "l.txt",
    }
    assert (await harness.platform.reload(sandbox)).status == "paused"  # reading does not resume it
    checkpoints = (await git.list_checkpoints(harness.owner, row.id, PageRequest())).items
    assert [(checkpoint.reason, checkpoint.changed) for checkpoint in checkpoints] == [("pause", 2)]


async def test_a_checkpoint_is_restored_into_a_new_sandbox(harness: GitHarness) -> None:
    git, services = harness.platform.services.git, harness.platform.services
    row, sandbox = await harness.create_session()
    commit = await harness.commit(sandbox, a="x")
    await harness.run(sandbox, "echo staged > s.txt; git add s.txt; echo loose > l.txt; rm readme.txt")
    before = await harness.run(sandbox, "git status --porcelain=v2 --branch")
    saved = await harness.complete(await git.checkpoint(harness.owner, sandbox.id))
    await harness.run(sandbox, "git reset -q --hard; git clean -fdq; echo worse > a.txt")
    done = await harness.complete(await services.sessions.restore(harness.owner, saved["checkpointId"]))
    assert done["commit"] == commit
    restored = await services.sessions.get_sandbox(harness.owner, row.id)
    assert restored.id != sandbox.id and (await harness.platform.reload(sandbox)).status == "destroyed"
    assert await harness.run(restored, "git status --porcelain=v2 --branch") == before
    assert await harness.run(restored, "cat a.txt s.txt l.txt") == "xstaged\nloose\n"
    reasons = [
        checkpoint.reason for checkpoint in (await git.list_checkpoints(harness.owner, row.id, PageRequest())).items
    ]
    assert reasons == ["restore", "asked"]  # the discarded state was saved too
    await harness.complete(await git.commit(harness.owner, restored.id, message="feat: all of it"))
    assert (await harness.push(restored))["commits"] == 2


async def test_a_destroyed_sandbox_is_provisioned_again_with_its_work(harness: GitHarness) -> None:
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    commit = await harness.commit(sandbox, a="x")
    await harness.run(sandbox, "echo loose > l.txt")
    await services.sandboxes.pause(harness.owner, sandbox.id)
    await services.sandboxes.resume(harness.owner, sandbox.id)
    await harness.run(sandbox, "echo later > m.txt")
    await services.sandboxes.destroy_sandbox(harness.owner, sandbox.id)
    _, fresh = await services.sessions.provision(harness.owner, row.id)
    page = await services.git.list_operations(harness.owner, PageRequest(), sandbox_id=fresh.id)
    await harness.complete(page.items[0])
    assert await harness.run(fresh, "cat a.txt l.txt m.txt; git rev-parse HEAD") == f"xloose\nlater\n{commit}\n"


async def test_a_deleted_session_leaves_no_checkpoint(harness: GitHarness) -> None:
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    await harness.run(sandbox, "echo loose > l.txt")
    await harness.complete(await services.git.checkpoint(harness.owner, sandbox.id))
    mirror = services.settings.git_dir / f"{harness.project_id}.git"
    refs = ("for-each-ref", "refs/sandyard/checkpoints")
    assert harness.origin.git(*refs, cwd=mirror)
    await services.sessions.delete(harness.owner, row.id)
    assert not harness.origin.git(*refs, cwd=mirror)


async def test_a_tag_is_pushed_only_after_its_branch(harness: GitHarness) -> None:
    git = harness.platform.services.git
    _, sandbox = await harness.create_session()
    commit = await harness.commit(sandbox, a="x")
    with pytest.raises(OperationFailedError, match="Push the branch first"):
        await harness.complete(await git.create_tag(harness.owner, sandbox.id, name="v1", message="first", push=True))
    assert not await harness.run(sandbox, "git tag")
    await harness.push(sandbox)
    for _ in range(2):  # repeating is safe
        await harness.complete(await git.create_tag(harness.owner, sandbox.id, name="v1", message="first", push=True))
    assert harness.origin.git("rev-parse", "v1^{commit}") == commit


async def test_a_sandbox_without_a_checkout_is_reported(harness: GitHarness) -> None:
    sandbox = await harness.platform.services.sandboxes.create_sandbox(harness.owner)
    with pytest.raises(NoCheckoutError):
        await harness.platform.services.git.get_status(harness.owner, sandbox.id)
    with pytest.raises(NoCheckoutError):
        await harness.platform.services.git.push(harness.owner, sandbox.id)


async def test_a_project_without_a_repository_cannot_be_cloned(harness: GitHarness) -> None:
    project = await harness.platform.services.projects.create(harness.owner, "empty")
    _, sandbox = await harness.platform.services.sessions.create(harness.owner, project_id=project.id)
    with pytest.raises(ConflictError, match="no repository"):
        await harness.platform.services.git.clone(harness.owner, sandbox.id)


async def test_a_missing_base_branch_is_reported(harness: GitHarness) -> None:
    sandbox = await harness.platform.services.sandboxes.create_sandbox(harness.owner, project_id=harness.project_id)
    operation = await harness.platform.services.git.clone(harness.owner, sandbox.id, base_branch="nowhere")
    with pytest.raises(SandyardError, match=r"no branch 'nowhere'.*main"):
        await harness.complete(operation)


async def test_a_branch_of_somebody_else_is_not_overwritten(harness: GitHarness) -> None:
    git = harness.platform.services.git
    _, sandbox = await harness.create_session()
    harness.origin.git("branch", "release", "main")
    # the mirror does not know of it yet
    await harness.complete(await git.create_branch(harness.owner, sandbox.id, name="release"))
    await harness.commit(sandbox, a="x")
    with pytest.raises(OperationFailedError, match="somebody else's"):
        await harness.push(sandbox)
    assert harness.origin.branches["release"] == harness.origin.branches["main"]
    _, other = await harness.create_session()
    with pytest.raises(OperationFailedError, match="already"):
        await harness.complete(await git.create_branch(harness.owner, other.id, name="release"))


async def test_code_is_cloned_only_into_sandboxes_of_the_project(harness: GitHarness) -> None:
    services = harness.platform.services
    other = await services.projects.create(harness.owner, "other", repository=str(harness.origin.path))
    sandboxes = [
        await services.sandboxes.create_sandbox(harness.owner),
        (await services.sessions.create(harness.owner))[1],
        await services.sandboxes.create_sandbox(harness.owner, project_id=other.id),
    ]
    for sandbox in sandboxes:
        with pytest.raises(NotInProjectError, match="Start a session in the project"):
            await services.git.clone(harness.owner, sandbox.id, project_id=harness.project_id)
        page = await services.git.list_operations(harness.owner, PageRequest(), sandbox_id=sandbox.id)
        assert not page.items
    with pytest.raises(NotInProjectError):
        await services.git.clone(harness.owner, sandboxes[0].id)


async def test_a_checkout_outside_its_project_is_not_synchronized(harness: GitHarness) -> None:
    """In a session outside the project nothing is fetched or pushed with the project's credential."""
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    saved = await harness.complete(await services.git.checkpoint(harness.owner, sandbox.id))
    async with services.database.transaction() as tx:
        for table in (Session, Sandbox):
            await tx.session.execute(update(table).values(project_id=None))
    for verb in (
        services.git.push(harness.owner, sandbox.id),
        services.git.update(harness.owner, sandbox.id, how="check"),
        services.git.create_tag(harness.owner, sandbox.id, name="v1", push=True),
        services.sessions.restore(harness.owner, saved["checkpointId"]),
    ):
        with pytest.raises(NotInProjectError):
            await verb
    assert (await services.git.get_status(harness.owner, sandbox.id)).clean
    assert (await services.sessions.get_sandbox(harness.owner, row.id)).id == sandbox.id


async def test_a_snapshot_of_a_project_is_not_a_template_for_others(harness: GitHarness) -> None:
    services = harness.platform.services
    row, _ = await harness.create_session()
    snapshot = str((await services.sessions.save_snapshot(harness.owner, row.id)).checkpoint)
    other = await services.projects.create(harness.owner, "other", settings=ProjectSettings(template=snapshot))
    sandboxes, sessions = services.sandboxes, services.sessions
    for creating in (
        sandboxes.create_sandbox(harness.owner, template=snapshot),
        sandboxes.create_sandbox(harness.owner, template=snapshot.upper()),
        sandboxes.create_sandbox(harness.owner, project_id=other.id),
        sessions.create(harness.owner, template=snapshot),
        sessions.create(harness.owner, project_id=other.id),
    ):
        with pytest.raises(InvalidInputError, match="sandbox of that project"):
            await creating
    created = await sandboxes.create_sandbox(harness.owner, template=snapshot, project_id=harness.project_id)
    assert (created.project_id, await harness.run(created, "cat readme.txt")) == (harness.project_id, "hello\n")
    assert (await sandboxes.fork(harness.owner, created.id)).project_id == harness.project_id
    assert await is_work_snapshot(services.database, snapshot)
    assert not await is_work_snapshot(services.database, "base")


async def test_a_former_member_has_no_access_to_the_code_and_credential(harness: GitHarness) -> None:
    """The sandbox stays theirs; the project's code and credential do not."""
    services = harness.platform.services
    member = await services.users.create(harness.owner, "member", "member")
    person = Principal(member.id, "member", "member", "test")
    await services.projects.add_member(harness.owner, harness.project_id, member.id)
    _, sandbox = await services.sessions.create(person, project_id=harness.project_id)
    page = await services.git.list_operations(person, PageRequest(), sandbox_id=sandbox.id)
    await harness.complete(page.items[0])
    saved = await harness.complete(await services.git.checkpoint(person, sandbox.id))
    await services.projects.remove_member(harness.owner, harness.project_id, member.id)
    for verb in (
        services.git.push(person, sandbox.id),
        services.git.update(person, sandbox.id, how="check"),
        services.git.create_tag(person, sandbox.id, name="v1", push=True),
        services.git.get_status(person, sandbox.id),
        services.git.get_diff(person, sandbox.id),
        services.git.get_checkout(person, sandbox.id),
        services.sessions.restore(person, saved["checkpointId"]),
    ):
        with pytest.raises(NotFoundError):
            await verb
    assert not (await services.git.list_operations(person, PageRequest())).items


async def test_a_sandbox_cannot_push_the_commit_of_another(harness: GitHarness) -> None:
    """Its git claims that there is nothing new and that it is at a commit which came out of another sandbox."""
    services = harness.platform.services
    _, secret = await harness.create_session()
    theirs = await harness.commit(secret, secret="s3cret")
    await harness.complete(await services.git.checkpoint(harness.owner, secret.id))
    _, sandbox = await harness.create_session()
    mine = await harness.commit(sandbox, a="x")
    fake_git = f"""#!/bin/bash
if [[ " $* " == *" rev-parse -q --verify --end-of-options refs/heads/"* ]]; then echo {theirs}; exit; fi
if [[ " $* " == *" rev-list -n 1 {theirs} "* ]]; then exit; fi
exec /usr/bin/git "$@"
"""
    await harness.run(sandbox, f"mkdir -p ~/bin && cat > ~/bin/git <<'E'\n{fake_git}\nE\nchmod +x ~/bin/git")
    await harness.run(
        sandbox, "echo 'PATH=$HOME/bin:$PATH' >> ~/.profile; echo 'PATH=$HOME/bin:$PATH' >> ~/.bash_profile"
    )
    with pytest.raises(OperationFailedError) as error:
        await harness.push(sandbox)
    assert error.value.code == "unsafe_commits"
    assert list(harness.origin.branches) == ["main"]
    await harness.run(sandbox, "rm ~/bin/git")
    assert (await harness.push(sandbox))["commit"] == mine


async def test_a_sandbox_cannot_send_the_commit_of_another_in_an_empty_bundle(harness: GitHarness) -> None:
    services = harness.platform.services
    _, secret = await harness.create_session()
    theirs = await harness.commit(secret, secret="s3cret")
    await harness.complete(await services.git.checkpoint(harness.owner, secret.id))
    _, sandbox = await harness.create_session()
    await harness.commit(sandbox, a="x")
    pack = b"PACK\0\0\0\2\0\0\0\0"
    pack += hashlib.sha1(pack).digest()
    bundle = base64.b64encode(f"# v2 git bundle\n{theirs} refs/sandyard/sent\n\n".encode() + pack).decode()
    fake_git = f"""#!/bin/bash
if [[ " $* " == *" bundle create "* ]]; then echo {bundle} | base64 -d; exit; fi
exec /usr/bin/git "$@"
"""
    await harness.run(sandbox, f"mkdir -p ~/bin && cat > ~/bin/git <<'E'\n{fake_git}\nE\nchmod +x ~/bin/git")
    await harness.run(
        sandbox, "echo 'PATH=$HOME/bin:$PATH' >> ~/.profile; echo 'PATH=$HOME/bin:$PATH' >> ~/.bash_profile"
    )
    with pytest.raises(OperationFailedError, match="another sandbox") as error:
        await harness.complete(await services.git.checkpoint(harness.owner, sandbox.id))
    assert error.value.code == "unsafe_commits"


async def test_equal_work_trees_of_two_sandboxes_are_saved(harness: GitHarness) -> None:
    for _ in range(2):
        _, sandbox = await harness.create_session()
        await harness.run(sandbox, "git checkout -q main && echo loose > l.txt")
        for _ in range(2):
            saved = await harness.complete(await harness.platform.services.git.checkpoint(harness.owner, sandbox.id))
            assert saved["changed"] == 1


async def test_a_paused_sandbox_is_not_compared_with_commits_of_others(harness: GitHarness) -> None:
    services = harness.platform.services
    _, other = await harness.create_session()
    theirs = await harness.commit(other, secret="s3cret")
    await harness.complete(await services.git.checkpoint(harness.owner, other.id))
    _, sandbox = await harness.create_session()
    mine = await harness.commit(sandbox, a="x")
    await services.sandboxes.pause(harness.owner, sandbox.id)
    assert not (await services.git.get_diff(harness.owner, sandbox.id, against=mine)).files
    for against in (theirs, theirs[:8], mine[:8]):
        with pytest.raises(NotFoundError):
            await services.git.get_diff(harness.owner, sandbox.id, against=against)


async def test_discarded_work_can_be_restored(harness: GitHarness) -> None:
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    await harness.run(sandbox, "echo loose > l.txt")
    done = await harness.complete(await services.git.discard(harness.owner, sandbox.id, everything=True))
    assert done["discarded"] == ["l.txt"]
    await harness.complete(await services.sessions.restore(harness.owner, done["checkpointId"]))
    assert await harness.run(await services.sessions.get_sandbox(harness.owner, row.id), "cat l.txt") == "loose\n"


async def test_a_checkpoint_is_restored_after_the_checkout_was_deleted(harness: GitHarness) -> None:
    services = harness.platform.services
    row, sandbox = await harness.create_session()
    saved = await harness.complete(await services.git.checkpoint(harness.owner, sandbox.id))
    await harness.run(sandbox, "rm -rf .git")
    await harness.complete(await services.sessions.restore(harness.owner, saved["checkpointId"]))
    assert await harness.run(await services.sessions.get_sandbox(harness.owner, row.id), "cat readme.txt") == "hello\n"


async def test_commits_on_no_branch_are_not_pushed(harness: GitHarness) -> None:
    _, sandbox = await harness.create_session()
    await harness.run(sandbox, "git checkout -q --detach; echo x > a.txt; git add -A; git commit -qm 'feat: lost'")
    with pytest.raises(OperationFailedError, match="the checkout is on no branch"):
        await harness.push(sandbox)


async def test_a_damaged_mirror_does_not_keep_the_platform_from_starting(harness: GitHarness) -> None:
    services = harness.platform.services
    damaged = services.settings.git_dir / f"{harness.project_id}.git"
    damaged.mkdir(parents=True)
    (damaged / "HEAD").write_text("not a reference")
    assert await services.git.recover() == 0


async def test_a_mirror_that_cannot_be_tidied_does_not_keep_anything_from_being_removed(
    harness: GitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = harness.platform.services
    folder = services.settings.git_dir
    (folder / f"{harness.project_id}.git").mkdir(parents=True)
    deleted = folder / "prj_zzz.git"
    deleted.mkdir()
    tidied: list[str] = []

    async def fail(mirror: Mirror) -> None:
        tidied.append(mirror.folder.stem)
        raise TooMuchError("Git needs too much memory.")

    async def record(older_than: timedelta) -> None:
        tidied.append("preparations")

    monkeypatch.setattr(Mirror, "tidy", fail)
    monkeypatch.setattr(services.preparations, "tidy", record)
    await services.git.tidy(timedelta(days=1))
    assert tidied == [harness.project_id] and not deleted.exists()
    deleted.mkdir()
    await services.disk.free()  # leaves the mirror alone for now
    assert tidied == [harness.project_id, "preparations"] and not deleted.exists()

    async def fail_early(older_than: timedelta) -> None:
        raise TooMuchError("Git needs too much memory.")

    monkeypatch.setattr(services.git, "tidy", fail_early)
    await services.disk.free()
    assert tidied == [harness.project_id, "preparations", "preparations"]
