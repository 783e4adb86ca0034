"""Database access for MCP servers."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.models import McpServer


async def list_servers(session: AsyncSession, project_id: str | None) -> list[McpServer]:
    """Return the project's servers, oldest first. Empty without a project."""
    if project_id is None:
        return []
    query = select(McpServer).where(McpServer.project_id == project_id).order_by(McpServer.id)
    return list(await session.scalars(query))
