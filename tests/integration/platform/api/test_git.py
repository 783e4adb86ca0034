"""Git over the API, before a real engine and a real repository."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.users.model import Principal
from tests.integration.platform.domain.sandboxes.yard import Yard
from tests.unit.platform.world import ROOT, Person, client

GIT = ["git", "-c", "user.name=Maria", "-c", "user.email=maria@example.org", "-c", "init.defaultBranch=main"]


@dataclass
class Desk:
    """Somebody with a sandbox of a project, whose repository is a folder of the test."""

    yard: Yard
    web: httpx.AsyncClient
    origin: Path
    project: str
    sandbox: str
    session: str

    async def post(self, verb: str, *, wait: float = 60, **body: Any) -> httpx.Response:
        body = {"sandboxId": self.sandbox, **body}
        return await self.web.post(f"/api/v1/git/{verb}", params={"wait": wait}, json=body, timeout=90)

    async def done(self, verb: str, **body: Any) -> dict[str, Any]:
        answer = await self.post(verb, **body)
        assert answer.status_code == 200, answer.text
        view: dict[str, Any] = answer.json()
        assert (view["status"], view["kind"], view["sandboxId"]) == ("completed", verb, self.sandbox)
        assert answer.headers["location"] == f"/api/v1/git/operations/{view['id']}"
        return view

    async def get(self, where: str, **query: Any) -> dict[str, Any]:
        answer = await self.web.get(f"/api/v1/{where}", params=query, timeout=60)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def write(self, path: str, text: str) -> None:
        answer = await self.web.put(
            f"/api/v1/sandboxes/{self.sandbox}/files", params={"path": f"/home/user/workspace/{path}"}, content=text
        )
        assert answer.status_code == 200, answer.text

    def commit_there(self, path: str, text: str) -> None:
        """By somebody else, on the remote's main."""
        work = self.origin.parent / "colleague"
        if not work.exists():
            git("clone", "-q", str(self.origin), str(work))
        git("pull", "-q", cwd=work)
        (work / path).write_text(text)
        git("add", ".", cwd=work)
        git("commit", "-q", "-m", f"fix: {path}", cwd=work)
        git("push", "-q", cwd=work)


