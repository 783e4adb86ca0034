"""OpenAI's Codex, through its ACP adapter."""

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

PACKAGE, VERSION, BINARY = "@zed-industries/codex-acp", "0.16.0", "codex-acp"
MODEL = "gpt-5.5"
KEY = "SANDYARD_MODEL_KEY"
CONFIG = """\
model = {model}
model_provider = "sandyard"
approval_policy = {approval}
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"

[analytics]
enabled = false

[feedback]
enabled = false

[projects.{folder}]
trust_level = {trust}

[model_providers.sandyard]
name = "Sandyard"
base_url = {base_url}
env_key = {key}
wire_api = "responses"
requires_openai_auth = false

[features]
unified_exec = {unasked}
"""
"""The sandbox provides the isolation: Codex's own does not work inside of one, and neither do the modes that need it."""
MODES = {"ask": "untrusted", "full-access": "never"}
"""ask: asks before everything not known to be read-only, and the project's policy decides. full-access: never asks."""
TRUSTED = (
    "awk base64 basename cat cd cut date df dirname du echo env expr false fd file find git grep head hostname id jq less ls "
    "md5sum more nl numfmt od paste printf ps pwd readlink realpath rev rg sed seq sha1sum sha256sum sort stat strings tac tail "
    "test tr tree true uname uniq wc whereis which whoami xxd yq"
).split()
"""Programs that Codex may consider harmless and run without asking. It asks before all others."""
RULES = f'prefix_rule(pattern=[{json.dumps(TRUSTED)}], decision="prompt")\n'
"""Ask before these programs too. The strictest rule of all rule files applies."""


def make_launch(request: LaunchRequest) -> Launch:
    home = f"{request.home}/.sandyard/agents/codex"
    envs = {"CODEX_HOME": home}
    files = {}
    if endpoint := request.endpoint:
        envs[KEY] = endpoint.capability.reveal()
        settings = CONFIG.format(
            approval=_toml_string(MODES["ask"] if request.asks else MODES.get(request.mode or "ask", MODES["ask"])),
            trust=_toml_string(
                "untrusted" if request.asks else "trusted"
            ),  # in a trusted folder its own settings and rules would take precedence
            unasked="false" if request.asks else "true",  # input typed into a running command needs no permission
            model=_toml_string(endpoint.model or request.model or MODEL),
            folder=_toml_string(request.folder),
            base_url=_toml_string(f"{endpoint.base_url}/v1"),
            key=_toml_string(KEY),
        )
        files[f"{home}/config.toml"] = settings.encode()
        files[f"{home}/rules/sandyard.rules"] = RULES.encode() if request.asks else b""
    return Launch((get_npm_program_path(request.home, PACKAGE, VERSION, BINARY),), envs, files)


def _toml_string(value: str) -> str:
    """Return a TOML string. TOML accepts JSON strings, except for lone surrogates."""
    return json.dumps(value, ensure_ascii=False)


CODEX = BuiltInProfile(
    name="codex",
    title="Codex",
    description="OpenAI's coding agent.",
    make_launch=make_launch,
    install=make_npm_install(PACKAGE, VERSION, BINARY, lock=read_lock("codex")),
    apis=(ModelApi.OPENAI,),
    models=(MODEL,),
    modes=tuple(MODES),
    unasked_modes=("full-access",),
)
