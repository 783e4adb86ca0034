"""Git over the API, with a real engine and a real repository."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from tests.integration.platform.api.git_api import GitApi, git
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness
from tests.unit.platform.world import ROOT, Person, client


@pytest.mark.slow  # tests/acceptance/test_git.py covers the way from a URL to a merge
async def test_from_a_checkout_to_a_pushed_branch(git_api: GitApi) -> None:
    refused = await git_api.web.get(f"/api/v1/git/{git_api.sandbox}")
    assert (refused.status_code, refused.json()["code"]) == (409, "no_checkout")
    cloned = await git_api.complete("clone")
    branch = cloned["detail"]["branch"]
    assert (
        branch.startswith("session/untitled-session-")
        and cloned["projectId"] == git_api.project
        and cloned["sessionId"] == git_api.session
    )
    checkout = await git_api.get(f"git/{git_api.sandbox}")
    assert (checkout["branch"], checkout["baseBranch"], checkout["pushed"]) == (branch, "main", None)
    fresh = await git_api.get(f"git/{git_api.sandbox}/history", base="true")
    assert (fresh["items"], len(fresh["base"])) == ([], 1), "the base commit is listed before the first commit"
    assert (await git_api.get(f"git/{git_api.sandbox}/status"))["clean"] is True

    await git_api.write("größe.txt", "one\n")
    await git_api.write("other.txt", "two\n")
    status = await git_api.get(f"git/{git_api.sandbox}/status")
    assert [(entry["path"], entry["worktree"]) for entry in status["entries"]] == [
        ("größe.txt", "untracked"),
        ("other.txt", "untracked"),
    ]
    await git_api.complete("stage", paths=["größe.txt"])
    await git_api.complete("stage", paths=["größe.txt"], unstage=True)
    await git_api.complete("discard", paths=["other.txt"])

    rejected = await git_api.post("commit", message="Fixed the size")
    problem = rejected.json()
    assert (rejected.status_code, problem["code"]) == (400, "commit_message")
    committed = await git_api.complete("commit", message=problem["suggestion"])
    history = (await git_api.get(f"git/{git_api.sandbox}/history"))["items"]
    assert [item["id"] for item in history] == [committed["detail"]["commit"]] and history[0]["subject"] == problem[
        "suggestion"
    ]
    assert (await git_api.get(f"git/{git_api.sandbox}/history", skip=1))["items"] == []
    nothing = await git_api.post("commit", message="fix: nothing")
    assert (nothing.status_code, nothing.json()["code"]) == (409, "nothing_to_commit")
    assert nothing.json()["operationId"].startswith("gop_")
    diff = await git_api.get(f"git/{git_api.sandbox}/diff")
    assert [(file["path"], file["change"], file["added"]) for file in diff["files"]] == [("größe.txt", "added", 1)]
    assert "+one" in diff["files"][0]["patch"]
    assert (await git_api.get(f"git/{git_api.sandbox}/diff", against="head"))["files"] == []
    bare = await git_api.get(f"git/{git_api.sandbox}/diff", path=["größe.txt", "x"], patches=False)
    assert bare["files"][0]["patch"] is None

    pushed = await git_api.complete("push")
    assert (
        git("rev-parse", branch, cwd=git_api.origin).strip()
        == committed["detail"]["commit"]
        == pushed["detail"]["commit"]
    )
    await git_api.complete("tag", name="v1.0", message="The first.", push=True)
    assert git("tag", cwd=git_api.origin).split() == ["v1.0"]
    compared = await git_api.get(f"projects/{git_api.project}/compare", base="main", head=branch)
    assert len(compared["commits"]) == 1 and compared["diff"]["files"][0]["path"] == "größe.txt"
    missing = await git_api.web.get(
        f"/api/v1/projects/{git_api.project}/compare", params={"base": "main", "head": "nowhere"}
    )
    assert missing.status_code == 404

    await git_api.complete("branch", name="another")
    assert (await git_api.get(f"git/{git_api.sandbox}"))["branch"] == "another"
    listed = (await git_api.get("git/operations", sandboxId=git_api.sandbox, limit=200))["items"]
    assert listed[0]["kind"] == "branch" and listed[-1]["kind"] == "clone" and len(listed) >= 9
    assert await git_api.get(f"git/operations/{listed[0]['id']}") == listed[0]
    assert (await git_api.get("git/operations", projectId="prj_other"))["items"] == []
    audit = await git_api.platform.services.audit.list(ROOT, AuditQuery(action="git.push"), PageRequest())
    assert [(item.target, item.outcome, item.detail["operation"]) for item in audit.items] == [
        (git_api.sandbox, "ok", pushed["id"])
    ]


async def test_conflicts_are_listed_file_by_file(git_api: GitApi) -> None:
    await git_api.complete("clone")
    await git_api.write("README.md", "Hello from here\n")
    await git_api.complete("commit", message="fix: hello from here")
    git_api.commit_upstream("README.md", "Hello from there\n")
    preview = await git_api.complete("update", how="check")
    assert [conflict["path"] for conflict in preview["detail"]["conflicts"]] == ["README.md"]
    for how in ("rebase", "merge"):
        response = await git_api.post("update", how=how)
        problem = response.json()
        assert (response.status_code, problem["code"]) == (409, "conflicts"), response.text
        assert [file["path"] for file in problem["files"]] == ["README.md"] and "agent" in problem["choices"]
        operation = await git_api.get(f"git/operations/{problem['operationId']}")
        assert (operation["status"], operation["errorCode"]) == ("failed", "conflicts")
        assert operation["error"] == problem["detail"]
    assert (await git_api.get(f"git/{git_api.sandbox}/status"))["clean"] is True


async def test_a_checkpoint_is_restored_into_a_new_sandbox(git_api: GitApi) -> None:
    await git_api.complete("clone")
    await git_api.write("draft.txt", "not committed\n")
    saved = await git_api.complete("checkpoint")
    listed = (await git_api.get(f"sessions/{git_api.session}/checkpoints"))["items"]
    assert [item["id"] for item in listed] == [saved["detail"]["checkpointId"]]
    assert (listed[0]["reason"], listed[0]["changed"], listed[0]["sandboxId"]) == ("asked", 1, git_api.sandbox)
    response = await git_api.web.post(
        "/api/v1/git/restore", params={"wait": 60}, json={"checkpointId": listed[0]["id"]}, timeout=90
    )
    assert response.status_code == 200, response.text
    sandbox = response.json()["sandboxId"]
    assert sandbox != git_api.sandbox and (await git_api.get(f"sessions/{git_api.session}"))["sandboxId"] == sandbox
    status = await git_api.get(f"git/{sandbox}/status")
    assert [entry["path"] for entry in status["entries"]] == ["draft.txt"]


async def test_an_operation_started_without_waiting_can_be_read_later(git_api: GitApi) -> None:
    response = await git_api.post("clone", wait=0)
    assert response.status_code == 202 and response.json()["status"] in ("queued", "running"), response.text
    async with asyncio.timeout(60):
        while (found := (await git_api.web.get(response.headers["location"])).json())["status"] != "completed":
            assert found["status"] in ("queued", "running"), found
            await asyncio.sleep(0.05)
    assert found["detail"]["baseBranch"] == "main" and found["finishedAt"]


INVALID_OPERATIONS: list[tuple[str, dict[str, Any], str]] = [
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
]
"""The operation, its body, and the field that the error names."""
INVALID_QUERIES = [
    "git/sbx_x/diff?against=HEAD",
    "git/sbx_x/diff?against=-x",
    "git/sbx_x/history?limit=0",
    "git/sbx_x/history?skip=-1",
    "projects/prj_x/compare?base=main",
    "projects/prj_x/compare?base=main&head=a..b",
    "projects/prj_x/compare?base=--output=x&head=main",
]


async def test_invalid_requests_are_rejected(platform: PlatformHarness) -> None:
    token = await platform.services.users.create_token(platform.owner, "test")
    async with client(build(platform.services, ROUTERS), Person(platform.owner, token.value.reveal())) as web:
        for verb, body, field in INVALID_OPERATIONS:
            response = await web.post(f"/api/v1/git/{verb}", json={"sandboxId": "sbx_x", **body})
            assert response.status_code == 400, (verb, field, response.text)
            assert response.json()["errors"][0]["field"] == field, (verb, response.text)
        for path in INVALID_QUERIES:
            assert (await web.get(f"/api/v1/{path}")).status_code == 400, path
        assert (await web.post("/api/v1/git/push?wait=301", json={"sandboxId": "x"})).status_code == 400
