"""Sandyard as tools for other agents: the Model Context Protocol over streamable HTTP, at /mcp."""
