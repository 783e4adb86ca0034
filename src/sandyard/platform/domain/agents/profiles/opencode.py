"""OpenCode, which supports every kind of model API."""

from __future__ import annotations

import json
import shlex
from typing import Any

from sandyard.platform.domain.agents.profiles.base import (
    BuiltInProfile,
    get_npm_program_path,
    make_npm_install,
    read_lock,
)
from sandyard.platform.domain.agents.profiles.model import Launch, LaunchRequest
from sandyard.platform.domain.models.model import ModelApi, ModelEndpoint

PACKAGE, VERSION, BINARY = "opencode-ai", "1.18.18", "opencode"
SCRIPT = "postinstall.mjs"
"""Puts the binary for this processor in place. Without it, the program only reports that the script was not run."""
_PLUGIN_LOCK = json.dumps({"packages": {"": {"dependencies": {"@opencode-ai/plugin": VERSION}}}})
CONFIGURE = (
    'config="$HOME/.config/opencode"; [ -e "$config" ] || '
    f"""{{ mkdir -p "$config/node_modules" && printf '%s' {shlex.quote(_PLUGIN_LOCK)} >"$config/package-lock.json"; }}"""
)
"""At its start, OpenCode installs this package and what it depends on from npm, in any version, unless the lock names it. Only plugins
need it, and they are turned off. A template's own configuration stays as it is."""
MODEL = "gpt-5.5"
PROVIDER = "sandyard"
MODEL_KEY = "model"
"""The same for every model: a session that was started with another model can only be loaded if its model still exists."""
KEY = "SANDYARD_MODEL_KEY"
SDKS = {
    ModelApi.OPENAI_CHAT: ("@ai-sdk/openai-compatible", "/v1"),
    ModelApi.OPENAI: ("@ai-sdk/openai", "/v1"),
    ModelApi.ANTHROPIC: ("@ai-sdk/anthropic", "/v1"),
    ModelApi.GEMINI: ("@ai-sdk/google", "/v1beta"),
}
"""The SDK in its binary for each API, and the path of that API below the base URL."""
ENVS = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
    "OPENCODE_PURE": "1",
}
"""Call nothing but the model, and install nothing."""
LIMIT = {"context": 200_000, "output": 32_000}
"""In tokens. Without them it would never compact a long conversation."""
ASKING_TOOLS = ("edit", "bash", "webfetch", "websearch", "external_directory", "doom_loop")
"""Actions that need permission, which the project's policy decides. Reading does not."""
ASK_ALWAYS: dict[str, Any] = {"*": "ask"}


def make_launch(request: LaunchRequest) -> Launch:
    folder = f"{request.home}/.sandyard/agents/opencode"
    config = f"{folder}/opencode.json"
    settings: dict[str, Any] = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,  # the platform's checkpoints have the same, without a git commit for each step
        "agent": {"title": {"disable": True}},  # a model request whose result nobody sees
        "permission": ASK_ALWAYS if request.asks else dict.fromkeys(ASKING_TOOLS, "ask"),
        **(_build_model_settings(request.endpoint, request.model) if request.endpoint else {}),
    }
    envs = {**ENVS, "OPENCODE_CONFIG": config}
    if request.asks:  # ignore the repository's own settings, which would take precedence
        envs |= {"OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_PERMISSION": json.dumps(ASK_ALWAYS)}
        settings["instructions"] = [f"{request.folder}/AGENTS.md"]
    files = {config: json.dumps(settings, indent=2).encode()}
    if request.endpoint:
        models = f"{folder}/models.json"
        files[models] = b"{}"  # loading its own list of all providers' models takes a second
        envs |= {KEY: request.endpoint.capability.reveal(), "OPENCODE_MODELS_PATH": models}
    program = get_npm_program_path(request.home, PACKAGE, VERSION, BINARY)
    return Launch((program, "acp", "--cwd", request.folder), envs, files)


def _build_model_settings(endpoint: ModelEndpoint, wanted: str | None) -> dict[str, Any]:
    """Configure our provider and no other, so that no request bypasses it."""
    model = endpoint.model or wanted or MODEL
    sdk, path = SDKS[endpoint.api]
    options = {"baseURL": f"{endpoint.base_url}{path}", "apiKey": f"{{env:{KEY}}}"}
    models = {MODEL_KEY: {"id": model, "name": model, "limit": LIMIT}}
    provider = {"name": "Sandyard", "npm": sdk, "options": options, "models": models}
    name = f"{PROVIDER}/{MODEL_KEY}"
    return {"enabled_providers": [PROVIDER], "model": name, "small_model": name, "provider": {PROVIDER: provider}}


OPENCODE = BuiltInProfile(
    name="opencode",
    title="OpenCode",
    description="The open source coding agent, with the models of any provider.",
    make_launch=make_launch,
    install=make_npm_install(PACKAGE, VERSION, BINARY, lock=read_lock("opencode"), script=SCRIPT, configure=CONFIGURE),
    apis=(ModelApi.ANTHROPIC, ModelApi.OPENAI, ModelApi.OPENAI_CHAT, ModelApi.GEMINI),
    models=("claude-sonnet-5-5", "gpt-5.5", "gemini-3.1-pro-preview"),
    modes=("build", "plan"),
)
