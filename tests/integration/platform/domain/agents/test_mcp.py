"""Which MCP servers an agent is given, before a real engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import select

from sandyard.platform.db.models import AgentRun, Message
from sandyard.platform.domain.agents.json_columns import InternalOptions
from sandyard.platform.domain.mcp_servers.service import McpServerDraft
from tests.integration.platform.domain.agents.harness import AGENT, AgentHarness, ScriptedProfile
from tests.unit.platform.world import ROOT

COMMAND = McpServerDraft(name="inside", command="cat", args=["--fast"], env={"LEVEL": "info"})
URL = McpServerDraft(name="outside", url="http://127.0.0.1:9/mcp")
INSIDE = {"name": "inside", "command": "cat", "args": ["--fast"], "env": [{"name": "LEVEL", "value": "info"}]}


async def told(harness: AgentHarness, row: Any) -> Any:
    turn = await harness.play(row, "mcp")
    assert turn.status == "completed", turn.error
    return json.loads(await harness.text(turn))


async def test_servers_come_with_the_session_and_follow_changes(harness: AgentHarness) -> None:
    """Of a project that gets one, the agent is started again before its next turn, and goes on with its session."""
    services = harness.yard.services
    harness.agents.known = ScriptedProfile(argv=("python3", AGENT, "--loads", "--http"))
    project_id = await harness.yard.project(harness.yard.owner)
    row = await harness.session(project_id=project_id)
    assert await told(harness, row) == ["session/new", []]
    await services.mcp_servers.create(harness.yard.owner, project_id, COMMAND)
    assert await told(harness, row) == ["session/load", [INSIDE]]
    assert harness.models.reached == 0, "a command needs no tunnel"
    outside = await services.mcp_servers.create(ROOT, project_id, URL)
    url = {
        "type": "http",
        "name": "outside",
        "url": f"http://127.0.0.1:4100/{outside.id}",
        "headers": [{"name": "Authorization", "value": "Bearer syc_capability"}],
    }
    assert await told(harness, row) == ["session/load", [INSIDE, url]]
    assert (harness.models.reached, harness.models.attached) == (1, 1)
    moved = McpServerDraft(url="http://127.0.0.1:10/mcp")
    await services.mcp_servers.update(ROOT, project_id, outside.id, moved)
    assert await told(harness, row) == ["session/load", [INSIDE, url]]
    assert len(await harness.runs(row)) == 3, "where a URL leads is the gateway's to know"
    async with services.database.reading() as session:
        runs = list(await session.scalars(select(AgentRun)))
        notices = [m for m in await session.scalars(select(Message)) if m.role == "system"]
    assert "mcpServers" in InternalOptions.__annotations__
    assert not any("mcpServers" in run.options for run in runs), "a capability is not kept longer than it is needed"
    assert notices == []


async def test_an_agent_that_takes_no_urls_says_so(harness: AgentHarness) -> None:
    services = harness.yard.services
    project_id = await harness.yard.project(harness.yard.owner)
    await services.mcp_servers.create(harness.yard.owner, project_id, COMMAND)
    await services.mcp_servers.create(ROOT, project_id, URL)
    row = await harness.session(project_id=project_id)
    turn = await harness.play(row, "mcp")
    assert json.loads(await harness.text(turn)) == ["session/new", [INSIDE]]
    (notice,) = await harness.parts(turn, "system")
    assert (notice["type"], notice["code"]) == ("notice", "mcp_server_left_out")
    assert "continues without outside" in notice["text"]


async def test_a_command_that_is_not_in_the_sandbox_is_told(harness: AgentHarness) -> None:
    """It is looked for with the PATH of the server's own environment, and in the folder where the agent works."""
    services = harness.yard.services
    project_id = await harness.yard.project(harness.yard.owner)
    there = McpServerDraft(name="there", command="cat", env={"PATH": "/usr/bin:/bin"})
    for wanted in (COMMAND, there, replace(there, name="elsewhere", env={"PATH": "/nowhere"})):
        await services.mcp_servers.create(harness.yard.owner, project_id, wanted)
    await services.mcp_servers.create(
        harness.yard.owner, project_id, McpServerDraft(name="gone", command="no-such-program")
    )
    row = await harness.session(project_id=project_id)
    turn = await harness.play(row, "mcp")
    assert [one["name"] for one in json.loads(await harness.text(turn))[1]] == ["inside", "there", "elsewhere", "gone"]
    notices = await harness.parts(turn, "system")
    assert [(one["type"], one["code"]) for one in notices] == [("notice", "mcp_server_failed")] * 2
    assert "MCP server elsewhere could not be started: the program cat is not in the sandbox" in notices[0]["text"]
    assert (
        "MCP server gone could not be started: the program no-such-program is not in the sandbox" in notices[1]["text"]
    )
    assert not await harness.parts(await harness.play(row, "mcp"), "system"), "once for each start of the agent"
