"""The project's MCP servers, as far as an agent can use them.

Agents that cannot start a server continue without it, and most of them do not report it. So its command is looked for
in the sandbox before the agent gets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandyard.platform.db.models import AgentRun
from sandyard.platform.domain.agents.json_columns import capabilities_of, options_of
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine

TIMEOUT_S = 30.0
UNSUPPORTED = "mcp_server_left_out"
"""Code of the notice about servers that the agent does not support."""

# Arguments: for each server its command, and the PATH of its own environment or an empty string.
_FIND = """while [ $# -ge 2 ]; do
  if (PATH=${2:-$PATH}; command -v -- "$1") >/dev/null; then echo found; else echo missing; fi
  shift 2
done
"""


async def find_missing_commands(
    engine: SandboxEngine, engine_id: str, entries: Sequence[Mapping[str, Any]], *, folder: str, envs: Mapping[str, str]
) -> dict[str, str]:
    """Return the commands that are not in the sandbox, by server name. `entries` are in ACP's format; those with a URL
    are skipped."""
    commands = [one for one in entries if "command" in one]
    if not commands:
        return {}
    words = [word for one in commands for word in (one["command"], _get_path(one))]
    argv = ["bash", "-c", _FIND, "sandyard", *words]
    ran = await engine.programs.run(
        engine_id, argv, cwd=folder, envs=envs, timeout_s=TIMEOUT_S, limit=64 << 10, idempotent=True
    )
    said = ran.stdout.decode(errors="replace").split()
    if len(said) != len(commands):  # the check itself failed, so nothing is known
        return {}
    return {one["name"]: one["command"] for one, found in zip(commands, said, strict=True) if found == "missing"}


def describe_missing_command(name: str, command: str) -> str:
    return (
        f"The MCP server {name} could not be started: the program {command} is not in the sandbox. The agent continues without "
        "it. Install it in the project's setup, or correct the command in the project's settings."
    )


def list_supported_servers(run: AgentRun) -> list[dict[str, Any]]:
    """Return the entries of the MCP servers that the agent supports."""
    capabilities = capabilities_of(run)
    return [one for one in options_of(run).get("mcpServers", ()) if _is_supported(capabilities, one)]


def describe_unsupported_servers(run: AgentRun) -> str | None:
    """Name the MCP servers that the agent was not given, because it does not support them."""
    capabilities = capabilities_of(run)
    names = [one["name"] for one in options_of(run).get("mcpServers", ()) if not _is_supported(capabilities, one)]
    if not names:
        return None
    return f"This agent does not support MCP servers with a URL (mcpCapabilities.http). It continues without {', '.join(names)}."


def _is_supported(capabilities: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Return whether the agent supports this MCP server. Every agent supports commands."""
    over = capabilities.get("mcpCapabilities")
    return "type" not in entry or (isinstance(over, dict) and over.get(entry["type"]) is True)


def _get_path(entry: Mapping[str, Any]) -> str:
    return next((str(one["value"]) for one in entry.get("env", ()) if one["name"] == "PATH"), "")
