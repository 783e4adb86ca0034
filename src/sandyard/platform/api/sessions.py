"""Sessions and their messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.refs import Branch
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.sandboxes import Envs, SandboxView, Template
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.db import models
from sandyard.platform.db.models.message_parts import MessagePart
from sandyard.platform.domain.sandboxes import service as sandbox_service
from sandyard.platform.domain.sessions import service
from sandyard.platform.domain.tasks.fields import Title

router = api_router("sessions")
Sessions = Annotated[service.Sessions, inject("sessions")]
Sandboxes = Annotated[sandbox_service.Sandboxes, inject("sandboxes")]
SessionId = Annotated[str, id_in_path("session", "ses_00mwhnkz2f0a9s8d7f6g")]


class SessionView(Model):
    model_config = example(
        id="ses_00mwhnkz2f0a9s8d7f6g", title="Fix the login", sandboxId="sbx_00mwhnkzb5gfh26ygacc", template="base"
    )

    id: str
    title: str
    owner_id: str
    project_id: str | None
    task_id: str | None
    agent: str | None
    model: str | None
    mode: str | None
    template: str
    sandbox_id: str | None
    sandbox: SandboxView | None = None
    forked_from_id: str | None = Field(
        description="The session that this one was forked from. It may have been deleted."
    )
    checkpoint_at: Instant | None = Field(
        description="When the files were last saved. A new sandbox can be created from this checkpoint."
    )
    created_at: Instant
    updated_at: Instant
    archived_at: Instant | None

    @classmethod
    def from_row(cls, row: models.Session, sandbox: models.Sandbox | None = None) -> SessionView:
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "sandbox"}
        return cls(**fields, sandbox=None if sandbox is None else SandboxView.from_row(sandbox))


class NewSession(Input):
    model_config = example(title="Fix the login", template="base")

    title: Title | None = None
    project_id: str | None = Field(None, max_length=40)
    template: Template
    agent: str | None = Field(None, max_length=100)
    model: str | None = Field(
        None, max_length=200, description="The agent's model. Null means the project's, or else the agent's default."
    )
    mode: str | None = Field(None, max_length=100, description="The agent's mode. Null means the agent's default.")
    base_branch: Branch | None = Field(
        None, description="The branch to start from. Null means the project's base branch."
    )
    envs: Envs


class SessionChange(Input):
    model_config = example(title="Fix the login for good")

    title: Title


class SessionFork(Input):
    model_config = example(title="Another way")

    title: Title | None = Field(None, description="Null means `Fork of` and the title of the original.")


@router.post("/sessions", name="session.create", status_code=201, dependencies=[limit_rate("create")])
async def create(request: Request, caller: Caller, sessions: Sessions, body: NewSession) -> SessionView:
    """Start a session. Responds immediately, while the sandbox is being created."""
    row, sandbox = await sessions.create(caller, **dict(body))
    add_audit_detail(request, target=row.id)
    return SessionView.from_row(row, sandbox)


@router.get("/sessions", name="session.list")
async def list_(
    caller: Caller,
    sessions: Sessions,
    page: Paging,
    project_id: Annotated[str | None, Query(alias="projectId", max_length=40)] = None,
    archived: bool = False,
) -> Page[SessionView]:
    """List sessions you may see, newest first."""
    found = await sessions.list_sessions(caller, page, project_id=project_id, archived=archived)
    sandboxes = await sessions.get_sandboxes(found)
    return Page.from_listing(found, lambda row: SessionView.from_row(row, sandboxes.get(row.sandbox_id or "")))


@router.get("/sessions/{session_id}", name="session.get")
async def get(caller: Caller, sessions: Sessions, session_id: SessionId) -> SessionView:
    return SessionView.from_row(*await sessions.get_with_sandbox(caller, session_id))


@router.patch("/sessions/{session_id}", name="session.rename", dependencies=[limit_rate("execute")])
async def rename(caller: Caller, sessions: Sessions, session_id: SessionId, body: SessionChange) -> SessionView:
    return SessionView.from_row(await sessions.rename(caller, session_id, body.title))


@router.delete("/sessions/{session_id}", name="session.delete", status_code=204)
async def delete(caller: Caller, sessions: Sessions, session_id: SessionId) -> Response:
    """Delete the session with its sandbox, messages and checkpoints."""
    await sessions.delete(caller, session_id)
    return Response(status_code=204)


@router.post("/sessions/{session_id}/archive", name="session.archive")
async def archive(caller: Caller, sessions: Sessions, session_id: SessionId) -> SessionView:
    """Archive the session and pause its sandbox."""
    return SessionView.from_row(await sessions.archive(caller, session_id))


@router.post("/sessions/{session_id}/fork", name="session.fork", status_code=201, dependencies=[limit_rate("create")])
async def fork(
    request: Request, caller: Caller, sessions: Sessions, session_id: SessionId, body: SessionFork
) -> SessionView:
    """Create a session with a copy of this one's sandbox, on a new branch. In a gVisor sandbox, running processes continue in the copy.
    Messages are not copied."""
    row, sandbox = await sessions.fork(caller, session_id, title=body.title)
    add_audit_detail(request, target=row.id)
    return SessionView.from_row(row, sandbox)


@router.get("/sessions/{session_id}/sandbox", name="session.sandbox")
async def get_sandbox(caller: Caller, sessions: Sessions, session_id: SessionId) -> SandboxView:
    """Get the session's sandbox. Does not resume it."""
    return SandboxView.from_row(await sessions.get_sandbox(caller, session_id))


