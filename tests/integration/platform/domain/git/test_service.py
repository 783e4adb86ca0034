"""From a repository on this machine to a pushed branch, through a real engine. What needs a forge is in tests/acceptance."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, SandyardError
from sandyard.platform.db.models import GitOperation, Sandbox, Session
from sandyard.platform.domain.git.errors import CommitMessageError, NoCheckoutError, NotInProjectError
from sandyard.platform.domain.git.operations.runner import OperationFailedError
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.model import Change
from sandyard.platform.domain.sandboxes.service import is_work_snapshot
from sandyard.platform.domain.users.model import Principal
from tests.integration.platform.domain.sandboxes.yard import DEADLINE, Yard


@dataclass
class Origin:
    """A bare repository that stands for the remote."""

    path: Path

    def git(self, *arguments: str, cwd: Path | None = None, stdin: str | None = None) -> str:
        names = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main"]
        done = subprocess.run(
            ["git", *names, *arguments], cwd=cwd or self.path, input=stdin, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, branch: str = "main", /, **files: str) -> str:
        """Somebody else pushes."""
        clone = self.path.with_name(f"{self.path.name}.work")
        if not clone.exists():
            self.git("clone", "-q", str(self.path), str(clone), cwd=self.path.parent)
        self.git("fetch", "-q", "origin", cwd=clone)
        known = branch in self.branches
        self.git("checkout", "-q", "-B", branch, *([f"origin/{branch}"] if known else []), cwd=clone)
        for name, text in files.items():
            (clone / f"{name}.txt").write_text(text)
        self.git("add", "-A", cwd=clone)
        self.git("commit", "-qm", "feat: of somebody else", cwd=clone)
        self.git("push", "-q", "origin", f"HEAD:{branch}", cwd=clone)
        return self.git("rev-parse", "HEAD", cwd=clone)

    @property
    def branches(self) -> dict[str, str]:
        lines = self.git("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads").splitlines()
        return dict(line.split() for line in lines)


@dataclass
class Plot:
    """A yard with a project, whose repository has one commit."""

    yard: Yard
    origin: Origin
    owner: Principal
    project_id: str

    async def session(self) -> tuple[Session, Sandbox]:
        """With its checkout."""
        row, sandbox = await self.yard.services.sessions.create(self.owner, project_id=self.project_id)
        page = await self.yard.services.git.list_operations(self.owner, PageRequest(), sandbox_id=sandbox.id)
        await self.end(page.items[0])
        return row, sandbox

    async def session_without_checkout(self, title: str) -> tuple[Session, Sandbox]:
        """Of the project, begun while that had no repository."""
        services = self.yard.services
        await services.projects.update(self.owner, self.project_id, repository=None)
        made = await services.sessions.create(self.owner, title=title, project_id=self.project_id)
        await services.projects.update(self.owner, self.project_id, repository=str(self.origin.path))
        return made

    async def end(self, operation: GitOperation) -> dict[str, Any]:
        """What came of it."""
        async with asyncio.timeout(DEADLINE):
            row = await self.yard.services.git.operations.wait(operation.id)
        self.yard.services.git.operations.raise_failure(row)
        return row.detail

    async def run(self, sandbox: Sandbox, command: str) -> str:
        services = self.yard.services
        row = await services.lifecycle.repository.get(sandbox.id)
        async with services.lifecycle.using(row) as engine_id:
            ran = await services.engine.programs.run(engine_id, ["bash", "-c", command], cwd="/home/user/workspace")
        assert ran.exit_code == 0, ran.stderr
        return ran.stdout.decode()

    async def commit(self, sandbox: Sandbox, message: str = "feat: a thing", **files: str) -> str:
        for name, text in files.items():
            await self.run(sandbox, f"printf '{text}' > {name}.txt")
        return str(
            (await self.end(await self.yard.services.git.commit(self.owner, sandbox.id, message=message)))["commit"]
        )

    async def push(self, sandbox: Sandbox) -> dict[str, Any]:
        return await self.end(await self.yard.services.git.push(self.owner, sandbox.id))

    async def update(self, sandbox: Sandbox, how: Any, source: Any = "base") -> dict[str, Any]:
        return await self.end(await self.yard.services.git.update(self.owner, sandbox.id, how=how, source=source))


@pytest.fixture
async def plot(yard: Yard, tmp_path: Path) -> AsyncIterator[Plot]:
    origin = Origin(tmp_path / "origin.git")
    origin.git("init", "-q", "--bare", str(origin.path), cwd=tmp_path)
    origin.commit(readme="hello\n")
    owner = await yard.person("chief", "admin")
    project = await yard.services.projects.create(owner, "site", repository=str(origin.path), base_branch="main")
    yield Plot(yard, origin, owner, project.id)


async def test_a_session_becomes_a_branch_on_the_remote(plot: Plot) -> None:
    git = plot.yard.services.git
    row, sandbox = await plot.session()
    assert await plot.run(sandbox, "cat readme.txt") == "hello\n"
    checkout = await git.get_checkout(plot.owner, sandbox.id)
    assert checkout.branch == f"session/untitled-session-{row.id[-4:]}"
    assert (await git.status(plot.owner, sandbox.id)).clean
    assert await git.history(plot.owner, sandbox.id) == []
    assert [one.subject for one in await git.base_history(plot.owner, sandbox.id)] == ["feat: of somebody else"]

    await plot.run(sandbox, "echo more >> readme.txt; echo new > 'a b.txt'")
    status = await git.status(plot.owner, sandbox.id)
    assert {(entry.path, entry.worktree) for entry in status.entries} == {
        ("readme.txt", Change.MODIFIED),
        ("a b.txt", Change.UNTRACKED),
    }
    diff = await git.diff(plot.owner, sandbox.id)
    assert {file.path: (file.added, file.removed) for file in diff.files} == {"readme.txt": (1, 0), "a b.txt": (1, 0)}

    commit = await plot.commit(sandbox, "feat: say more")
    pushed = await plot.push(sandbox)
    assert (pushed["commit"], pushed["commits"], pushed["upToDate"]) == (commit, 1, False)
    assert plot.origin.branches[checkout.branch] == commit
    assert (
        plot.origin.git("log", "-1", "--format=%an <%ae> %s", commit) == "Sandyard <sandyard@localhost> feat: say more"
    )
    assert (await plot.push(sandbox))["upToDate"] is True  # to repeat is safe
    assert [one.id for one in await git.history(plot.owner, sandbox.id)] == [commit]
    commits, compared = await git.compare(plot.owner, plot.project_id, "main", checkout.branch)
    assert [one.id for one in commits] == [commit] and len(compared.files) == 2


async def test_a_taken_name(plot: Plot) -> None:
    row, sandbox = await plot.session_without_checkout("Fix the Löschen, don't wait!")
    plot.origin.git("update-ref", "refs/heads/session", "main")  # and so there can be no session/…
    done = await plot.end(await plot.yard.services.git.clone(plot.owner, sandbox.id, project_id=plot.project_id))
    assert done["branch"] == f"session-fix-the-loschen-dont-wait-{row.id[-4:]}"
    plot.origin.git("update-ref", "-d", "refs/heads/session")
    row, sandbox = await plot.session_without_checkout("修复 登录")
    plot.origin.git("update-ref", f"refs/heads/session/修复-登录-{row.id[-4:]}", "main")
    done = await plot.end(await plot.yard.services.git.clone(plot.owner, sandbox.id, project_id=plot.project_id))
    assert done["branch"] == f"session/修复-登录-{row.id[-6:]}"
    await plot.commit(sandbox, new="x")
    await plot.push(sandbox)
    assert done["branch"] in plot.origin.branches
    with pytest.raises(OperationFailedError, match="already"):
        await plot.end(await plot.yard.services.git.clone(plot.owner, sandbox.id, project_id=plot.project_id))


async def test_the_base_is_fresh(plot: Plot) -> None:
    await plot.session()
    newest = plot.origin.commit(later="x")
    _, sandbox = await plot.session()
    assert (await plot.yard.services.git.get_checkout(plot.owner, sandbox.id)).base_commit == newest


async def test_a_message_that_is_no_good(plot: Plot) -> None:
    _, sandbox = await plot.session()
    with pytest.raises(CommitMessageError) as refused:
        await plot.commit(sandbox, "Fixed the login", a="x")
    assert refused.value.suggestion
    await plot.commit(sandbox, refused.value.suggestion)
    await plot.run(sandbox, "echo y > b.txt; git add -A; git commit -qm 'whatever I like'")
    with pytest.raises(OperationFailedError) as told:
        await plot.push(sandbox)
    assert (told.value.code, told.value.status) == ("commit_message", 400)
    settings = ProjectSettings.model_validate({"git": {"commitMessages": "any"}})
    await plot.yard.services.projects.update(plot.owner, plot.project_id, settings=settings)
    await plot.push(sandbox)


async def test_nothing_to_commit_and_nothing_to_push(plot: Plot) -> None:
    _, sandbox = await plot.session()
    with pytest.raises(OperationFailedError) as told:
        await plot.commit(sandbox)
    assert told.value.code == "nothing_to_commit"
    with pytest.raises(OperationFailedError) as told:
        await plot.push(sandbox)
    assert told.value.code == "nothing_to_push"
    assert list(plot.origin.branches) == ["main"]


async def test_update_by_rebase(plot: Plot) -> None:
    _, sandbox = await plot.session()
    await plot.commit(sandbox, a="x")
    newest = plot.origin.commit(b="y")
    looked = await plot.update(sandbox, "check")
    assert (looked["behind"], looked["ahead"], looked["conflicts"]) == (1, 1, [])
    assert (await plot.yard.services.git.get_checkout(plot.owner, sandbox.id)).base_commit != newest
    done = await plot.update(sandbox, "rebase")
    assert await plot.run(sandbox, "cat b.txt; git rev-parse HEAD~1") == f"y{newest}\n"
    assert done["head"] == (await plot.push(sandbox))["commit"]


async def test_what_was_pushed_is_merged_and_not_rebased(plot: Plot) -> None:
    _, sandbox = await plot.session()
    await plot.commit(sandbox, a="x")
    await plot.push(sandbox)
    plot.origin.commit(b="y")
    with pytest.raises(OperationFailedError) as told:
        await plot.update(sandbox, "rebase")
    assert told.value.code == "rebase_refused"
    await plot.update(sandbox, "merge")
    assert (await plot.push(sandbox))["commits"] == 2


async def test_conflicts(plot: Plot) -> None:
    row, sandbox = await plot.session()
    mine = await plot.commit(sandbox, readme="mine\n")
    plot.origin.commit(readme="theirs\n")
    with pytest.raises(OperationFailedError) as told:
        await plot.update(sandbox, "rebase")
    assert told.value.code == "conflicts"
    assert [one["path"] for one in told.value.extra["files"]] == ["readme.txt"]  # type: ignore[attr-defined]
    assert await plot.run(sandbox, "git rev-parse HEAD; git status --porcelain") == f"{mine}\n"

    left = await plot.update(sandbox, "agent")
    assert [one["path"] for one in left["conflicts"]] == ["readme.txt"]
    assert "<<<<<<<" in await plot.run(sandbox, "cat readme.txt")
    said = (await plot.yard.services.sessions.messages(plot.owner, row.id, PageRequest())).items[0]
    assert said.role == "system" and "readme.txt" in said.parts[0]["text"]
    assert (await plot.yard.services.git.status(plot.owner, sandbox.id)).under_way == "merge"

    assert (await plot.update(sandbox, "give_up"))["ended"] is True
    assert await plot.run(sandbox, "cat readme.txt; git rev-parse HEAD") == f"mine\n{mine}\n"


async def test_a_branch_that_moved_under_us(plot: Plot) -> None:
    _, sandbox = await plot.session()
    await plot.commit(sandbox, a="x")
    await plot.push(sandbox)
    branch = (await plot.yard.services.git.get_checkout(plot.owner, sandbox.id)).branch
    theirs = plot.origin.commit(branch, b="y")
    await plot.commit(sandbox, c="z")
    with pytest.raises(OperationFailedError) as told:
        await plot.push(sandbox)
    assert told.value.code == "branch_moved"
    assert plot.origin.branches[branch] == theirs
    await plot.update(sandbox, "rebase", "branch")
    await plot.push(sandbox)
    assert plot.origin.git("ls-tree", "--name-only", branch).split() == ["a.txt", "b.txt", "c.txt", "readme.txt"]


async def test_asleep_it_is_read_from_its_checkpoint(plot: Plot) -> None:
    git, services = plot.yard.services.git, plot.yard.services
    row, sandbox = await plot.session()
    commit = await plot.commit(sandbox, a="x")
    await plot.run(sandbox, "echo staged > s.txt; git add s.txt; echo loose > l.txt")
    before = await git.status(plot.owner, sandbox.id)
    await services.sandboxes.pause(plot.owner, sandbox.id)
    after = await git.status(plot.owner, sandbox.id)
    assert (after.live, after.entries, after.head, after.branch) == (False, before.entries, commit, before.branch)
    assert [one.id for one in await git.history(plot.owner, sandbox.id)] == [commit]
    assert {file.path for file in (await git.diff(plot.owner, sandbox.id)).files} == {"a.txt", "s.txt", "l.txt"}
    assert {file.path for file in (await git.diff(plot.owner, sandbox.id, against="head")).files} == {"s.txt", "l.txt"}
    assert (await plot.yard.row(sandbox)).status == "paused"  # to look does not wake
    kept = (await git.list_checkpoints(plot.owner, row.id, PageRequest())).items
    assert [(one.reason, one.changed) for one in kept] == [("pause", 2)]


async def test_restored_into_a_new_sandbox(plot: Plot) -> None:
    git, services = plot.yard.services.git, plot.yard.services
    row, sandbox = await plot.session()
    commit = await plot.commit(sandbox, a="x")
    await plot.run(sandbox, "echo staged > s.txt; git add s.txt; echo loose > l.txt; rm readme.txt")
    before = await plot.run(sandbox, "git status --porcelain=v2 --branch")
    kept = await plot.end(await git.checkpoint(plot.owner, sandbox.id))
    await plot.run(sandbox, "git reset -q --hard; git clean -fdq; echo worse > a.txt")
    done = await plot.end(await services.sessions.restore(plot.owner, kept["checkpointId"]))
    assert done["commit"] == commit
    now = await services.sessions.sandbox(plot.owner, row.id)
    assert now.id != sandbox.id and (await plot.yard.row(sandbox)).status == "destroyed"
    assert await plot.run(now, "git status --porcelain=v2 --branch") == before
    assert await plot.run(now, "cat a.txt s.txt l.txt") == "xstaged\nloose\n"
    reasons = [one.reason for one in (await git.list_checkpoints(plot.owner, row.id, PageRequest())).items]
    assert reasons == ["restore", "asked"]  # what was thrown away was kept too
    await plot.end(await git.commit(plot.owner, now.id, message="feat: all of it"))
    assert (await plot.push(now))["commits"] == 2


async def test_destroyed_it_can_be_provisioned_again_with_its_work(plot: Plot) -> None:
    services = plot.yard.services
    row, sandbox = await plot.session()
    commit = await plot.commit(sandbox, a="x")
    await plot.run(sandbox, "echo loose > l.txt")
    await services.sandboxes.pause(plot.owner, sandbox.id)
    await services.sandboxes.resume(plot.owner, sandbox.id)
    await plot.run(sandbox, "echo later > m.txt")
    await services.sandboxes.destroy_sandbox(plot.owner, sandbox.id)
    _, now = await services.sessions.provision(plot.owner, row.id)
    page = await services.git.list_operations(plot.owner, PageRequest(), sandbox_id=now.id)
    await plot.end(page.items[0])
    assert await plot.run(now, "cat a.txt l.txt m.txt; git rev-parse HEAD") == f"xloose\nlater\n{commit}\n"


async def test_a_deleted_session_leaves_no_checkpoint(plot: Plot) -> None:
    services = plot.yard.services
    row, sandbox = await plot.session()
    await plot.run(sandbox, "echo loose > l.txt")
    await plot.end(await services.git.checkpoint(plot.owner, sandbox.id))
    mirror = services.settings.git_dir / f"{plot.project_id}.git"
    refs = ("for-each-ref", "refs/sandyard/checkpoints")
    assert plot.origin.git(*refs, cwd=mirror)
    await services.sessions.delete(plot.owner, row.id)
    assert not plot.origin.git(*refs, cwd=mirror)


async def test_tags(plot: Plot) -> None:
    git = plot.yard.services.git
    _, sandbox = await plot.session()
    commit = await plot.commit(sandbox, a="x")
    with pytest.raises(OperationFailedError, match="Push the branch first"):
        await plot.end(await git.tag(plot.owner, sandbox.id, name="v1", message="first", push=True))
    assert not await plot.run(sandbox, "git tag")
    await plot.push(sandbox)
    for _ in range(2):  # to repeat is safe
        await plot.end(await git.tag(plot.owner, sandbox.id, name="v1", message="first", push=True))
    assert plot.origin.git("rev-parse", "v1^{commit}") == commit


async def test_a_sandbox_without_a_checkout(plot: Plot) -> None:
    sandbox = await plot.yard.services.sandboxes.create_sandbox(plot.owner)
    with pytest.raises(NoCheckoutError):
        await plot.yard.services.git.status(plot.owner, sandbox.id)
    with pytest.raises(NoCheckoutError):
        await plot.yard.services.git.push(plot.owner, sandbox.id)


async def test_a_project_without_a_repository(plot: Plot) -> None:
    project = await plot.yard.services.projects.create(plot.owner, "empty")
    _, sandbox = await plot.yard.services.sessions.create(plot.owner, project_id=project.id)
    with pytest.raises(ConflictError, match="no repository"):
        await plot.yard.services.git.clone(plot.owner, sandbox.id)


async def test_a_base_branch_that_is_not_there(plot: Plot) -> None:
    sandbox = await plot.yard.services.sandboxes.create_sandbox(plot.owner, project_id=plot.project_id)
    operation = await plot.yard.services.git.clone(plot.owner, sandbox.id, base_branch="nowhere")
    with pytest.raises(SandyardError, match=r"no branch 'nowhere'.*main"):
        await plot.end(operation)


async def test_a_branch_of_somebody_else_is_left_alone(plot: Plot) -> None:
    git = plot.yard.services.git
    _, sandbox = await plot.session()
    plot.origin.git("branch", "release", "main")
    await plot.end(await git.branch(plot.owner, sandbox.id, name="release"))  # the mirror has not heard of it yet
    await plot.commit(sandbox, a="x")
    with pytest.raises(OperationFailedError, match="somebody else's"):
        await plot.push(sandbox)
    assert plot.origin.branches["release"] == plot.origin.branches["main"]
    _, other = await plot.session()
    with pytest.raises(OperationFailedError, match="already"):
        await plot.end(await git.branch(plot.owner, other.id, name="release"))


async def test_code_goes_only_where_the_projects_policies_hold(plot: Plot) -> None:
    services = plot.yard.services
    other = await services.projects.create(plot.owner, "other", repository=str(plot.origin.path))
    sandboxes = [
        await services.sandboxes.create_sandbox(plot.owner),
        (await services.sessions.create(plot.owner))[1],
        await services.sandboxes.create_sandbox(plot.owner, project_id=other.id),
    ]
    for sandbox in sandboxes:
        with pytest.raises(NotInProjectError, match="Start a session in the project"):
            await services.git.clone(plot.owner, sandbox.id, project_id=plot.project_id)
        page = await services.git.list_operations(plot.owner, PageRequest(), sandbox_id=sandbox.id)
        assert not page.items
    with pytest.raises(NotInProjectError):
        await services.git.clone(plot.owner, sandboxes[0].id)


async def test_a_checkout_from_before_is_left_alone(plot: Plot) -> None:
    """One in a session that is not of the project: nothing comes in, and nothing goes out with the project's credential."""
    services = plot.yard.services
    row, sandbox = await plot.session()
    kept = await plot.end(await services.git.checkpoint(plot.owner, sandbox.id))
    async with services.database.transaction() as tx:
        for table in (Session, Sandbox):
            await tx.session.execute(update(table).values(project_id=None))
    for verb in (
        services.git.push(plot.owner, sandbox.id),
        services.git.update(plot.owner, sandbox.id, how="check"),
        services.git.tag(plot.owner, sandbox.id, name="v1", push=True),
        services.sessions.restore(plot.owner, kept["checkpointId"]),
    ):
        with pytest.raises(NotInProjectError):
            await verb
    assert (await services.git.status(plot.owner, sandbox.id)).clean
    assert (await services.sessions.sandbox(plot.owner, row.id)).id == sandbox.id


