"""Tasks and agents through /mcp, with the demo agent, a real engine and a real repository."""

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
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness
from tests.unit.platform.api.mcp_client import call_failing_tool, call_tool, client, kept, serving, token_of
from tests.unit.platform.world import ROOT

if TYPE_CHECKING:
    from mcp import Client

GIT = ["git", "-c", "user.name=Maria", "-c", "user.email=maria@example.org", "-c", "init.defaultBranch=main"]


@dataclass
class McpEnvironment:
    platform: PlatformHarness
    url: str
    mcp: Client
    project: str
    origin: Path

    async def wait_for_task(self, task: str) -> dict[str, Any]:
        return await call_tool(self.mcp, "wait_for_task", taskId=task, waitSeconds=240)


def git(*arguments: str, cwd: Path) -> str:
    return subprocess.run([*GIT, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture
async def environment(platform: PlatformHarness, tmp_path: Path) -> AsyncIterator[McpEnvironment]:
    seed, origin = tmp_path / "seed", tmp_path / "website.git"
    seed.mkdir()
    git("init", "-q", cwd=seed)
    (seed / "README.md").write_text("# Website\n")
    git("add", ".", cwd=seed)
    git("commit", "-q", "-m", "feat: a beginning", cwd=seed)
    git("clone", "-q", "--bare", str(seed), str(origin), cwd=tmp_path)
    project = await platform.services.projects.create(platform.owner, "website")
    await platform.services.users.update(ROOT, platform.owner.user_id, role="admin")  # others may not use a path
    await platform.services.projects.update(ROOT, project.id, repository=str(origin))
    async with serving(build(platform.services, ROUTERS)) as url, kept(url, await token_of(platform)) as mcp:
        yield McpEnvironment(platform, url, mcp, project.id, origin)


async def test_a_task_from_creation_to_review(environment: McpEnvironment) -> None:
    mcp = environment.mcp
    assert "demo" in [item["name"] for item in (await call_tool(mcp, "list_agents"))["items"]]
    instructions = "create hello.txt: hi\nask: Which colour?\nappend hello.txt: {answer}\n"
    created = await call_tool(
        mcp, "create_task", projectId=environment.project, title="Say hello", description=instructions, agent="demo"
    )
    task = created["id"]
    assert created["status"] == "in_progress" and not created["rests"]
    waiting = await environment.wait_for_task(task)
    assert [ask["kind"] for ask in waiting["asks"]] == ["question"] and "Which colour" in waiting["asks"][0]["title"], (
        waiting
    )
    listed = await call_tool(mcp, "list_asks", taskId=task)
    assert [item["id"] for item in listed["items"]] == [waiting["asks"][0]["id"]]
    form = listed["items"][0]["form"]
    field = next(iter(form["properties"]))
    code, _ = await call_failing_tool(mcp, "answer_ask", askId=listed["items"][0]["id"])
    assert code == "invalid_argument"
    answered = await call_tool(mcp, "answer_ask", askId=listed["items"][0]["id"], content={field: "green"})
    assert answered["status"] == "answered"
    state = await environment.wait_for_task(task)
    assert state["rests"] and state["status"] == "in_review", state
    assert state["attempts"][0]["status"] == "in_review" and "send_feedback" in state["hint"]
    diff = await call_tool(mcp, "task_diff", taskId=task)
    assert [file["path"] for file in diff["files"]] == ["hello.txt"] and "+green" in diff["files"][0]["patch"]
    messages = (await call_tool(mcp, "task_transcript", taskId=task, limit=100))["items"]
    assert messages[-1]["role"] == "user" and "create hello.txt" in messages[-1]["text"]
    assert {"agent", "user"} <= {message["role"] for message in messages}
    code, _ = await call_failing_tool(mcp, "task_diff", taskId=task, attempt=7)
    assert code == "not_found"

    resumed = await call_tool(mcp, "send_feedback", taskId=task, feedback="create more.txt: more")
    assert resumed["status"] == "in_progress"
    state = await environment.wait_for_task(task)
    assert state["status"] == "in_review" and state["attempts"][0]["round"] == 2, state
    branch = state["attempts"][0]["branch"]
    assert "more" in git("show", f"{branch}:more.txt", cwd=environment.origin)
    found = await call_tool(mcp, "list_tasks", projectId=environment.project, status="in_review")
    assert [item["id"] for item in found["items"]] == [task]
    stopped = await call_tool(mcp, "stop_task", taskId=task)
    assert stopped["status"] == "cancelled" and "retry_task" in stopped["hint"]
    actions = [
        item.action
        for item in (await environment.platform.services.audit.list(ROOT, AuditQuery(), PageRequest(200))).items
    ]
    for tool in ("create_task", "wait_for_task", "answer_ask", "send_feedback", "stop_task", "task_diff"):
        assert f"mcp.{tool}" in actions, tool


@pytest.mark.slow  # retries are tested without MCP
async def test_a_failed_task_is_reported_and_can_be_retried(environment: McpEnvironment) -> None:
    created = await call_tool(
        environment.mcp, "create_task", projectId=environment.project, title="Fail", description="fail: no paint left"
    )
    state = await environment.wait_for_task(created["id"])
    assert state["rests"] and state["attempts"][0]["status"] == "failed", state
    assert "no paint left" in str(state["attempts"][0]["error"]) and "retry_task" in state["hint"]
    again = await call_tool(environment.mcp, "retry_task", taskId=created["id"])
    assert not again["rests"]
    assert (await environment.wait_for_task(created["id"]))["attempts"][0]["round"] == 2


async def test_a_session_can_be_prompted(environment: McpEnvironment) -> None:
    mcp = environment.mcp
    session = (await call_tool(mcp, "create_session", projectId=environment.project, agent="demo"))["id"]
    first = await call_tool(
        mcp, "prompt_session", sessionId=session, text="say: hello there", key="one", waitSeconds=240
    )
    assert first["status"] == "completed", first
    assert any("hello there" in item["text"] for item in first["said"]["items"])
    again = await call_tool(
        mcp, "prompt_session", sessionId=session, text="say: hello there", key="one", waitSeconds=240
    )
    assert again["turnId"] == first["turnId"]
    waiting = await call_tool(mcp, "prompt_session", sessionId=session, text="ask: Which colour?", waitSeconds=240)
    assert waiting["status"] == "waiting" and len(waiting["asks"]) == 1
    await call_tool(mcp, "cancel_turn", turnId=waiting["turnId"])
    ended = await call_tool(mcp, "wait_for_turn", turnId=waiting["turnId"], waitSeconds=240)
    assert ended["status"] == "cancelled"
    messages = (await call_tool(mcp, "session_transcript", sessionId=session, limit=100))["items"]
    assert "say: hello there" in [message["text"] for message in messages]


async def test_a_stranger_gets_not_found_for_tasks(environment: McpEnvironment) -> None:
    created = await call_tool(
        environment.mcp, "create_task", projectId=environment.project, title="Secret", start=False
    )
    assert created["status"] == "backlog" and created["rests"] and "start_task" in created["hint"]
    async with client(environment.url, await token_of(environment.platform, "stranger")) as stranger:
        for tool in "get_task wait_for_task start_task stop_task retry_task task_diff task_transcript".split():
            foreign, missing = (
                await call_failing_tool(stranger, tool, taskId=created["id"]),
                await call_failing_tool(stranger, tool, taskId="tsk_none"),
            )
            assert foreign[0] == missing[0] == "not_found", tool
            assert foreign[1].replace(created["id"], "") == missing[1].replace("tsk_none", ""), tool
        assert (await call_failing_tool(stranger, "send_feedback", taskId=created["id"], feedback="x"))[
            0
        ] == "not_found"
        assert (await call_failing_tool(stranger, "pick_attempt", taskId=created["id"], attempt=1))[0] == "not_found"
        assert (await call_failing_tool(stranger, "create_task", projectId=environment.project, title="x"))[
            0
        ] == "not_found"
        assert (await call_tool(stranger, "list_tasks"))["items"] == []
        assert (await call_failing_tool(stranger, "answer_ask", askId="ask_none", decision="allow"))[0] == "not_found"
        assert (await call_failing_tool(stranger, "wait_for_turn", turnId="trn_none"))[0] == "not_found"


async def test_waiting_is_bounded_and_ends_when_the_platform_stops(
    environment: McpEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.platform.api.mcp.event_wait.PROGRESS_S", 0.5)
    needed = await call_tool(environment.mcp, "create_task", projectId=environment.project, title="First", start=False)
    created = await call_tool(
        environment.mcp, "create_task", projectId=environment.project, title="Second", needs=[needed["id"]]
    )
    waited = await call_tool(environment.mcp, "wait_for_task", taskId=created["id"], waitSeconds=0.3)
    assert not waited["rests"] and needed["id"] in waited["hint"]
    reported: list[str] = []

    async def record_progress(_: float, __: float | None, message: str | None) -> None:
        reported.append(message or "")
        environment.platform.services.events.end()

    result = await environment.mcp.call_tool(
        "wait_for_task", {"taskId": created["id"], "waitSeconds": 60}, progress_callback=record_progress
    )
    assert result.is_error and result.meta is not None and result.meta["code"] == "stopping"
    assert reported and needed["id"] in reported[0]
