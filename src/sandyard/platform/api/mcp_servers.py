"""MCP servers for a project's agents. Header values can be written and are listed as hints only."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import Field, SecretStr

from sandyard.kit.secret import Secret
from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses, limit_remote_requests
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.projects import ProjectId
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.domain.mcp_servers import model, service
from sandyard.platform.domain.mcp_servers.model import ServerType

router = api_router("projects")
McpServers = Annotated[service.McpServers, inject("mcp_servers")]
ServerId = Annotated[str, id_in_path("MCP server", "mcp_0mh3k7a1x2abcdefghij")]
Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=40,
        pattern=f"^{model.NAME}$",
        description="Letters, digits and hyphens. Agents see it in the names of the server's tools.",
        examples=["issues"],
    ),
]
Command = Annotated[
    str,
    Field(
        min_length=1,
        max_length=model.MAX_COMMAND,
        description="A program in the sandbox that speaks MCP on its standard input and output. Not run in a shell.",
        examples=["npx"],
    ),
]
Args = Annotated[
    list[Annotated[str, Field(max_length=model.MAX_ARG)]],
    Field(max_length=model.MAX_ARGS, examples=[["-y", "@example/mcp-server@1.2.3"]]),
]
Env = Annotated[
    dict[
        Annotated[str, Field(pattern=f"^{model.ENV_NAME}$")],
        Annotated[str, Field(max_length=model.MAX_VALUE)],
    ],
    Field(
        max_length=model.MAX_ENV,
        description="Not secret: visible to everyone who can see the project, and to every process in the sandbox.",
        examples=[{"LOG_LEVEL": "info"}],
    ),
]
Url = Annotated[
    str,
    Field(
        min_length=1,
        max_length=model.MAX_URL,
        description="URL of a streamable HTTP server. Not secret. Only administrators may use private network addresses and http:// URLs.",
        examples=["https://mcp.example.org/mcp"],
    ),
]
Headers = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=100)],
        Annotated[SecretStr, Field(min_length=1, max_length=model.MAX_HEADER)] | None,
    ],
    Field(
        max_length=model.MAX_HEADERS,
        description="Sent by the platform with every request to the URL. The values are never shown and never enter a sandbox. Values "
        "shorter than 8 characters are not redacted in the server's responses. Null keeps the stored value.",
        examples=[{"Authorization": "Bearer …"}],
    ),
]


class McpHeaderView(Model):
    model_config = example(name="Authorization", hint="…wxyz")

    name: str
    hint: str = Field(description="The end of the value. No endpoint returns more of it.")


class McpServerView(Model):
    model_config = example(
        id="mcp_0mh3k7a1x2abcdefghij",
        projectId="prj_0mh3k7a1x2abcdefghij",
        name="issues",
        type="http",
        command=None,
        args=[],
        env={},
        url="https://mcp.example.org/mcp",
        headers=[{"name": "Authorization", "hint": "…wxyz"}],
        createdAt="2026-01-31T10:00:00.000Z",
        updatedAt="2026-01-31T10:00:00.000Z",
    )

    id: str
    project_id: str
    name: str
    type: ServerType = Field(description="stdio: a command in the sandbox. http: a URL that the platform connects to.")
    command: str | None = Field(description="Null for an http server.")
    args: list[str]
    env: dict[str, str]
    url: str | None = Field(description="Null for a stdio server.")
    headers: list[McpHeaderView]
    created_at: Instant
    updated_at: Instant


class McpServerList(Model):
    items: list[McpServerView]


class NewMcpServer(Input):
    """Either a command with `args` and `env`, or a `url` with `headers`."""

    model_config = example(
        name="issues", url="https://mcp.example.org/mcp", headers={"Authorization": "Bearer …"}, test=False
    )

    name: Name
    type: ServerType | None = Field(default=None, description="Default: http if `url` is set, otherwise stdio.")
    command: Command | None = None
    args: Args | None = None
    env: Env | None = None
    url: Url | None = None
    headers: Headers | None = None
    test: bool = Field(
        default=False,
        description="Test the URL before saving. If the test fails, nothing is stored (`connection_test_failed`).",
    )


class McpServerChange(Input):
    """Fields left out are not changed. `args`, `env` and `headers` are replaced as a whole."""

    model_config = example(url="https://mcp.example.org/mcp", headers={"Authorization": None})

    name: Name | None = None
    command: Command | None = None
    args: Args | None = None
    env: Env | None = None
    url: Url | None = Field(default=None, description="If the host changes, header values must be sent again.")
    headers: Headers | None = None
    test: bool = Field(default=False, description="Test before saving, as in POST.")


class McpServerTest(Model):
    model_config = example(
        ok=True, detail="issues works: 2 tools.", server="example 1.0", tools=["search", "create"], durationMs=240
    )

    ok: bool
    detail: str
    server: str | None = Field(description="The server's own name.")
    tools: list[str] = Field(description="The names of its tools.")
    duration_ms: int


@router.get("/projects/{project_id}/mcp-servers", name="mcp_server.list", dependencies=[limit_large_responses()])
async def list_(caller: Caller, project_id: ProjectId, servers: McpServers) -> McpServerList:
    """List the project's MCP servers, oldest first."""
    found = await servers.list(caller, project_id)
    return McpServerList(items=[McpServerView.model_validate(server) for server in found])