async def test_a_projects_files_are_no_template_of_others(plot: Plot) -> None:
    services = plot.yard.services
    row, _ = await plot.session()
    snapshot = str((await services.sessions.checkpoint(plot.owner, row.id)).checkpoint)
    other = await services.projects.create(plot.owner, "other", settings=ProjectSettings(template=snapshot))
    sandboxes, sessions = services.sandboxes, services.sessions
    for making in (
        sandboxes.create_sandbox(plot.owner, template=snapshot),
        sandboxes.create_sandbox(plot.owner, template=snapshot.upper()),
        sandboxes.create_sandbox(plot.owner, project_id=other.id),
        sessions.create(plot.owner, template=snapshot),
        sessions.create(plot.owner, project_id=other.id),
    ):
        with pytest.raises(InvalidInputError, match="sandbox of that project"):
            await making
    made = await sandboxes.create_sandbox(plot.owner, template=snapshot, project_id=plot.project_id)
    assert (made.project_id, await plot.run(made, "cat readme.txt")) == (plot.project_id, "hello\n")
    assert (await sandboxes.fork(plot.owner, made.id)).project_id == plot.project_id
    assert await is_work_snapshot(services.database, snapshot)
    assert not await is_work_snapshot(services.database, "base")


async def test_who_has_left_the_project(plot: Plot) -> None:
    """Their sandbox is theirs; the project's code and credential are not."""
    services = plot.yard.services
    member = await services.users.create(plot.owner, "member", "member")
    person = Principal(member.id, "member", "member", "test")
    await services.projects.add_member(plot.owner, plot.project_id, member.id)
    _, sandbox = await services.sessions.create(person, project_id=plot.project_id)
    page = await services.git.list_operations(person, PageRequest(), sandbox_id=sandbox.id)
    await plot.end(page.items[0])
    kept = await plot.end(await services.git.checkpoint(person, sandbox.id))
    await services.projects.remove_member(plot.owner, plot.project_id, member.id)
    for verb in (
        services.git.push(person, sandbox.id),
        services.git.update(person, sandbox.id, how="check"),
        services.git.tag(person, sandbox.id, name="v1", push=True),
        services.git.status(person, sandbox.id),
        services.git.diff(person, sandbox.id),
        services.git.get_checkout(person, sandbox.id),
        services.sessions.restore(person, kept["checkpointId"]),
    ):
        with pytest.raises(NotFoundError):
            await verb
    assert not (await services.git.list_operations(person, PageRequest())).items


