"""Types of the JSON columns of agents: options and capabilities of runs, details and answers of asks.

Keys and values are as they are stored. Those that the API shows are part of it.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, cast

from sandyard.platform.db.models import AgentRun, Ask


class InternalOptions(TypedDict, total=False):
    """Options of a run that the API does not show."""

    pending: dict[str, str]
    """Methods of our requests that the agent has not answered, by number."""
    folder: str
    """Its working folder."""
    auth: str | None
    """The authentication method it requires."""
    fresh: bool
    """It does not know the earlier conversation."""
    served: bool
    """It reaches its model or MCP servers through our tunnel."""
    delivered: int | None
    """Bytes of input that are certainly in its sandbox."""
    strictness: str
    """Strictness of the project's policy at its start."""
    askingModes: list[str] | None
    """Its modes in which it asks. None means all of them."""
    prompted: int
    """Position of its first prompt in its input."""
    mcpServers: list[dict[str, Any]]
    """Its MCP servers in ACP's format, until it has opened its session."""
    mcpFingerprint: str
    """A hash of its MCP servers."""
    mcpMissing: dict[str, str]
    """Commands of MCP servers that are not in the sandbox, by server name."""
    mcpCommands: list[str]
    """Names of its MCP servers with a command, as long as no failure of them was reported."""


class Mode(TypedDict):
    id: str
    name: str


class SlashCommand(TypedDict):
    name: str
    description: str


class RunOptions(InternalOptions, total=False):
    """`AgentRun.options`: the internal ones, and what the agent has reported."""

    modes: list[Mode]
    currentMode: str
    configOptions: Any
    """A list in ACP's format, or the beginning of its JSON if it is too long."""
    commands: list[SlashCommand]
    startupOutput: str
    """Its text before the first prompt."""


class RunCapabilities(TypedDict, total=False):
    """`AgentRun.capabilities`: from the agent's response to `initialize`."""

    agent: Any
    """`agentCapabilities`, an object unless it was too long."""
    info: Any


class AskOption(TypedDict):
    """An option that answers a permission request. `kind` is one of ACP's, such as allow_once."""

    optionId: str
    name: str
    kind: str


class Feedback(TypedDict):
    """Feedback on a pull request that is sent to the agent if a person approves it."""

    words: str
    about: NotRequired[str]
    author: str
    reason: str
    number: int | None


class AskDetail(TypedDict, total=False):
    """`Ask.detail`."""

    options: list[AskOption]
    by: str
    """`model.PLATFORM` if the platform itself asks."""
    toolCall: Any
    reason: str
    """Why the policy decided, or why it did not."""
    pattern: str
    """The project's pattern that denies the tool call."""
    form: Any
    """A JSON schema."""
    feedback: Feedback


class AskAnswer(TypedDict, total=False):
    """`Ask.answer`: `action` and `content` for a form, the others for a choice."""

    action: str
    content: dict[str, Any]
    outcome: str
    optionId: str
    kind: str
    decision: str | None


def get_run_options(run: AgentRun) -> RunOptions:
    return cast("RunOptions", run.options)


def change_options(run: AgentRun, changes: RunOptions) -> None:
    run.options = {**run.options, **changes}


def list_public_options(run: AgentRun) -> dict[str, Any]:
    """Return the options that the API shows."""
    return {name: value for name, value in run.options.items() if name not in InternalOptions.__annotations__}


def get_agent_capabilities(run: AgentRun) -> dict[str, Any]:
    """Return the agent's `agentCapabilities`."""
    found = cast("RunCapabilities", run.capabilities).get("agent")
    return found if isinstance(found, dict) else {}


def get_ask_detail(ask: Ask) -> AskDetail:
    return cast("AskDetail", ask.detail)


def get_answer(ask: Ask) -> AskAnswer:
    """Return the answer, or an empty one if there is none yet."""
    return cast("AskAnswer", ask.answer or {})