@router.post(
    "/projects/{project_id}/mcp-servers",
    name="mcp_server.create",
    status_code=201,
    dependencies=[limit_rate("create"), limit_remote_requests()],
)
async def create(
    caller: Caller, project_id: ProjectId, body: NewMcpServer, request: Request, servers: McpServers
) -> McpServerView:
    """Add an MCP server. Takes effect on the agent's next turn."""
    server = await servers.create(caller, project_id, _make_draft(body, body.type), test=body.test)
    add_audit_detail(request, server=server.id, name=server.name)
    return McpServerView.model_validate(server)


@router.get(
    "/projects/{project_id}/mcp-servers/{server_id}", name="mcp_server.get", dependencies=[limit_large_responses()]
)
async def get(caller: Caller, project_id: ProjectId, server_id: ServerId, servers: McpServers) -> McpServerView:
    return McpServerView.model_validate(await servers.get(caller, project_id, server_id))


@router.patch(
    "/projects/{project_id}/mcp-servers/{server_id}",
    name="mcp_server.update",
    dependencies=[limit_rate("create"), limit_remote_requests()],
)
async def update(
    caller: Caller,
    project_id: ProjectId,
    server_id: ServerId,
    body: McpServerChange,
    request: Request,
    servers: McpServers,
) -> McpServerView:
    """Update an MCP server. Its type cannot change.

    Takes effect on the agent's next turn; changed headers and URLs take effect immediately.
    """
    add_audit_detail(request, fields=sorted(body.model_fields_set))
    changed = await servers.update(caller, project_id, server_id, _make_draft(body), test=body.test)
    return McpServerView.model_validate(changed)


@router.delete("/projects/{project_id}/mcp-servers/{server_id}", name="mcp_server.delete", status_code=204)
async def delete(caller: Caller, project_id: ProjectId, server_id: ServerId, servers: McpServers) -> None:
    await servers.delete(caller, project_id, server_id)


@router.post(
    "/projects/{project_id}/mcp-servers/{server_id}/test",
    name="mcp_server.test",
    dependencies=[limit_rate("execute"), limit_remote_requests()],
)
async def test(caller: Caller, project_id: ProjectId, server_id: ServerId, servers: McpServers) -> McpServerTest:
    """Ask an http server for its tools, from the platform and with its headers. Not possible for stdio servers (409)."""
    return McpServerTest.model_validate(await servers.test(caller, project_id, server_id))


def _make_draft(body: NewMcpServer | McpServerChange, type: ServerType | None = None) -> service.McpServerDraft:
    headers = body.headers
    return service.McpServerDraft(
        name=body.name,
        type=type,
        command=body.command,
        args=body.args,
        env=body.env,
        url=body.url,
        headers=None
        if headers is None
        else {name: None if value is None else Secret(value.get_secret_value()) for name, value in headers.items()},
    )