async def test_a_sandbox_cannot_name_the_commit_of_another(plot: Plot) -> None:
    """Its git says that there is nothing new, and which commit it is at: one that came out of another sandbox."""
    services = plot.yard.services
    _, secret = await plot.session()
    theirs = await plot.commit(secret, secret="s3cret")
    await plot.end(await services.git.checkpoint(plot.owner, secret.id))
    _, sandbox = await plot.session()
    mine = await plot.commit(sandbox, a="x")
    liar = f"""#!/bin/bash
if [[ " $* " == *" rev-parse -q --verify --end-of-options refs/heads/"* ]]; then echo {theirs}; exit; fi
if [[ " $* " == *" rev-list -n 1 {theirs} "* ]]; then exit; fi
exec /usr/bin/git "$@"
"""
    await plot.run(sandbox, f"mkdir -p ~/bin && cat > ~/bin/git <<'E'\n{liar}\nE\nchmod +x ~/bin/git")
    await plot.run(sandbox, "echo 'PATH=$HOME/bin:$PATH' >> ~/.profile; echo 'PATH=$HOME/bin:$PATH' >> ~/.bash_profile")
    with pytest.raises(OperationFailedError) as told:
        await plot.push(sandbox)
    assert told.value.code == "unsafe_commits"
    assert list(plot.origin.branches) == ["main"]
    await plot.run(sandbox, "rm ~/bin/git")
    assert (await plot.push(sandbox))["commit"] == mine


