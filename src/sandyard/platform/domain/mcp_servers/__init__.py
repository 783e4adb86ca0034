"""MCP servers that agents of a project are given."""
