"""List, define and test agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example
from sandyard.platform.domain.agents import catalogue, trials
from sandyard.platform.domain.agents.catalogue import MAX_NAME, ListedAgent
from sandyard.platform.domain.agents.profiles.custom import Definition
from sandyard.platform.domain.models import service
from sandyard.platform.domain.models.model import ModelApi, Readiness

router = api_router("agents")
Agents = Annotated[catalogue.AgentCatalogue, inject("agents")]
Models = Annotated[service.Models, inject("models")]
Trials = Annotated[trials.Trials, inject("trials")]
AgentName = Annotated[str, Path(max_length=100, examples=["demo"], description="The agent's name.")]
Title = Annotated[str, Field(min_length=1, max_length=200)]
_DEFINITION = {
    "description": "Our own.",
    "argv": ["my-agent", "acp", "--model", "{model}"],
    "install": {"script": "npm install --global my-agent@1.2.3", "check": "command -v my-agent"},
    "envs": {"OPENAI_BASE_URL": "{base_url}/v1", "OPENAI_API_KEY": "{capability}"},
    "apis": ["openai_chat"],
}


class AgentView(Model):
    model_config = example(
        name="opencode",
        title="OpenCode",
        description="The open source coding agent.",
        demo=False,
        default=True,
        builtIn=True,
        apis=["anthropic", "openai"],
        models=["gpt-5.5"],
        modes=["build", "plan"],
        unaskedModes=[],
        version="1.18.18",
        modelReady=True,
        modelProjects=[],
        definition=None,
        ownerId=None,
        createdAt=None,
        updatedAt=None,
    )

    name: str
    title: str
    description: str
    demo: bool = Field(description="True for the demo agent, which follows written instructions and uses no model.")
    default: bool = Field(description="Used when no agent is named and the project has no model of its own.")
    built_in: bool = Field(description="True if the agent ships with the platform.")
    apis: list[ModelApi] = Field(
        description="Model APIs the agent can use, in order of preference. Empty means it needs no model."
    )
    models: list[str] = Field(description="Models the agent is known to work with. Other models can be used too.")
    modes: list[str] = Field(description="Modes the agent can work in, the default first.")
    unasked_modes: list[str] = Field(
        description="Modes in which the agent acts without asking. Not used if the project requires permission."
    )
    version: str | None = Field(description="The version installed in a sandbox. Null means nothing is installed.")
    model_ready: bool = Field(
        description="True if the agent needs no model, or if a provider available to all users serves it."
    )
    model_projects: list[str] = Field(description="Ids of the projects that have their own provider for this agent.")
    definition: Definition | None = Field(description="Null for agents that ship with the platform.")
    owner_id: str | None = Field(description="Null means the agent is available to all users.")
    created_at: Instant | None
    updated_at: Instant | None

    @classmethod
    def from_agent(cls, listed: ListedAgent, readiness: Mapping[str, Readiness], default: str) -> AgentView:
        profile = listed.profile
        ready = readiness[profile.name]
        return cls(
            name=profile.name,
            title=profile.title,
            description=profile.description,
            demo=profile.demo,
            default=profile.name == default,
            built_in=listed.definition is None,
            apis=list(profile.apis),
            models=list(profile.models),
            modes=list(profile.modes),
            unasked_modes=list(profile.unasked_modes),
            version=profile.install.version if profile.install else None,
            model_ready=ready.everywhere,
            model_projects=list(ready.projects),
            definition=listed.definition,
            owner_id=listed.owner_id,
            created_at=listed.created_at,
            updated_at=listed.updated_at,
        )


class AgentList(Model):
    items: list[AgentView]


class AgentChange(Input):
    model_config = example(title="My agent", definition=_DEFINITION)

    title: Title | None = Field(None, description="Defaults to the name.")
    definition: Definition


class NewAgent(AgentChange):
    model_config = example(name="my-agent", title="My agent", definition=_DEFINITION)

    name: str = Field(
        min_length=1,
        max_length=MAX_NAME,
        pattern=r"^[a-z][a-z0-9-]*$",
        description="Unique across all users.",
    )


class AgentTestOptions(Input):
    model_config = example(model="gpt-5.5")

    model: str | None = Field(
        default=None, min_length=1, max_length=200, description="Defaults to the provider's default model."
    )
    background: bool = Field(
        default=False,
        description="Respond immediately with 202. The session's events report progress; `agent.tested` reports the result.",
    )


class StepView(Model):
    model_config = example(name="sandbox", seconds=0.213, ok=True)

    name: str = Field(
        description="sandbox, install, start or answer. Each step is timed from the end of the previous one."
    )
    seconds: float
    ok: bool


class TrialView(Model):
    """The result of an agent test."""

    agent: str
    session_id: str = Field(description="The session the test ran in. The session is deleted; its events are kept.")
    ok: bool
    steps: list[StepView]
    answer: str | None = Field(description="The beginning of the agent's answer.")
    error: str | None
    error_code: str | None


class StartedAgentTest(Model):
    agent: str
    session_id: str


DEFAULT_TEST_OPTIONS = AgentTestOptions()


@router.get("/agents", name="agent.list", dependencies=[limit_large_responses()])
async def list_(caller: Caller, agents: Agents, models: Models) -> AgentList:
    """List built-in agents, agents available to all users, and your own agents."""
    found = await agents.list(caller)
    readiness = await models.list_readiness(caller, [agent.profile for agent in found])
    default = await agents.find_default_agent(None)
    return AgentList(items=[AgentView.from_agent(agent, readiness, default) for agent in found])


@router.post("/agents", name="agent.create", status_code=201, dependencies=[limit_rate("create")])
async def create(request: Request, caller: Caller, agents: Agents, models: Models, body: NewAgent) -> AgentView:
    """Define an agent: any command line that speaks the Agent Client Protocol.

    Agents created by an administrator are available to all users.
    """
    add_audit_detail(request, target=body.name)
    return await _make_view(caller, agents, models, await agents.create(caller, body.name, body.title, body.definition))


@router.get("/agents/{agent_name}", name="agent.get", dependencies=[limit_large_responses()])
async def get(caller: Caller, agents: Agents, models: Models, agent_name: AgentName) -> AgentView:
    return await _make_view(caller, agents, models, await agents.get(caller, agent_name))


@router.put("/agents/{agent_name}", name="agent.update", dependencies=[limit_rate("execute")])
async def update(caller: Caller, agents: Agents, models: Models, agent_name: AgentName, body: AgentChange) -> AgentView:
    """Replace the agent's definition. Running processes are not affected."""
    return await _make_view(
        caller, agents, models, await agents.update(caller, agent_name, body.title, body.definition)
    )