async def test_asleep_it_is_not_compared_with_what_is_of_others(plot: Plot) -> None:
    services = plot.yard.services
    _, other = await plot.session()
    theirs = await plot.commit(other, secret="s3cret")
    await plot.end(await services.git.checkpoint(plot.owner, other.id))
    _, sandbox = await plot.session()
    mine = await plot.commit(sandbox, a="x")
    await services.sandboxes.pause(plot.owner, sandbox.id)
    assert not (await services.git.diff(plot.owner, sandbox.id, against=mine)).files
    for against in (theirs, theirs[:8], mine[:8]):
        with pytest.raises(NotFoundError):
            await services.git.diff(plot.owner, sandbox.id, against=against)


async def test_discarded_work_can_be_had_again(plot: Plot) -> None:
    services = plot.yard.services
    row, sandbox = await plot.session()
    await plot.run(sandbox, "echo loose > l.txt")
    gone = await plot.end(await services.git.discard(plot.owner, sandbox.id, everything=True))
    assert gone["discarded"] == ["l.txt"]
    await plot.end(await services.sessions.restore(plot.owner, gone["checkpointId"]))
    assert await plot.run(await services.sessions.sandbox(plot.owner, row.id), "cat l.txt") == "loose\n"


async def test_restored_although_the_checkout_is_gone(plot: Plot) -> None:
    services = plot.yard.services
    row, sandbox = await plot.session()
    kept = await plot.end(await services.git.checkpoint(plot.owner, sandbox.id))
    await plot.run(sandbox, "rm -rf .git")
    await plot.end(await services.sessions.restore(plot.owner, kept["checkpointId"]))
    assert await plot.run(await services.sessions.sandbox(plot.owner, row.id), "cat readme.txt") == "hello\n"


async def test_commits_on_no_branch(plot: Plot) -> None:
    _, sandbox = await plot.session()
    await plot.run(sandbox, "git checkout -q --detach; echo x > a.txt; git add -A; git commit -qm 'feat: lost'")
    with pytest.raises(OperationFailedError, match="the checkout is on no branch"):
        await plot.push(sandbox)