def git(*arguments: str, cwd: Path | None = None) -> str:
    return subprocess.run([*GIT, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture
async def desk(yard: Yard, tmp_path: Path) -> AsyncIterator[Desk]:
    seed, origin = tmp_path / "seed", tmp_path / "website.git"
    git("init", "-q", str(seed))
    (seed / "README.md").write_text("Hello\n")
    git("add", ".", cwd=seed)
    git("commit", "-q", "-m", "feat: begin", cwd=seed)
    git("clone", "-q", "--bare", str(seed), str(origin))
    services = yard.services
    token = await services.users.create_token(yard.owner, "test")
    person = Person(Principal(yard.owner.user_id, "owner", "member", "test"), token.value.reveal())
    async with client(build(services, ROUTERS), person) as web:
        project = (await web.post("/api/v1/projects", json={"name": "website"})).json()["id"]
        session = (await web.post("/api/v1/sessions", json={"projectId": project})).json()
        await services.projects.update(ROOT, project, repository=str(origin))
        yield Desk(yard, web, origin, project, session["sandboxId"], session["id"])


@pytest.mark.slow  # tests/acceptance/test_git.py goes from an address to a merge
async def test_from_a_checkout_to_a_pushed_branch(desk: Desk) -> None:
    refused = await desk.web.get(f"/api/v1/git/{desk.sandbox}")
    assert (refused.status_code, refused.json()["code"]) == (409, "no_checkout")
    cloned = await desk.done("clone")
    branch = cloned["detail"]["branch"]
    assert (
        branch.startswith("session/untitled-session-")
        and cloned["projectId"] == desk.project
        and cloned["sessionId"] == desk.session
    )
    checkout = await desk.get(f"git/{desk.sandbox}")
    assert (checkout["branch"], checkout["baseBranch"], checkout["pushed"]) == (branch, "main", None)
    fresh = await desk.get(f"git/{desk.sandbox}/history", base="true")
    assert (fresh["items"], len(fresh["base"])) == ([], 1), "what it began from is there before its first commit"
    assert (await desk.get(f"git/{desk.sandbox}/status"))["clean"] is True

    await desk.write("größe.txt", "one\n")
    await desk.write("other.txt", "two\n")
    status = await desk.get(f"git/{desk.sandbox}/status")
    assert [(one["path"], one["worktree"]) for one in status["entries"]] == [
        ("größe.txt", "untracked"),
        ("other.txt", "untracked"),
    ]
    await desk.done("stage", paths=["größe.txt"])
    await desk.done("stage", paths=["größe.txt"], unstage=True)
    await desk.done("discard", paths=["other.txt"])

    wrong = await desk.post("commit", message="Fixed the size")
    problem = wrong.json()
    assert (wrong.status_code, problem["code"]) == (400, "commit_message")
    made = await desk.done("commit", message=problem["suggestion"])
    history = (await desk.get(f"git/{desk.sandbox}/history"))["items"]
    assert [one["id"] for one in history] == [made["detail"]["commit"]] and history[0]["subject"] == problem[
        "suggestion"
    ]
    assert (await desk.get(f"git/{desk.sandbox}/history", skip=1))["items"] == []
    nothing = await desk.post("commit", message="fix: nothing")
    assert (nothing.status_code, nothing.json()["code"]) == (409, "nothing_to_commit")
    assert nothing.json()["operationId"].startswith("gop_")
    diff = await desk.get(f"git/{desk.sandbox}/diff")
    assert [(one["path"], one["change"], one["added"]) for one in diff["files"]] == [("größe.txt", "added", 1)]
    assert "+one" in diff["files"][0]["patch"]
    assert (await desk.get(f"git/{desk.sandbox}/diff", against="head"))["files"] == []
    bare = await desk.get(f"git/{desk.sandbox}/diff", path=["größe.txt", "x"], patches=False)
    assert bare["files"][0]["patch"] is None

    pushed = await desk.done("push")
    assert git("rev-parse", branch, cwd=desk.origin).strip() == made["detail"]["commit"] == pushed["detail"]["commit"]
    await desk.done("tag", name="v1.0", message="The first.", push=True)
    assert git("tag", cwd=desk.origin).split() == ["v1.0"]
    compared = await desk.get(f"projects/{desk.project}/compare", base="main", head=branch)
    assert len(compared["commits"]) == 1 and compared["diff"]["files"][0]["path"] == "größe.txt"
    gone = await desk.web.get(f"/api/v1/projects/{desk.project}/compare", params={"base": "main", "head": "nowhere"})
    assert gone.status_code == 404

    await desk.done("branch", name="another")
    assert (await desk.get(f"git/{desk.sandbox}"))["branch"] == "another"
    listed = (await desk.get("git/operations", sandboxId=desk.sandbox, limit=200))["items"]
    assert listed[0]["kind"] == "branch" and listed[-1]["kind"] == "clone" and len(listed) >= 9
    assert await desk.get(f"git/operations/{listed[0]['id']}") == listed[0]
    assert (await desk.get("git/operations", projectId="prj_other"))["items"] == []
    audit = await desk.yard.services.audit.list(ROOT, AuditQuery(action="git.push"), PageRequest())
    assert [(one.target, one.outcome, one.detail["operation"]) for one in audit.items] == [
        (desk.sandbox, "ok", pushed["id"])
    ]


async def test_conflicts_are_told_file_by_file(desk: Desk) -> None:
    await desk.done("clone")
    await desk.write("README.md", "Hello from here\n")
    await desk.done("commit", message="fix: hello from here")
    desk.commit_there("README.md", "Hello from there\n")
    foreseen = await desk.done("update", how="check")
    assert [one["path"] for one in foreseen["detail"]["conflicts"]] == ["README.md"]
    for how in ("rebase", "merge"):
        answer = await desk.post("update", how=how)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (409, "conflicts"), answer.text
        assert [one["path"] for one in problem["files"]] == ["README.md"] and "agent" in problem["choices"]
        operation = await desk.get(f"git/operations/{problem['operationId']}")
        assert (operation["status"], operation["errorCode"]) == ("failed", "conflicts")
        assert operation["error"] == problem["detail"]
    assert (await desk.get(f"git/{desk.sandbox}/status"))["clean"] is True


async def test_checkpoints_and_back(desk: Desk) -> None:
    await desk.done("clone")
    await desk.write("draft.txt", "not committed\n")
    kept = await desk.done("checkpoint")
    listed = (await desk.get(f"sessions/{desk.session}/checkpoints"))["items"]
    assert [one["id"] for one in listed] == [kept["detail"]["checkpointId"]]
    assert (listed[0]["reason"], listed[0]["changed"], listed[0]["sandboxId"]) == ("asked", 1, desk.sandbox)
    answer = await desk.web.post(
        "/api/v1/git/restore", params={"wait": 60}, json={"checkpointId": listed[0]["id"]}, timeout=90
    )
    assert answer.status_code == 200, answer.text
    sandbox = answer.json()["sandboxId"]
    assert sandbox != desk.sandbox and (await desk.get(f"sessions/{desk.session}"))["sandboxId"] == sandbox
    status = await desk.get(f"git/{sandbox}/status")
    assert [one["path"] for one in status["entries"]] == ["draft.txt"]


async def test_who_does_not_wait_finds_it_later(desk: Desk) -> None:
    answer = await desk.post("clone", wait=0)
    assert answer.status_code == 202 and answer.json()["status"] in ("queued", "running"), answer.text
    async with asyncio.timeout(60):
        while (found := (await desk.web.get(answer.headers["location"])).json())["status"] != "completed":
            assert found["status"] in ("queued", "running"), found
            await asyncio.sleep(0.05)
    assert found["detail"]["baseBranch"] == "main" and found["finishedAt"]


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("clone", {"branch": "--upload-pack=x"}, "branch"),
        ("clone", {"baseBranch": "a..b"}, "baseBranch"),
        ("clone", {"sandboxId": ""}, "sandboxId"),
        ("clone", {"depth": 1}, "depth"),
        ("branch", {"name": "x.lock"}, "name"),
        ("branch", {"name": "x", "start": "HEAD~1"}, "start"),
        ("stage", {"paths": []}, "paths"),
        ("stage", {"paths": [""]}, "paths.0"),
        ("stage", {"paths": ["x" * 4097]}, "paths.0"),
        ("stage", {"paths": ["x"] * 10_001}, "paths"),
        ("stage", {"paths": ["a\0b"]}, "body"),
        ("commit", {"message": ""}, "message"),
        ("commit", {"message": "fix: x" + "x" * 20_000}, "message"),
        ("discard", {}, "body"),
        ("discard", {"paths": ["x"], "everything": True}, "body"),
        ("update", {"how": "force"}, "how"),
        ("tag", {"name": "-d"}, "name"),
        ("restore", {"sandboxId": "x"}, "checkpointId"),
        ("push", {"force": True}, "force"),
    ],
)
async def test_what_cannot_be_asked_for(yard: Yard, verb: str, body: dict[str, Any], field: str) -> None:
    token = await yard.services.users.create_token(yard.owner, "test")
    async with client(build(yard.services, ROUTERS), Person(yard.owner, token.value.reveal())) as web:
        answer = await web.post(f"/api/v1/git/{verb}", json={"sandboxId": "sbx_x", **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["errors"][0]["field"] == field, answer.text


@pytest.mark.parametrize(
    "path",
    [
        "git/sbx_x/diff?against=HEAD",
        "git/sbx_x/diff?against=-x",
        "git/sbx_x/history?limit=0",
        "git/sbx_x/history?skip=-1",
        "projects/prj_x/compare?base=main",
        "projects/prj_x/compare?base=main&head=a..b",
        "projects/prj_x/compare?base=--output=x&head=main",
    ],
)
async def test_what_cannot_be_looked_at(yard: Yard, path: str) -> None:
    token = await yard.services.users.create_token(yard.owner, "test")
    async with client(build(yard.services, ROUTERS), Person(yard.owner, token.value.reveal())) as web:
        assert (await web.get(f"/api/v1/{path}")).status_code == 400
        assert (await web.post("/api/v1/git/push?wait=301", json={"sandboxId": "x"})).status_code == 400