@router.delete("/agents/{agent_name}", name="agent.delete", status_code=204)
async def delete(caller: Caller, agents: Agents, agent_name: AgentName) -> None:
    await agents.delete(caller, agent_name)


@router.post(
    "/agents/{agent_name}/test",
    name="agent.test",
    dependencies=[limit_rate("create")],
    response_model=TrialView,
    responses={202: {"model": StartedAgentTest, "description": "The test continues in the background."}},
)
async def test(
    request: Request,
    caller: Caller,
    trials: Trials,
    agent_name: AgentName,
    body: AgentTestOptions = DEFAULT_TEST_OPTIONS,
) -> Response | TrialView:
    """Test the agent: ask it for one word in a new sandbox.

    Installing an agent may take minutes. The test continues if the client disconnects.
    """
    session_id, trial = await trials.begin(caller, agent_name, model=body.model)
    add_audit_detail(request, session=session_id)
    if body.background:
        started = StartedAgentTest(agent=agent_name, session_id=session_id)
        return JSONResponse(started.model_dump(mode="json", by_alias=True), 202)
    return TrialView.model_validate(await trials.wait(trial))


async def _make_view(caller: Caller, agents: Agents, models: Models, listed: ListedAgent) -> AgentView:
    readiness = await models.list_readiness(caller, [listed.profile])
    return AgentView.from_agent(listed, readiness, await agents.find_default_agent(None))
