"""Pull requests on a real database and a real git remote, with a scripted GitHub.

The double stores what GitHub would store and answers from it; `tests/forge` has an independent implementation of the
API.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select

from sandyard.kit.clock import get_time
from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.models import (
    Checkout,
    Event,
    GitOperation,
    Message,
    Project,
    PullRequest,
    Sandbox,
    Session,
    Task,
)
from sandyard.platform.domain.forge.errors import ForgeForbiddenError, ForgeNotFoundError, ForgeRefusedError
from sandyard.platform.domain.forge.model import (
    Budget,
    ForgeKind,
    MergeMethod,
    Permissions,
    Pull,
    PullDraft,
    PullState,
    Remark,
)
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.git.branch_merge import BranchMerges
from sandyard.platform.domain.git.context import Repository
from sandyard.platform.domain.git.errors import NoCheckoutError
from sandyard.platform.domain.git.repository_queue import RepositoryQueue
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.git_process import Git
from sandyard.platform.domain.repositories.mirror import Mirrors
from sandyard.platform.domain.repositories.remote import parse_remote
from sandyard.platform.domain.sandboxes.repository import SandboxRepository, build_sandbox_row
from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.world import ROOT, World

BASE_URL = "https://github.com/acme/website/pull"
START = datetime(2026, 1, 1, tzinfo=UTC)


class ScriptedGitHub:
    """GitHub's side of one repository."""

    def __init__(self, bare: Path) -> None:
        self._bare = bare
        self.pulls: dict[int, Pull] = {}
        self.drafts: list[PullDraft] = []
        self.merges: list[dict[str, Any]] = []
        self.request_count = 0
        self.writable = True
        self.writers = {"grace", "ada"}
        self.left: Budget | None = None
        self.fault: Callable[[str], None] = lambda verb: None
        self._minutes = 0

    def add_activity(self, number: int, remark: Remark | None = None, **changes: Any) -> None:
        """Add an activity on GitHub."""
        self._minutes += 1
        known = self.pulls[number]
        remarks = (*known.remarks, remark) if remark else known.remarks
        self.pulls[number] = replace(known, **{"remarks": remarks, "updated_at": self.now(), **changes})

    def now(self) -> datetime:
        return START + timedelta(minutes=self._minutes)

    async def get_permissions(self) -> Permissions:
        return Permissions(push=self.writable, pull_requests=True, archived=False, default_branch="main")

    def require_write(self, allowed: Permissions) -> None:
        if not allowed.push:
            raise ForgeForbiddenError

    async def find(self, head: str, base: str | None = None) -> Pull | None:
        self.fault("find")
        return next((pull for pull in self.pulls.values() if pull.head == head and pull.state == PullState.OPEN), None)

    async def open_or_update(self, draft: PullDraft) -> tuple[Pull, bool]:
        self.drafts.append(draft)
        found = await self.find(draft.head)
        if found is not None:
            assert found.number is not None
            given = {name: value for name in ("title", "body", "draft") if (value := getattr(draft, name)) is not None}
            self.add_activity(found.number, labels=tuple(dict.fromkeys((*found.labels, *draft.labels))), **given)
            return replace(self.pulls[found.number], remarks=()), False
        number = len(self.pulls) + 1
        self.pulls[number] = Pull(
            number=number,
            url=f"{BASE_URL}/{number}",
            title=draft.title or "",
            state=PullState.OPEN,
            draft=bool(draft.draft),
            head=draft.head,
            base=draft.base,
            head_commit=git(self._bare, "rev-parse", f"refs/heads/{draft.head}"),
            labels=tuple(draft.labels),
            updated_at=self.now(),
            body=draft.body or "",
        )
        self.fault("opened")
        return self.pulls[number], True

    async def get_pull(self, number: int) -> Pull:
        self.request_count += 1
        self.fault("pull")
        if number not in self.pulls:
            raise ForgeNotFoundError
        self._follow(number)
        return self.pulls[number]

    async def check_authors(self, pull: Pull, known: Collection[str]) -> Pull:
        remarks = (replace(remark, may_write=remark.author in self.writers) for remark in pull.remarks)
        return replace(pull, remarks=tuple(remarks))

    def _follow(self, number: int) -> None:
        """Update the head of an open pull request to its branch."""
        known = self.pulls[number]
        heads = git(self._bare, "for-each-ref", "--format=%(objectname)", f"refs/heads/{known.head}")
        if known.state == PullState.OPEN and heads:
            self.pulls[number] = replace(known, head_commit=heads)

    async def merge(self, number: int, method: MergeMethod, *, head_commit: str, title: Any, message: Any) -> str:
        self._follow(number)
        if self.pulls[number].head_commit != head_commit:
            raise ForgeRefusedError("The branch has moved.")
        self.merges.append({"method": method, "title": title, "message": message})
        self.add_activity(number, state=PullState.MERGED, merged_at=self.now())
        self.fault("merged")
        return "m" * 40

    async def mark_ready(self, number: int) -> None:
        self.add_activity(number, draft=False)

    async def close(self, number: int) -> None:
        self.add_activity(number, state=PullState.CLOSED)


