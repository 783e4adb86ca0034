"""Anthropic's Claude Code, through its ACP adapter."""

from __future__ import annotations

import json
from typing import Any

from sandyard.platform.domain.agents.profiles.base import (
    BuiltInProfile,
    get_npm_program_path,
    make_npm_install,
    read_lock,
)
from sandyard.platform.domain.agents.profiles.model import Launch, LaunchRequest
from sandyard.platform.domain.models.model import ModelApi

PACKAGE, VERSION, BINARY = "@agentclientprotocol/claude-agent-acp", "0.99.1", "claude-agent-acp"
NODE = 22
MODEL = "claude-sonnet-5-5"
ENVS = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",
    "CLAUDE_CODE_MAX_RETRIES": "4",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
"""Turn off everything that is not part of the task: telemetry, updates, suggestions for the next prompt."""
ASKING_TOOLS = (
    "Agent Bash BashOutput Edit Glob Grep KillShell LSP ListMcpResourcesTool Monitor NotebookEdit NotebookRead Read "
    "ReadMcpResourceTool Skill Task WebFetch WebSearch Write"
).split()
"""Tools that must ask before each use, because they read, change or run something. An "ask" rule overrides an "allow" rule,
whatever the repository's settings say."""
ASK_ALWAYS: dict[str, Any] = {
    "permissions": {
        "ask": [*ASKING_TOOLS, "mcp__*"],
        "defaultMode": "default",
        "disableBypassPermissionsMode": "disable",
    }
}


def make_launch(request: LaunchRequest) -> Launch:
    folder = f"{request.home}/.sandyard/agents/claude"
    envs = {**ENVS, "CLAUDE_CONFIG_DIR": folder}
    files = {f"{folder}/settings.json": json.dumps(ASK_ALWAYS if request.asks else {}, indent=2).encode()}
    if endpoint := request.endpoint:
        model = endpoint.model or request.model or MODEL
        envs |= {"ANTHROPIC_BASE_URL": endpoint.base_url, "ANTHROPIC_API_KEY": endpoint.capability.reveal()}
        envs |= {"ANTHROPIC_MODEL": model, "ANTHROPIC_SMALL_FAST_MODEL": model}
    return Launch((get_npm_program_path(request.home, PACKAGE, VERSION, BINARY),), envs, files)


CLAUDE = BuiltInProfile(
    name="claude",
    title="Claude Code",
    description="Anthropic's coding agent.",
    make_launch=make_launch,
    install=make_npm_install(PACKAGE, VERSION, BINARY, lock=read_lock("claude"), node=NODE),
    apis=(ModelApi.ANTHROPIC,),
    models=(MODEL, "claude-opus-5-5", "claude-haiku-5-5"),
    modes=("default", "acceptEdits", "plan", "auto", "bypassPermissions"),
    unasked_modes=("acceptEdits", "auto", "bypassPermissions"),
)
