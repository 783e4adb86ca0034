"""OpenAI's Codex, through its adapter for ACP."""

from __future__ import annotations

import json

from sandyard.platform.domain.agents.model import Launch, LaunchWish, ModelApi
from sandyard.platform.domain.agents.profiles.base import BuiltIn, npm_install, npm_program, read_lock

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
"""The isolation is that of the sandbox it is in: its own does not work inside of one, and with it neither do its other modes."""
MODES = {"ask": "untrusted", "full-access": "never"}
"""ask: before whatever is not known to only read, and the project's policy has the answers. full-access: it asks for nothing."""
TRUSTED = (
    "awk base64 basename cat cd cut date df dirname du echo env expr false fd file find git grep head hostname id jq less ls "
    "md5sum more nl numfmt od paste printf ps pwd readlink realpath rev rg sed seq sha1sum sha256sum sort stat strings tac tail "
    "test tr tree true uname uniq wc whereis which whoami xxd yq"
).split()
"""Programs that it may take for harmless and run without asking; for all others it asks by itself."""
RULES = f'prefix_rule(pattern=[{json.dumps(TRUSTED)}], decision="prompt")\n'
"""Before these too. The strictest rule of all its files wins."""


def start(wish: LaunchWish) -> Launch:
    home = f"{wish.home}/.sandyard/agents/codex"
    envs = {"CODEX_HOME": home}
    files = {}
    if endpoint := wish.endpoint:
        envs[KEY] = endpoint.capability.reveal()
        settings = CONFIG.format(
            approval=_text(MODES["ask"] if wish.asks else MODES.get(wish.mode or "ask", MODES["ask"])),
            trust=_text(
                "untrusted" if wish.asks else "trusted"
            ),  # of a trusted one its own settings and rules would win
            unasked="false" if wish.asks else "true",  # what is typed into an open command is not asked for
            model=_text(endpoint.model or wish.model or MODEL),
            folder=_text(wish.folder),
            base_url=_text(f"{endpoint.base_url}/v1"),
            key=_text(KEY),
        )
        files[f"{home}/config.toml"] = settings.encode()
        files[f"{home}/rules/sandyard.rules"] = RULES.encode() if wish.asks else b""
    return Launch((npm_program(wish.home, PACKAGE, VERSION, BINARY),), envs, files)


def _text(value: str) -> str:
    """As TOML has it, which knows JSON's strings but for the halves of characters."""
    return json.dumps(value, ensure_ascii=False)


CODEX = BuiltIn(
    name="codex",
    title="Codex",
    description="OpenAI's coding agent.",
    start=start,
    install=npm_install(PACKAGE, VERSION, BINARY, lock=read_lock("codex")),
    apis=(ModelApi.OPENAI,),
    models=(MODEL,),
    modes=tuple(MODES),
    unasked_modes=("full-access",),
)
