"""MCP tools: sessions."""

from __future__ import annotations

from pydantic import Field

from sandyard.platform.api.mcp.arguments import Done, Paged, ProjectId, SessionId
from sandyard.platform.api.mcp.sandboxes import Envs, Template
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.refs import Branch
from sandyard.platform.api.schema import Input, Instant, Model, example
from sandyard.platform.db import models
from sandyard.platform.domain.sandboxes.model import Status
from sandyard.platform.domain.tasks.fields import Title

tools = Toolbox()


class CreateSession(Input):
    model_config = example(title="Fix the login", projectId="prj_0mh3k7a1x2abcdefghij")

    title: Title | None = None
    project_id: ProjectId | None = Field(
        default=None,
        description="The project whose repository is checked out in the session's sandbox, on a new branch.",
    )
    template: Template
    agent: str | None = Field(
        default=None,
        max_length=100,
        description="The agent that receives prompts. Default: the project's agent.",
        examples=["demo"],
    )
    model: str | None = Field(default=None, min_length=1, max_length=200, description="Default: the project's model.")
    mode: str | None = Field(
        default=None, min_length=1, max_length=100, description="Default: the agent's default mode."
    )
    base_branch: Branch | None = Field(
        default=None, description="The branch to start from. Default: the project's base branch."
    )
    envs: Envs


class SessionReference(Input):
    model_config = example(sessionId="ses_00mwhnkz2f0a9s8d7f6g")

    session_id: SessionId


class ListSessions(Paged):
    model_config = example(projectId="prj_0mh3k7a1x2abcdefghij")

    project_id: ProjectId | None = Field(default=None, description="Only sessions of this project.")
    archived: bool = Field(default=False, description="List archived sessions instead.")


class SessionState(Model):
    id: str
    title: str
    project_id: str | None
    task_id: str | None
    agent: str | None
    model: str | None
    mode: str | None
    sandbox_id: str | None
    sandbox_status: Status | None
    sandbox_error: str | None
    created_at: Instant
    archived_at: Instant | None

    @classmethod
    def from_row(cls, row: models.Session, sandbox: models.Sandbox | None) -> SessionState:
        fields = {name: getattr(row, name) for name in cls.model_fields if not name.startswith("sandbox_")}
        status = None if sandbox is None else Status(sandbox.status)
        error = None if sandbox is None else sandbox.error
        return cls(**fields, sandbox_id=row.sandbox_id, sandbox_status=status, sandbox_error=error)


class SessionList(Model):
    items: list[SessionState]
    next_cursor: str | None


@tools.add("create_session", title="Create a session", limit="create")
async def create_session(call: Call, arguments: CreateSession) -> SessionState:
    """Start a session: one agent at work, with its own sandbox.

    Returns immediately while the sandbox is being created; its first use waits for it. Send prompts to the agent with prompt_session, or use
    its sandbox yourself.
    """
    row, sandbox = await call.services.sessions.create(call.caller, **dict(arguments))
    call.add_audit_detail(target=row.id)
    return SessionState.from_row(row, sandbox)


@tools.add("list_sessions", title="List sessions", reads=True)
async def list_sessions(call: Call, arguments: ListSessions) -> SessionList:
    """List the sessions you may see, newest first, each with its sandbox."""
    sessions = call.services.sessions
    found = await sessions.list_sessions(
        call.caller, arguments.page, project_id=arguments.project_id, archived=arguments.archived
    )
    sandboxes = await sessions.get_sandboxes(found)
    return SessionList(
        items=[SessionState.from_row(row, sandboxes.get(row.sandbox_id or "")) for row in found.items],
        next_cursor=found.next_cursor,
    )


@tools.add("get_session", title="Get a session", reads=True)
async def get_session(call: Call, arguments: SessionReference) -> SessionState:
    """Get a session and its sandbox. Does not resume it."""
    return SessionState.from_row(*await call.services.sessions.get_with_sandbox(call.caller, arguments.session_id))


@tools.add("delete_session", title="Delete a session", destroys=True)
async def delete_session(call: Call, arguments: SessionReference) -> Done:
    """Delete a session with its sandbox, transcript and checkpoints. Pushed branches are kept."""
    await call.services.sessions.delete(call.caller, arguments.session_id)
    return Done()
