"""Which MCP servers an agent is given, with a real engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import select

from sandyard.platform.db.models import AgentRun, Message
from sandyard.platform.domain.agents.acp.mcp import RUN_PROGRAM_PATH, get_records_folder
from sandyard.platform.domain.agents.json_columns import InternalOptions
from sandyard.platform.domain.mcp_servers.service import McpServerDraft
from tests.integration.platform.domain.agents.harness import AGENT, AgentHarness, ScriptedProfile
from tests.unit.platform.world import ROOT

COMMAND = McpServerDraft(name="inside", command="cat", args=["--fast"], env={"LEVEL": "info"})
URL = McpServerDraft(name="outside", url="http://127.0.0.1:9/mcp")
INSIDE = {"name": "inside", "command": "cat", "args": ["--fast"], "env": [{"name": "LEVEL", "value": "info"}]}


async def get_given_servers(harness: AgentHarness, row: Any) -> Any:
    """Return the request in which the agent was given its servers, and the servers as the project has them."""
    turn = await harness.run_turn(row, "mcp")
    assert turn.status == "completed", turn.error
    method, entries = json.loads(await harness.text(turn))
    run = (await harness.runs(row))[-1]
    return [method, [strip_recording(entry, run) for entry in entries]]


def strip_recording(entry: dict[str, Any], run: AgentRun) -> dict[str, Any]:
    if "command" not in entry:
        return entry
    program, record, command, *args = entry["args"]
    assert (entry["command"], program) == ("/bin/bash", RUN_PROGRAM_PATH)
    assert record == f"{get_records_folder(run.id)}/{entry['name']}"
    return {**entry, "command": command, "args": args}


async def test_servers_are_passed_to_the_session_and_follow_changes(harness: AgentHarness) -> None:
    """When the project gets a server, the agent is restarted before its next turn and continues its session."""
    services = harness.platform.services
    harness.agents.current_profile = ScriptedProfile(argv=("python3", AGENT, "--loads", "--http"))
    project_id = await harness.platform.project(harness.platform.owner)
    row = await harness.create_session(project_id=project_id)
    assert await get_given_servers(harness, row) == ["session/new", []]
    await services.mcp_servers.create(harness.platform.owner, project_id, COMMAND)
    assert await get_given_servers(harness, row) == ["session/load", [INSIDE]]
    assert harness.models.reached == 0, "a command needs no tunnel"
    outside = await services.mcp_servers.create(ROOT, project_id, URL)
    url = {
        "type": "http",
        "name": "outside",
        "url": f"http://127.0.0.1:4100/{outside.id}",
        "headers": [{"name": "Authorization", "value": "Bearer syc_capability"}],
    }
    assert await get_given_servers(harness, row) == ["session/load", [INSIDE, url]]
    assert (harness.models.reached, harness.models.attached) == (1, 1)
    moved = McpServerDraft(url="http://127.0.0.1:10/mcp")
    await services.mcp_servers.update(ROOT, project_id, outside.id, moved)
    assert await get_given_servers(harness, row) == ["session/load", [INSIDE, url]]
    assert len(await harness.runs(row)) == 3, "only the gateway knows where a URL leads"
    async with services.database.reading() as session:
        runs = list(await session.scalars(select(AgentRun)))
        notices = [m for m in await session.scalars(select(Message)) if m.role == "system"]
    assert "mcpServers" in InternalOptions.__annotations__
    assert not any("mcpServers" in run.options for run in runs), "a capability is not stored longer than needed"
    assert notices == []


async def test_a_server_with_a_url_is_left_out_for_an_agent_that_takes_none(harness: AgentHarness) -> None:
    services = harness.platform.services
    project_id = await harness.platform.project(harness.platform.owner)
    await services.mcp_servers.create(harness.platform.owner, project_id, COMMAND)
    await services.mcp_servers.create(ROOT, project_id, URL)
    row = await harness.create_session(project_id=project_id)
    assert await get_given_servers(harness, row) == ["session/new", [INSIDE]]
    async with services.database.reading() as session:
        (notice,) = [m.parts[0] for m in await session.scalars(select(Message)) if m.role == "system"]
    assert (notice["type"], notice["code"]) == ("notice", "mcp_server_left_out")
    assert "continues without outside" in notice["text"]


async def test_a_server_command_missing_in_the_sandbox_is_reported(harness: AgentHarness) -> None:
    """The command is looked up with the PATH of the server's own environment, in the folder where the agent works."""
    services = harness.platform.services
    project_id = await harness.platform.project(harness.platform.owner)
    present = McpServerDraft(name="there", command="cat", env={"PATH": "/usr/bin:/bin"})
    for wanted in (COMMAND, present, replace(present, name="elsewhere", env={"PATH": "/nowhere"})):
        await services.mcp_servers.create(harness.platform.owner, project_id, wanted)
    await services.mcp_servers.create(
        harness.platform.owner, project_id, McpServerDraft(name="gone", command="no-such-program")
    )
    row = await harness.create_session(project_id=project_id)
    turn = await harness.run_turn(row, "mcp")
    assert [item["name"] for item in json.loads(await harness.text(turn))[1]] == [
        "inside",
        "there",
        "elsewhere",
        "gone",
    ]
    notices = await harness.parts(turn, "system")
    assert [(notice["type"], notice["code"]) for notice in notices] == [("notice", "mcp_server_failed")] * 2
    assert "MCP server elsewhere could not be started: the program cat is not in the sandbox" in notices[0]["text"]
    assert (
        "MCP server gone could not be started: the program no-such-program is not in the sandbox" in notices[1]["text"]
    )
    assert not await harness.parts(await harness.run_turn(row, "mcp"), "system"), (
        "reported once for each start of the agent"
    )


async def test_the_reason_why_a_server_exits_is_reported(harness: AgentHarness) -> None:
    """The agent ignores the server's standard error. Values of the server's environment are not shown."""
    services = harness.platform.services
    project_id = await harness.platform.project(harness.platform.owner)
    script = 'printf "\\033[31mno access\\033[0m with $TOKEN\\n" >&2; exit 3'
    broken = McpServerDraft(name="broken", command="sh", args=["-c", script], env={"TOKEN": "sk-0123456789"})
    for wanted in (broken, McpServerDraft(name="working", command="cat")):
        await services.mcp_servers.create(harness.platform.owner, project_id, wanted)
    row = await harness.create_session(project_id=project_id)
    turn = await harness.run_turn(row, "use broken", "use working")
    assert await harness.text(turn) == "broken: '' working: 'hello\\n' "
    (notice,) = await harness.parts(turn, "system")
    assert (notice["type"], notice["code"]) == ("notice", "mcp_server_failed")
    assert notice["text"].startswith("The MCP server broken exited with status 3. ")
    assert notice["text"].endswith("Its error output ended with:\nno access with ***")
    again = await harness.run_turn(row, "use broken")
    assert not await harness.parts(again, "system"), "reported once for each start of the agent"
