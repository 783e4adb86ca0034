"""Anthropic's Claude Code, through its adapter for ACP."""

from __future__ import annotations

from sandyard.platform.domain.agents.model import Launch, LaunchWish, ModelApi
from sandyard.platform.domain.agents.profiles.base import BuiltIn, npm_install, npm_program, read_lock

PACKAGE, VERSION, BINARY = "@agentclientprotocol/claude-agent-acp", "0.99.1", "claude-agent-acp"
NODE = 22
MODEL = "claude-sonnet-5-5"
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "4",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
"""It calls nobody but its model."""


def start(wish: LaunchWish) -> Launch:
    envs = {**QUIET, "CLAUDE_CONFIG_DIR": f"{wish.home}/.sandyard/agents/claude"}
    if endpoint := wish.endpoint:
        model = endpoint.model or wish.model or MODEL
        envs |= {"ANTHROPIC_BASE_URL": endpoint.base_url, "ANTHROPIC_API_KEY": endpoint.capability.reveal()}
        envs |= {"ANTHROPIC_MODEL": model, "ANTHROPIC_SMALL_FAST_MODEL": model}
    return Launch((npm_program(wish.home, PACKAGE, VERSION, BINARY),), envs)


CLAUDE = BuiltIn(
    name="claude",
    title="Claude Code",
    description="Anthropic's coding agent.",
    start=start,
    install=npm_install(PACKAGE, VERSION, BINARY, lock=read_lock("claude"), node=NODE),
    apis=(ModelApi.ANTHROPIC,),
    models=(MODEL, "claude-opus-5-5", "claude-haiku-5-5"),
    modes=("default", "acceptEdits", "plan", "auto", "bypassPermissions"),
)
