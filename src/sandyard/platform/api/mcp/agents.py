"""MCP tools: agents."""

from __future__ import annotations

from pydantic import Field

from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.schema import Input, Model, example

tools = Toolbox()
MAX_AGENTS = 200


class ListAgents(Input):
    model_config = example()


class AgentSummary(Model):
    model_config = example(name="demo", title="Demo agent", demo=True, models=[], modes=[])

    name: str
    title: str
    description: str
    demo: bool = Field(
        description="True for the demo agent, which follows simple written instructions and uses no model."
    )
    models: list[str] = Field(description="Models the agent is known to work with.")
    modes: list[str]


class AgentList(Model):
    items: list[AgentSummary]


@tools.add("list_agents", title="List agents", reads=True)
async def list_agents(call: Call, arguments: ListAgents) -> AgentList:
    """List the coding agents available for tasks and sessions, by the names that create_task and create_session take."""
    profiles = [agent.profile for agent in await call.services.agents.list(call.caller)]
    return AgentList(
        items=[
            AgentSummary(
                name=profile.name,
                title=profile.title,
                description=profile.description[:1000],
                demo=profile.demo,
                models=list(profile.models)[:50],
                modes=list(profile.modes)[:50],
            )
            for profile in profiles[:MAX_AGENTS]
        ]
    )
