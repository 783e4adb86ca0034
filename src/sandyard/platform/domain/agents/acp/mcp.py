"""The project's MCP servers, as far as an agent can use them.

Agents that cannot start a server continue without it, and most of them do not report it. So its command is looked for
in the sandbox before the agent gets it, and it is run by a program that records why it exited.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from sandyard.kit.secret import Secret
from sandyard.platform.db.models import AgentRun, McpServer
from sandyard.platform.domain.agents.json_columns import get_agent_capabilities, get_run_options
from sandyard.platform.domain.models.redaction import make_header_redactor
from sandyard.platform.domain.repositories.error_translation import clean_line
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.e2b.guest_sources import read_script

TIMEOUT_S = 30.0
READ_TIMEOUT_S = 5.0
"""Time limit to read how servers exited. The agent's answer waits for it."""
MAX_STDERR_SHOWN = 2000
"""Characters shown of the end of a server's standard error."""
RUN_PROGRAM_PATH = "/home/user/.sandyard/run_mcp_server.sh"
RUN_PROGRAM = read_script("run_mcp_server.sh").encode()
_READ_RECORDS = read_script("read_mcp_records.sh")
_MAX_RECORDS_BYTES = 256 << 10
_STATUS = re.compile(r"[0-9]{1,3}")
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
    commands = [entry for entry in entries if "command" in entry]
    if not commands:
        return {}
    words = [word for command in commands for word in (command["command"], _get_path(command))]
    argv = ["bash", "-c", _FIND, "sandyard", *words]
    ran = await engine.programs.run(
        engine_id, argv, cwd=folder, envs=envs, timeout_s=TIMEOUT_S, limit=64 << 10, idempotent=True
    )
    results = ran.stdout.decode(errors="replace").split()
    if len(results) != len(commands):  # the check itself failed, so nothing is known
        return {}
    return {
        command["name"]: command["command"]
        for command, found in zip(commands, results, strict=True)
        if found == "missing"
    }


def describe_missing_command(name: str, command: str) -> str:
    return (
        f"The MCP server {name} could not be started: the program {command} is not in the sandbox. The agent continues without "
        "it. Install it in the project's setup, or correct the command in the project's settings."
    )


def get_records_folder(run_id: str) -> str:
    """Return the folder in the sandbox for the records of the run's servers."""
    return f"/tmp/.sandyard-{run_id}.mcp"  # noqa: S108 - in the sandbox


def record_exit_of(entry: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Return the entry of a server so that its exit is recorded. A server with a URL is returned unchanged."""
    if "command" not in entry:
        return dict(entry)
    record = f"{get_records_folder(run_id)}/{entry['name']}"
    return {
        **entry,
        "command": "/bin/bash",
        "args": [RUN_PROGRAM_PATH, record, entry["command"], *entry["args"]],
    }


async def read_exits(
    engine: SandboxEngine, engine_id: str, run_id: str, servers: Sequence[McpServer]
) -> dict[str, str]:
    """Return a message for each of these servers that has exited by itself, by name."""
    argv = ["bash", "-c", _READ_RECORDS, "sandyard", get_records_folder(run_id), *(server.name for server in servers)]
    ran = await engine.programs.run(engine_id, argv, timeout_s=READ_TIMEOUT_S, limit=_MAX_RECORDS_BYTES)
    fields = ran.stdout.decode(errors="replace").split("\0")
    records = {name: (status, stderr) for name, status, stderr in zip(*(iter(fields),) * 3, strict=False)}
    found = {}
    for server in servers:
        status, stderr = records.get(server.name, ("", ""))
        if _STATUS.fullmatch(status.strip()):
            found[server.name] = describe_exit(server.name, int(status), stderr, server.env)
    return found


def describe_exit(name: str, status: int, stderr: str, env: Mapping[str, str]) -> str:
    """Describe the exit of a server. `stderr` comes from the sandbox. The values of `env` are removed from it."""
    signal_name = ""
    with contextlib.suppress(ValueError):
        signal_name = f" ({signal.Signals(status - 128).name})"
    message = (
        f"The MCP server {name} exited with status {status}{signal_name}. The agent continues without it. Correct its command, "
        "arguments or variables in the project's settings, or install what it needs in the project's setup."
    )
    # cleaned first, because control characters could hide a value; shortened last, because that could leave a part of one
    lines = "\n".join(clean_line(line).rstrip() for line in stderr.splitlines())
    redactor = make_header_redactor(Secret(value) for value in env.values())
    tail = redactor.redact(lines).strip()[-MAX_STDERR_SHOWN:]
    return f"{message} Its error output ended with:\n{tail}" if tail else message


def list_supported_servers(run: AgentRun) -> list[dict[str, Any]]:
    """Return the entries of the MCP servers that the agent supports."""
    capabilities = get_agent_capabilities(run)
    return [server for server in get_run_options(run).get("mcpServers", ()) if _is_supported(capabilities, server)]


def describe_unsupported_servers(run: AgentRun) -> str | None:
    """Name the MCP servers that the agent was not given, because it does not support them."""
    capabilities = get_agent_capabilities(run)
    names = [
        server["name"]
        for server in get_run_options(run).get("mcpServers", ())
        if not _is_supported(capabilities, server)
    ]
    if not names:
        return None
    return f"This agent does not support MCP servers with a URL (mcpCapabilities.http). It continues without {', '.join(names)}."


def _is_supported(capabilities: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Return whether the agent supports this MCP server. Every agent supports commands."""
    over = capabilities.get("mcpCapabilities")
    return "type" not in entry or (isinstance(over, dict) and over.get(entry["type"]) is True)


def _get_path(entry: Mapping[str, Any]) -> str:
    return next((str(variable["value"]) for variable in entry.get("env", ()) if variable["name"] == "PATH"), "")
