"""Google's Gemini CLI."""

from __future__ import annotations

import json

from sandyard.platform.domain.agents.profiles.base import (
    BuiltInProfile,
    get_npm_program_path,
    make_npm_install,
    read_lock,
)
from sandyard.platform.domain.agents.profiles.model import Launch, LaunchRequest
from sandyard.platform.domain.models.model import ModelApi

PACKAGE, VERSION, BINARY = "@google/gemini-cli", "0.61.0", "gemini"
MODEL = "gemini-3.1-pro-preview"
AUTH = "gemini-api-key"
SETTINGS = {
    "security": {"auth": {"selectedType": AUTH}},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "context": {"fileName": ["AGENTS.md", "GEMINI.md"]},
    # otherwise commands run in a terminal, whose output is not sent over ACP
    "tools": {"shell": {"enableInteractiveShell": False}},
}
ASK_ALWAYS = """\
[[rule]]
toolName = "*"
decision = "ask_user"
priority = 998

[[rule]]
toolName = "*"
argsPattern = ".*"
decision = "ask_user"
priority = 999
"""
"""Policy that asks before every tool call. It is stored at the user's tier, so that neither the repository's rules nor a
mode override it. Without the rule with an arguments pattern, commands that Gemini considers harmless would run."""
ENVS = {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_TELEMETRY_ENABLED": "false"}


def make_launch(request: LaunchRequest) -> Launch:
    home = f"{request.home}/.sandyard/agents/gemini"
    envs = {**ENVS, "GEMINI_CLI_HOME": home}
    argv = [get_npm_program_path(request.home, PACKAGE, VERSION, BINARY), "--acp"]
    if endpoint := request.endpoint:
        envs |= {"GOOGLE_GEMINI_BASE_URL": endpoint.base_url, "GEMINI_API_KEY": endpoint.capability.reveal()}
        argv += ["--model", endpoint.model or request.model or MODEL]
    files = {
        f"{home}/.gemini/settings.json": json.dumps(SETTINGS, indent=2).encode(),
        f"{home}/.gemini/policies/sandyard.toml": ASK_ALWAYS.encode() if request.asks else b"",
    }
    return Launch(tuple(argv), envs, files)


GEMINI = BuiltInProfile(
    name="gemini",
    title="Gemini CLI",
    description="Google's coding agent.",
    make_launch=make_launch,
    install=make_npm_install(PACKAGE, VERSION, BINARY, lock=read_lock("gemini")),
    apis=(ModelApi.GEMINI,),
    models=(MODEL, "gemini-3-flash-preview", "gemini-2.5-pro"),
    modes=("default", "autoEdit", "yolo", "plan"),
    unasked_modes=("autoEdit", "yolo"),
    auth_method=AUTH,
)
