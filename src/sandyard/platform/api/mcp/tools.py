"""All tools, in the order in which clients see them."""

from __future__ import annotations

from sandyard.platform.api.mcp import agents, asks, commands, files, git, projects, sandboxes, sessions, tasks, turns
from sandyard.platform.api.mcp.tool import Tool

TOOLS: dict[str, Tool] = {
    name: tool
    for noun in (projects, agents, tasks, asks, sessions, turns, sandboxes, commands, files, git)
    for name, tool in noun.tools.tools.items()
}
