"""A Git API with a repository on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from sandyard.platform.domain.users.model import Principal
from tests.integration.platform.api.git_api import GitApi, git
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness
from tests.unit.platform.world import ROOT, Person, client


@pytest.fixture
async def git_api(platform: PlatformHarness, tmp_path: Path) -> AsyncIterator[GitApi]:
    seed, origin = tmp_path / "seed", tmp_path / "website.git"
    git("init", "-q", str(seed))
    (seed / "README.md").write_text("Hello\n")
    git("add", ".", cwd=seed)
    git("commit", "-q", "-m", "feat: begin", cwd=seed)
    git("clone", "-q", "--bare", str(seed), str(origin))
    services = platform.services
    token = await services.users.create_token(platform.owner, "test")
    person = Person(Principal(platform.owner.user_id, "owner", "member", "test"), token.value.reveal())
    async with client(build(services, ROUTERS), person) as web:
        project = (await web.post("/api/v1/projects", json={"name": "website"})).json()["id"]
        session = (await web.post("/api/v1/sessions", json={"projectId": project})).json()
        await services.users.update(ROOT, platform.owner.user_id, role="admin")  # others may not use a path
        await services.projects.update(ROOT, project, repository=str(origin))
        yield GitApi(platform, web, origin, project, session["sandboxId"], session["id"])
