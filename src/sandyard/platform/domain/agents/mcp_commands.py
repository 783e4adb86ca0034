"""Check that the commands of a project's MCP servers exist in the sandbox before the agent gets them.

Agents that cannot start a server continue without it, and most of them do not report it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandyard.platform.domain.sandboxes.e2b import SandboxEngine

TIMEOUT_S = 30.0

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


def describe_missing(name: str, command: str) -> str:
    return (
        f"The MCP server {name} could not be started: the program {command} is not in the sandbox. The agent continues without "
        "it. Install it in the project's setup, or correct the command in the project's settings."
    )


def _get_path(entry: Mapping[str, Any]) -> str:
    return next((str(one["value"]) for one in entry.get("env", ()) if one["name"] == "PATH"), "")
