"""Tasks and agents through /mcp, with the demo agent before a real engine and a real repository."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from tests.integration.platform.domain.sandboxes.yard import Yard
from tests.unit.platform.api.mcp_client import client, done, kept, refused, serving, token_of
from tests.unit.platform.world import ROOT

if TYPE_CHECKING:
    from mcp import Client

GIT = ["git", "-c", "user.name=Maria", "-c", "user.email=maria@example.org", "-c", "init.defaultBranch=main"]


@dataclass
class Shop:
    yard: Yard
    url: str
    mcp: Client
    project: str
    origin: Path

    async def rested(self, task: str) -> dict[str, Any]:
        return await done(self.mcp, "wait_for_task", taskId=task, waitSeconds=240)


def git(*arguments: str, cwd: Path) -> str:
    return subprocess.run([*GIT, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture
async def shop(yard: Yard, tmp_path: Path) -> AsyncIterator[Shop]:
    seed, origin = tmp_path / "seed", tmp_path / "website.git"
    seed.mkdir()
    git("init", "-q", cwd=seed)
    (seed / "README.md").write_text("# Website\n")
    git("add", ".", cwd=seed)
    git("commit", "-q", "-m", "feat: a beginning", cwd=seed)
    git("clone", "-q", "--bare", str(seed), str(origin), cwd=tmp_path)
    project = await yard.services.projects.create(yard.owner, "website")
    await yard.services.projects.update(ROOT, project.id, repository=str(origin))
    async with serving(build(yard.services, ROUTERS)) as url, kept(url, await token_of(yard)) as mcp:
        yield Shop(yard, url, mcp, project.id, origin)


async def test_a_task_from_card_to_review(shop: Shop) -> None:
    mcp = shop.mcp
    assert "demo" in [one["name"] for one in (await done(mcp, "list_agents"))["items"]]
    words = "create hello.txt: hi\nask: Which colour?\nappend hello.txt: {answer}\n"
    made = await done(mcp, "create_task", projectId=shop.project, title="Say hello", description=words, agent="demo")
    task = made["id"]
    assert made["status"] == "in_progress" and not made["rests"]
    asked = await shop.rested(task)
    assert [one["kind"] for one in asked["asks"]] == ["question"] and "Which colour" in asked["asks"][0]["title"], asked
    listed = await done(mcp, "list_asks", taskId=task)
    assert [one["id"] for one in listed["items"]] == [asked["asks"][0]["id"]]
    form = listed["items"][0]["form"]
    field = next(iter(form["properties"]))
    code, _ = await refused(mcp, "answer_ask", askId=listed["items"][0]["id"])
    assert code == "invalid_argument"
    answered = await done(mcp, "answer_ask", askId=listed["items"][0]["id"], content={field: "green"})
    assert answered["status"] == "answered"
    rested = await shop.rested(task)
    assert rested["rests"] and rested["status"] == "in_review", rested
    assert rested["attempts"][0]["status"] == "in_review" and "send_feedback" in rested["hint"]
    diff = await done(mcp, "task_diff", taskId=task)
    assert [file["path"] for file in diff["files"]] == ["hello.txt"] and "+green" in diff["files"][0]["patch"]
    said = (await done(mcp, "task_transcript", taskId=task, limit=100))["items"]
    assert said[-1]["role"] == "user" and "create hello.txt" in said[-1]["text"]
    assert {"agent", "user"} <= {one["role"] for one in said}
    code, _ = await refused(mcp, "task_diff", taskId=task, attempt=7)
    assert code == "not_found"

    back = await done(mcp, "send_feedback", taskId=task, feedback="create more.txt: more")
    assert back["status"] == "in_progress"
    rested = await shop.rested(task)
    assert rested["status"] == "in_review" and rested["attempts"][0]["round"] == 2, rested
    branch = rested["attempts"][0]["branch"]
    assert "more" in git("show", f"{branch}:more.txt", cwd=shop.origin)
    found = await done(mcp, "list_tasks", projectId=shop.project, status="in_review")
    assert [one["id"] for one in found["items"]] == [task]
    stopped = await done(mcp, "stop_task", taskId=task)
    assert stopped["status"] == "cancelled" and "retry_task" in stopped["hint"]
    actions = [one.action for one in (await shop.yard.services.audit.list(ROOT, AuditQuery(), PageRequest(200))).items]
    for tool in ("create_task", "wait_for_task", "answer_ask", "send_feedback", "stop_task", "task_diff"):
        assert f"mcp.{tool}" in actions, tool


@pytest.mark.slow  # retries have tests without MCP
async def test_a_failure_is_told_and_tried_again(shop: Shop) -> None:
    made = await done(shop.mcp, "create_task", projectId=shop.project, title="Fail", description="fail: no paint left")
    rested = await shop.rested(made["id"])
    assert rested["rests"] and rested["attempts"][0]["status"] == "failed", rested
    assert "no paint left" in str(rested["attempts"][0]["error"]) and "retry_task" in rested["hint"]
    again = await done(shop.mcp, "retry_task", taskId=made["id"])
    assert not again["rests"]
    assert (await shop.rested(made["id"]))["attempts"][0]["round"] == 2


async def test_prompting_a_session(shop: Shop) -> None:
    mcp = shop.mcp
    session = (await done(mcp, "create_session", projectId=shop.project, agent="demo"))["id"]
    first = await done(mcp, "prompt_session", sessionId=session, text="say: hello there", key="one", waitSeconds=240)
    assert first["status"] == "completed", first
    assert any("hello there" in one["text"] for one in first["said"]["items"])
    again = await done(mcp, "prompt_session", sessionId=session, text="say: hello there", key="one", waitSeconds=240)
    assert again["turnId"] == first["turnId"]
    asked = await done(mcp, "prompt_session", sessionId=session, text="ask: Which colour?", waitSeconds=240)
    assert asked["status"] == "waiting" and len(asked["asks"]) == 1
    await done(mcp, "cancel_turn", turnId=asked["turnId"])
    over = await done(mcp, "wait_for_turn", turnId=asked["turnId"], waitSeconds=240)
    assert over["status"] == "cancelled"
    said = (await done(mcp, "session_transcript", sessionId=session, limit=100))["items"]
    assert "say: hello there" in [one["text"] for one in said]


async def test_a_stranger_finds_no_task(shop: Shop) -> None:
    made = await done(shop.mcp, "create_task", projectId=shop.project, title="Secret", start=False)
    assert made["status"] == "backlog" and made["rests"] and "start_task" in made["hint"]
    async with client(shop.url, await token_of(shop.yard, "stranger")) as stranger:
        for tool in "get_task wait_for_task start_task stop_task retry_task task_diff task_transcript".split():
            mine, none = (
                await refused(stranger, tool, taskId=made["id"]),
                await refused(stranger, tool, taskId="tsk_none"),
            )
            assert mine[0] == none[0] == "not_found", tool
            assert mine[1].replace(made["id"], "") == none[1].replace("tsk_none", ""), tool
        assert (await refused(stranger, "send_feedback", taskId=made["id"], feedback="x"))[0] == "not_found"
        assert (await refused(stranger, "pick_attempt", taskId=made["id"], attempt=1))[0] == "not_found"
        assert (await refused(stranger, "create_task", projectId=shop.project, title="x"))[0] == "not_found"
        assert (await done(stranger, "list_tasks"))["items"] == []
        assert (await refused(stranger, "answer_ask", askId="ask_none", decision="allow"))[0] == "not_found"
        assert (await refused(stranger, "wait_for_turn", turnId="trn_none"))[0] == "not_found"


async def test_a_wait_is_bounded_and_ends_with_the_platform(shop: Shop) -> None:
    needed = await done(shop.mcp, "create_task", projectId=shop.project, title="First", start=False)
    made = await done(shop.mcp, "create_task", projectId=shop.project, title="Second", needs=[needed["id"]])
    waited = await done(shop.mcp, "wait_for_task", taskId=made["id"], waitSeconds=0.3)
    assert not waited["rests"] and needed["id"] in waited["hint"]
    told: list[str] = []

    async def progress(_: float, __: float | None, words: str | None) -> None:
        told.append(words or "")
        shop.yard.services.events.end()

    result = await shop.mcp.call_tool(
        "wait_for_task", {"taskId": made["id"], "waitSeconds": 60}, progress_callback=progress
    )
    assert result.is_error and result.meta is not None and result.meta["code"] == "stopping"
    assert told and needed["id"] in told[0]
