"""A platform with a project whose repository is on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandyard.platform.db.models import Preparation, Project, Sandbox, Session
from sandyard.platform.domain.agents.profiles.base import BuiltInProfile
from sandyard.platform.domain.agents.profiles.model import Install, Launch, LaunchRequest
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.users.model import Principal
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness

BARE = BuiltInProfile(
    name="bare", title="Bare", description="Needs nothing.", make_launch=lambda _: Launch(argv=("true",))
)


def _start(request: LaunchRequest) -> Launch:
    return Launch(argv=("true",), files={f"{request.home}/.tool/config": b"plain"})


TOOL = BuiltInProfile(
    name="tool",
    title="Tool",
    description="Is installed.",
    make_launch=_start,
    install=Install("1", ("test", "-e", "/home/user/.tool/there"), "mkdir -p ~/.tool && echo 1 >~/.tool/there"),
)


@dataclass
class Remote:
    """A bare repository and a working clone of it."""

    path: Path

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        names = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main"]
        done = subprocess.run(
            ["git", *names, *arguments], cwd=cwd or self.path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str], branch: str = "main") -> str:
        """Commit and push the files. Return the commit."""
        clone = self.path.with_name("clone")
        if not clone.exists():
            self.git("clone", "-q", str(self.path), str(clone), cwd=self.path.parent)
        self.git("checkout", "-q", "-B", branch, cwd=clone)
        for name, text in files.items():
            path = clone / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "-A", cwd=clone)
        self.git("commit", "-qm", "feat: more", cwd=clone)
        self.git("push", "-qf", "origin", f"HEAD:{branch}", cwd=clone)
        return self.git("rev-parse", "HEAD", cwd=clone)


@dataclass
class PreparationHarness:
    platform: PlatformHarness
    remote: Remote
    owner: Principal
    project: Project

    async def update_settings(self, **settings: Any) -> None:
        self.project = await self.platform.services.projects.update(
            self.owner, self.project.id, settings=ProjectSettings.model_validate(settings)
        )

    async def prepare(self, profile: Any = BARE, caller: Principal | None = None, **wanted: Any) -> Preparation:
        options = {"base_branch": None, **wanted}
        return await self.platform.services.preparations.prepare(
            caller or self.owner, self.project, profile=profile, **options
        )

    async def create_session(self, preparation: Preparation | None = None, **wanted: Any) -> tuple[Session, Sandbox]:
        """Create a session and wait for its checkout."""
        row, sandbox = await self.platform.services.sessions.create(
            self.owner, project_id=self.project.id, preparation=preparation, **wanted
        )
        await self.wait_for_checkout(sandbox)
        return row, sandbox

    async def wait_for_checkout(self, sandbox: Sandbox) -> dict[str, Any]:
        git = self.platform.services.git
        page = await git.list_operations(self.owner, PageRequest(), sandbox_id=sandbox.id)
        row = await git.operations.wait(page.items[-1].id, 60)
        git.operations.raise_failure(row)
        return row.detail

    async def run(self, sandbox: Sandbox, command: str) -> str:
        """Run a command in the checkout and return its output."""
        services = self.platform.services
        async with services.lifecycle.using(await self.platform.reload(sandbox)) as engine_id:
            ran = await services.engine.programs.run(engine_id, ["bash", "-c", command], cwd="/home/user/workspace")
        assert ran.exit_code == 0, ran.stderr
        return ran.stdout.decode()


@pytest.fixture
async def harness(platform: PlatformHarness, tmp_path: Path) -> PreparationHarness:
    remote = Remote(tmp_path / "origin.git")
    remote.git("init", "-q", "--bare", str(remote.path), cwd=tmp_path)
    remote.commit({"readme.md": "hello\n", ".gitignore": "node_modules/\n"})
    owner = await platform.create_person("chief", "admin")
    project = await platform.services.projects.create(owner, "site", repository=str(remote.path), base_branch="main")
    return PreparationHarness(platform, remote, owner, project)
