"""`sandyard mcp`: its output, and the bridge, started as an agent does it, with a platform that listens."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from sandyard.platform.api.app import build
from sandyard.platform.api.mcp.tools import TOOLS
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.later import Later
from tests.unit.platform.api.mcp_client import call_failing_tool, call_tool, serving
from tests.unit.platform.world import ROOT

if TYPE_CHECKING:
    import mcp
else:
    mcp = Later("mcp")


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    async with open_services(PlatformSettings.load({}, data_dir=with_schema(tmp_path / "platform"))) as made:
        yield made


async def create_token(services: Services) -> str:
    user = await services.users.create(ROOT, "maria", "member")
    return (await services.users.create_token(Principal(user.id, "maria", "member", "test"), "x")).value.reveal()


def bridge_parameters(url: str, token: str) -> mcp.StdioServerParameters:
    return mcp.StdioServerParameters(
        command=sys.executable,
        args=["-c", "from sandyard.cli.main import cli; cli()", "mcp", "--stdio"],
        env={**os.environ, "SANDYARD_URL": url.removesuffix("/mcp"), "SANDYARD_TOKEN": token},
    )


def test_mcp_prints_the_configuration_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDYARD_URL", "https://yard.example.org")
    monkeypatch.setenv("SANDYARD_TOKEN", "sy_secret")
    shown = CliRunner().invoke(cli, ["mcp", "-o", "table"])
    assert shown.exit_code == 0 and "https://yard.example.org/mcp" in shown.output and "sy_secret" not in shown.output
    configuration = json.loads(CliRunner().invoke(cli, ["mcp", "--with-token"]).output)
    server = configuration["http"]["mcpServers"]["sandyard"]
    assert (server["url"], server["headers"]["Authorization"]) == ("https://yard.example.org/mcp", "Bearer sy_secret")


async def test_the_bridge_passes_calls_to_the_platform(services: Services) -> None:
    async with serving(build(services, ROUTERS)) as url:
        value = await create_token(services)
        async with mcp.Client(mcp.stdio_client(bridge_parameters(url, value)), mode="legacy") as agent:
            assert agent.instructions is not None and "create_task" in agent.instructions
            assert [tool.name for tool in (await agent.list_tools()).tools] == list(TOOLS)
            assert (await call_tool(agent, "list_projects"))["items"] == []
            assert (await call_failing_tool(agent, "get_session", sessionId="ses_none"))[0] == "not_found"
            with pytest.raises(mcp.MCPError, match="Unknown tool"):
                await agent.call_tool("format_disk", {})


async def test_the_bridge_survives_a_restart_of_the_server(services: Services) -> None:
    app = build(services, ROUTERS)
    value = await create_token(services)
    async with serving(app) as url:
        agent = mcp.Client(mcp.stdio_client(bridge_parameters(url, value)))
        await agent.__aenter__()
        await call_tool(agent, "list_projects")
    with pytest.raises(mcp.MCPError, match="is not responding"):
        await agent.call_tool("list_projects", {})
    port = int(url.removesuffix("/mcp").rpartition(":")[2])
    async with serving(app, port):
        assert (await call_tool(agent, "list_projects"))["items"] == []
        await agent.__aexit__(None, None, None)


async def test_a_wrong_token_is_reported_without_a_traceback(services: Services) -> None:
    async with serving(build(services, ROUTERS)) as url:
        parameters = bridge_parameters(url, "sy_wrong")
        child = await asyncio.create_subprocess_exec(
            parameters.command,
            *parameters.args,
            env=parameters.env,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, printed = await child.communicate(b"")
    assert child.returncode != 0 and b"sandyard: " in printed and b"Traceback" not in printed