@router.post("/sessions/{session_id}/pause", name="session.pause")
async def pause(caller: Caller, sessions: Sessions, sandboxes: Sandboxes, session_id: SessionId) -> SandboxView:
    row = await sessions.get_sandbox(caller, session_id)
    return SandboxView.from_row(await sandboxes.pause(caller, row.id))


@router.post("/sessions/{session_id}/resume", name="session.resume")
async def resume(caller: Caller, sessions: Sessions, sandboxes: Sandboxes, session_id: SessionId) -> SandboxView:
    row = await sessions.get_sandbox(caller, session_id)
    return SandboxView.from_row(await sandboxes.resume(caller, row.id))


@router.post(
    "/sessions/{session_id}/provision", name="session.provision", status_code=201, dependencies=[limit_rate("create")]
)
async def provision(caller: Caller, sessions: Sessions, session_id: SessionId) -> SessionView:
    """Create a new sandbox in place of one that failed or was deleted, from the last checkpoint if there is one."""
    return SessionView.from_row(*await sessions.provision(caller, session_id))


@router.post("/sessions/{session_id}/checkpoint", name="session.checkpoint")
async def checkpoint(caller: Caller, sessions: Sessions, session_id: SessionId) -> SessionView:
    """Save the current state of the sandbox's files. This happens automatically before every pause."""
    return SessionView.from_row(await sessions.save_snapshot(caller, session_id))


class TextPart(Input):
    type: Literal["text"]
    text: str = Field(min_length=1, max_length=200_000)


class NewMessage(Input):
    model_config = example(parts=[{"type": "text", "text": "Please fix the login."}])

    parts: list[TextPart] = Field(min_length=1, max_length=50)


class MessageView(Model):
    model_config = example(id="msg_00mwhnkzc0a1b2c3d4e5", role="user", parts=[{"type": "text", "text": "Hello"}])

    id: str
    session_id: str
    turn_id: str | None
    author_id: str | None
    role: Literal["user", "agent", "system"]
    parts: list[dict[str, Any]]
    created_at: Instant

    @classmethod
    def from_row(cls, row: models.Message) -> MessageView:
        return cls.model_validate(row)


@router.get("/sessions/{session_id}/messages", name="message.list")
async def list_messages(caller: Caller, sessions: Sessions, session_id: SessionId, page: Paging) -> Page[MessageView]:
    """List messages, newest first."""
    return Page.from_listing(await sessions.list_messages(caller, session_id, page), MessageView.from_row)


@router.post(
    "/sessions/{session_id}/messages", name="message.create", status_code=201, dependencies=[limit_rate("execute")]
)
async def add_message(caller: Caller, sessions: Sessions, session_id: SessionId, body: NewMessage) -> MessageView:
    parts: list[MessagePart] = [{"type": part.type, "text": part.text} for part in body.parts]
    return MessageView.from_row(await sessions.add_message(caller, session_id, parts))
