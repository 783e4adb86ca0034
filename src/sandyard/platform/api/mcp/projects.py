"""MCP tools: projects."""

from __future__ import annotations

from pydantic import Field

from sandyard.platform.api.mcp.arguments import Paged
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.schema import Instant, Model, example

tools = Toolbox()


class ListProjects(Paged):
    model_config = example(limit=20)


class ProjectSummary(Model):
    model_config = example(id="prj_0mh3k7a1x2abcdefghij", name="website", repository="https://example.org/website.git")

    id: str
    name: str
    repository: str | None
    base_branch: str | None = Field(description="Null means the remote's default branch.")
    created_at: Instant


class ProjectList(Model):
    items: list[ProjectSummary]
    next_cursor: str | None


@tools.add("list_projects", title="List projects", reads=True)
async def list_projects(call: Call, arguments: ListProjects) -> ProjectList:
    """List the projects you may work on, newest first. A project is a repository with its settings; every task belongs to one."""
    found = await call.services.projects.list(call.caller, arguments.page)
    return ProjectList(items=[ProjectSummary.model_validate(row) for row in found.items], next_cursor=found.next_cursor)