@dataclass
class ScriptedForgeAccess:
    """Access to the forge. The test decides whether it is GitHub."""

    github: ScriptedGitHub
    kind: ForgeKind = ForgeKind.GITHUB
    refused: SandyardError | None = None
    waits: list[float] = field(default_factory=list)

    def get_forge(self, project: Project) -> ForgeKind:
        return self.kind

    async def get_github_repository(self, project: Project, *, max_wait_s: float = 60) -> ScriptedGitHub:
        self.waits.append(max_wait_s)
        if self.refused is not None:
            raise self.refused
        return self.github

    async def get_credential(self, project: Project) -> None:
        return None

    async def get_budget(self, project: Project) -> Budget | None:
        return self.github.left


class Repositories:
    """The part of the git context that a merge needs."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors

    async def get_repository(self, project: Project) -> Repository:
        return Repository(parse_remote(project.repository or ""), self._mirrors.get(project.id), None)

    async def refresh(self, project: Project, repository: Repository, *_: Any, **__: Any) -> None:
        await repository.mirror.refresh(repository.remote, repository.credential)


class Pushes:
    """The methods of the git service that a pull request needs. The commits in `work` stand for those in the sandbox."""

    def __init__(self, world: World, mirrors: Mirrors, work: Path, bare: Path) -> None:
        self._world, self._mirrors, self._work, self._bare = world, mirrors, work, bare
        self.failure: SandyardError | None = None
        self.pushed = 0
        self.operations = self
        self.branch_merges = BranchMerges(Repositories(mirrors), RepositoryQueue())  # type: ignore[arg-type]

    async def get_checkout(self, caller: Principal, sandbox_id: str) -> Checkout:
        await SandboxRepository(self._world.database).get_for(caller, sandbox_id)
        async with self._world.database.reading() as session:
            row = await session.get(Checkout, sandbox_id)
        if row is None:
            raise NoCheckoutError
        return row

    async def push(self, caller: Principal, sandbox_id: str) -> GitOperation:
        row = await self.get_checkout(caller, sandbox_id)
        if self.failure is None:
            git(self._work, "push", "-q", "origin", f"HEAD:refs/heads/{row.branch}")
            await self._mirrors.get(row.project_id).refresh(parse_remote(str(self._bare)), None)
            async with self._world.database.transaction() as tx:
                known = await tx.session.get(Checkout, sandbox_id)
                assert known is not None
                known.head = known.pushed = git(self._work, "rev-parse", "HEAD")
            self.pushed += 1
        return GitOperation(id="op", kind="push", status="failed" if self.failure else "completed")

    async def wait(self, operation_id: str, timeout_s: float | None = None) -> GitOperation:
        return GitOperation(id=operation_id, kind="push", status="failed" if self.failure else "completed")

    def raise_failure(self, operation: GitOperation) -> None:
        if self.failure is not None:
            raise self.failure


@dataclass
class ForgeHarness:
    world: World
    pulls: PullRequests
    github: ScriptedGitHub
    access: ScriptedForgeAccess
    git: Pushes
    mirrors: Mirrors
    project: Project
    owner: Principal
    worker: Principal
    sandbox_id: str
    session_id: str
    task_id: str
    work: Path
    bare: Path

    def commit(self, message: str, **files: str) -> str:
        """Commit as if in the sandbox."""
        for name, text in (files or {"file.txt": message}).items():
            (self.work / name).write_text(text)
        git(self.work, "add", "-A")
        git(self.work, "commit", "-q", "--allow-empty", "-m", message)
        return git(self.work, "rev-parse", "HEAD")

    async def open(self, caller: Principal | None = None, **wanted: Any) -> tuple[PullRequest, bool]:
        return await self.pulls.open(caller or self.worker, self.sandbox_id, **wanted)

    async def list_event_kinds(self) -> list[str]:
        return [event.kind.removeprefix("pull_request.") for event in await self.list_events()]

    async def list_events(self) -> list[Event]:
        return [event for event in await self.world.list_events() if event.kind.startswith("pull_request.")]

    async def list_rows(self) -> list[PullRequest]:
        async with self.world.database.reading() as session:
            return list(await session.scalars(select(PullRequest).order_by(PullRequest.id)))

    async def list_messages(self) -> list[Message]:
        async with self.world.database.reading() as session:
            return list(await session.scalars(select(Message).order_by(Message.id)))

    def list_branches(self) -> set[str]:
        """Return the branches on the remote."""
        return set(git(self.bare, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    async def configure(self, **forge: Any) -> None:
        settings = ProjectSettings.model_validate({"forge": forge})
        self.project = await self.world.projects.update(self.owner, self.project.id, settings=settings)

    async def create_sandbox(self, branch: str) -> str:
        """Create a sandbox of the same project on another branch."""
        return await _checkout(
            self.world, self.worker, self.project.id, None, branch, git(self.work, "rev-parse", "HEAD")
        )


@contextlib.asynccontextmanager
async def open_forge_harness(world: World, folder: Path) -> AsyncIterator[ForgeHarness]:
    owner, worker = [(await world.create_person(name)).principal for name in ("olga", "wim")]
    bare, work = folder / "acme" / "website.git", folder / "work"
    made, base = _repositories()
    shutil.copytree(made / "bare", bare)
    shutil.copytree(made / "work", work)
    config = work / ".git" / "config"
    config.write_text(config.read_text().replace(str(made / "bare"), str(bare)))
    project = await world.projects.create(owner, "website")
    project = await world.projects.update(ROOT, project.id, repository=str(bare))  # only administrators may use a path
    await world.projects.add_member(owner, project.id, worker.user_id)
    task = await _task(world, project.id)
    session_id = await _session(world, worker, project.id, task.id)
    sandbox_id = await _checkout(world, worker, project.id, session_id, "task-1", base)
    mirrors = Mirrors(Git(world.settings.git_dir, timeout_s=60), world.settings)
    github = ScriptedGitHub(bare)
    access, pushes = ScriptedForgeAccess(github), Pushes(world, mirrors, work, bare)
    pulls = PullRequests(
        world.database,
        pushes,  # type: ignore[arg-type]
        access,  # type: ignore[arg-type]
        mirrors,
        world.projects,
        world.settings,
        world.clock,
    )
    yield ForgeHarness(
        world,
        pulls,
        github,
        access,
        pushes,
        mirrors,
        project,
        owner,
        worker,
        sandbox_id,
        session_id,
        task.id,
        work,
        bare,
    )


@functools.cache
def _repositories() -> tuple[Path, str]:
    """Return a bare repository with one commit on `main`, a clone of it on `task-1`, both to be copied, and the commit."""
    folder = Path(tempfile.mkdtemp(prefix="sandyard-forge-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bare, work = folder / "bare", folder / "work"
    git(folder, "init", "-q", "--bare", "--template=", "-b", "main", str(bare))
    git(folder, "clone", "-q", "--template=", str(bare), str(work))
    for key, value in (("user.name", "Agent"), ("user.email", "agent@example.org")):
        git(work, "config", key, value)
    git(work, "checkout", "-q", "-b", "main")
    git(work, "commit", "-q", "--allow-empty", "-m", "chore: begin")
    git(work, "push", "-q", "origin", "main")
    git(work, "checkout", "-q", "-b", "task-1")
    return folder, git(work, "rev-parse", "HEAD")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def _task(world: World, project_id: str) -> Task:
    now = get_time(world.clock)
    task = Task(
        id=make_ordered_id("tsk_"),
        project_id=project_id,
        title="Make the login work",
        description="It fails since Monday, see #7. @maria knows more.",
        status="in_progress",
        position=0,
        priority=0,
        created_at=now,
        updated_at=now,
    )
    async with world.database.transaction() as tx:
        tx.add(task)
    return task


async def _session(world: World, who: Principal, project_id: str, task_id: str) -> str:
    now = get_time(world.clock)
    row = Session(
        id=make_ordered_id("ses_"),
        owner_id=who.user_id,
        project_id=project_id,
        task_id=task_id,
        title="work",
        template="base",
        created_at=now,
        updated_at=now,
    )
    async with world.database.transaction() as tx:
        tx.add(row)
    return row.id


async def _checkout(
    world: World, who: Principal, project_id: str, session_id: str | None, branch: str, base: str
) -> str:
    now = get_time(world.clock)
    sandbox: Sandbox = build_sandbox_row(
        who.user_id, project_id=project_id, session_id=session_id, template="base", idle_seconds=300
    )
    async with world.database.transaction() as tx:
        tx.add(sandbox)
        await tx.session.flush()
        tx.add(
            Checkout(
                sandbox_id=sandbox.id,
                session_id=session_id,
                project_id=project_id,
                folder="/home/user/workspace",
                branch=branch,
                base_branch="main",
                base_commit=base,
                head=base,
                created_at=now,
                updated_at=now,
            )
        )
    return sandbox.id
