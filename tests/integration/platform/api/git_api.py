"""A client of the Git API."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness

GIT = ["git", "-c", "user.name=Maria", "-c", "user.email=maria@example.org", "-c", "init.defaultBranch=main"]


@dataclass
class GitApi:
    """The API client of a user with a sandbox of a project, whose repository is a folder of the test."""

    platform: PlatformHarness
    web: httpx.AsyncClient
    origin: Path
    project: str
    sandbox: str
    session: str

    async def post(self, verb: str, *, wait: float = 60, **body: Any) -> httpx.Response:
        body = {"sandboxId": self.sandbox, **body}
        return await self.web.post(f"/api/v1/git/{verb}", params={"wait": wait}, json=body, timeout=90)

    async def complete(self, verb: str, **body: Any) -> dict[str, Any]:
        response = await self.post(verb, **body)
        assert response.status_code == 200, response.text
        view: dict[str, Any] = response.json()
        assert (view["status"], view["kind"], view["sandboxId"]) == ("completed", verb, self.sandbox)
        assert response.headers["location"] == f"/api/v1/git/operations/{view['id']}"
        return view

    async def get(self, path: str, /, **query: Any) -> dict[str, Any]:
        response = await self.web.get(f"/api/v1/{path}", params=query, timeout=60)
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body

    async def write(self, path: str, text: str) -> None:
        response = await self.web.put(
            f"/api/v1/sandboxes/{self.sandbox}/files", params={"path": f"/home/user/workspace/{path}"}, content=text
        )
        assert response.status_code == 200, response.text

    def commit_upstream(self, path: str, text: str) -> None:
        """Commit to main on the remote as somebody else."""
        clone = self.origin.parent / "colleague"
        if not clone.exists():
            git("clone", "-q", str(self.origin), str(clone))
        git("pull", "-q", cwd=clone)
        (clone / path).write_text(text)
        git("add", ".", cwd=clone)
        git("commit", "-q", "-m", f"fix: {path}", cwd=clone)
        git("push", "-q", cwd=clone)


def git(*arguments: str, cwd: Path | None = None) -> str:
    return subprocess.run([*GIT, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout
