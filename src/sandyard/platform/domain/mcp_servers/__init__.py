"""MCP servers for a project's agents."""
