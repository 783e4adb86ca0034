"""Create, list, pause, resume, fork and delete sandboxes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_remote_requests
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.db import models
from sandyard.platform.domain.sandboxes import service
from sandyard.platform.domain.sandboxes.model import Status

router = api_router("sandboxes")
Sandboxes = Annotated[service.Sandboxes, inject("sandboxes")]
SandboxId = Annotated[str, id_in_path("sandbox", "sbx_00mwhnkzb5gfh26ygacc")]
Envs = Annotated[
    dict[str, str],
    Field(
        default_factory=dict,
        max_length=200,
        description="Environment variables of every process in the sandbox. Stored encrypted.",
    ),
]
Template = Annotated[
    str | None, Field(None, min_length=1, max_length=256, description="A template or snapshot of the engine.")
]


class Usage(Model):
    """A sample of the sandbox's resource usage."""

    cpu_percent: float | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    disk_bytes: int | None = None
    disk_total_bytes: int | None = None
    at: Instant


class SandboxView(Model):
    model_config = example(
        id="sbx_00mwhnkzb5gfh26ygacc", status="running", template="base", sessionId="ses_00mwhnkz2f0a9s8d7f6g", commandCount=3
    )  # fmt: skip

    id: str
    status: Status
    template: str
    isolation: str | None = Field(
        description="The isolation level that the engine reported, such as `namespace` or `gvisor`. Null if it is unknown."
    )
    engine_id: str | None = Field(description="The sandbox's id at the E2B endpoint, for E2B's SDKs and CLI.")
    session_id: str | None
    project_id: str | None
    task_id: str | None
    agent_id: str | None
    owner_id: str
    error: str | None = Field(description="Why the status is `error`.")
    error_code: str | None
    idle_seconds: int = Field(description="Seconds of inactivity after which the sandbox is paused.")
    command_count: int
    pause_count: int
    usage: Usage | None = Field(description="The latest sample.")
    created_at: Instant
    started_at: Instant | None
    used_at: Instant | None
    paused_at: Instant | None
    seen_at: Instant | None = Field(description="When the engine last reported the sandbox.")
    destroyed_at: Instant | None

    @classmethod
    def from_row(cls, row: models.Sandbox) -> SandboxView:
        return cls.model_validate(row)


class ListedSandbox(SandboxView):
    title: str | None = Field(None, description="The title of the session, or of its task if it has one.")
    project_name: str | None = None

    @classmethod
    def with_names(cls, row: models.Sandbox, names: service.SandboxNames) -> ListedSandbox:
        return cls.model_validate(row).model_copy(update=asdict(names))


class NewSandbox(Input):
    model_config = example(template="base", envs={"STAGE": "test"})

    template: Template
    project_id: str | None = Field(
        None,
        max_length=40,
        description="The project whose settings apply and whose repository may be cloned. Null means no project.",
    )
    agent_id: str | None = Field(None, max_length=100)
    task_id: str | None = Field(None, max_length=40)
    envs: Envs
    idle_seconds: int | None = Field(None, ge=5, le=7 * 86400)


@router.post("/sandboxes", name="sandbox.create", status_code=201, dependencies=[limit_rate("create")])
async def create(request: Request, caller: Caller, sandboxes: Sandboxes, body: NewSandbox) -> SandboxView:
    """Create a sandbox and respond when it is running."""
    row = await sandboxes.create_sandbox(caller, **dict(body))
    add_audit_detail(request, target=row.id)
    return SandboxView.from_row(row)


@router.get("/sandboxes", name="sandbox.list")
async def list_(
    caller: Caller,
    sandboxes: Sandboxes,
    page: Paging,
    everybody: Annotated[
        bool, Query(alias="all", description="Include sandboxes of other users that you may see.")
    ] = False,
    status: Status | None = None,
    session_id: Annotated[str | None, Query(alias="sessionId", max_length=40)] = None,
) -> Page[ListedSandbox]:
    """List your sandboxes, newest first. Deleted ones are listed only with `status=destroyed`."""
    found = await sandboxes.list_sandboxes(caller, page, everybody=everybody, status=status, session_id=session_id)
    names = await sandboxes.get_names(found.items)
    return Page.from_listing(
        found, lambda row: ListedSandbox.with_names(row, names.get(row.id) or service.SandboxNames())
    )


@router.get("/sandboxes/{sandbox_id}", name="sandbox.get")
async def get(caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId) -> ListedSandbox:
    """Get a sandbox. Does not resume it."""
    row = await sandboxes.get_status(caller, sandbox_id)
    names = await sandboxes.get_names([row])
    return ListedSandbox.with_names(row, names.get(row.id) or service.SandboxNames())


@router.delete("/sandboxes/{sandbox_id}", name="sandbox.destroy", status_code=204)
async def destroy(caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId) -> Response:
    """Delete the sandbox and everything in it. Idempotent."""
    await sandboxes.destroy_sandbox(caller, sandbox_id)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox_id}/pause", name="sandbox.pause")
async def pause(caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId) -> SandboxView:
    """Pause all processes of the sandbox and keep its memory. Idempotent."""
    return SandboxView.from_row(await sandboxes.pause(caller, sandbox_id))


@router.post("/sandboxes/{sandbox_id}/resume", name="sandbox.resume")
async def resume(caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId) -> SandboxView:
    """Resume the sandbox. Using it also resumes it. Idempotent."""
    return SandboxView.from_row(await sandboxes.resume(caller, sandbox_id))


@router.post("/sandboxes/{sandbox_id}/fork", name="sandbox.fork", status_code=201, dependencies=[limit_rate("create")])
async def fork(request: Request, caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId) -> SandboxView:
    """Copy the sandbox's files into a new sandbox."""
    row = await sandboxes.fork(caller, sandbox_id)
    add_audit_detail(request, made=row.id)
    return SandboxView.from_row(row)


class Metrics(Model):
    status: Status
    command_count: int
    created_at: Instant
    usage: Usage | None = Field(
        description="The current usage while the sandbox is running, otherwise the latest sample."
    )


@router.get("/sandboxes/{sandbox_id}/metrics", name="sandbox.metrics")
async def metrics(caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId) -> Metrics:
    """Get resource usage. Does not resume the sandbox."""
    row = await sandboxes.get_status(caller, sandbox_id)
    usage = await sandboxes.usage(caller, sandbox_id)
    return Metrics(
        status=Status(row.status),
        command_count=row.command_count,
        created_at=row.created_at,
        usage=None if usage is None else Usage.model_validate(usage),
    )


class DeniedConnection(Model):
    model_config = example(host="example.org", protocol="dns", port=None, at="2026-01-31T10:00:00.000Z")

    host: str
    protocol: str = Field(description="tcp, udp, or dns if the name was not resolved.")
    port: int | None
    at: Instant = Field(description="When the connection was first denied.")


class DeniedConnections(Model):
    available: bool = Field(description="False if the engine does not report denied connections, like E2B Cloud.")
    items: list[DeniedConnection]


@router.get("/sandboxes/{sandbox_id}/denied", name="sandbox.denied", dependencies=[limit_remote_requests()])
async def denied(caller: Caller, sandboxes: Sandboxes, sandbox_id: SandboxId) -> DeniedConnections:
    """List connections denied by the network settings, each once. Does not resume the sandbox."""
    found = await sandboxes.list_denied_connections(caller, sandbox_id)
    items = [DeniedConnection.model_validate(denied_attempt) for denied_attempt in found or ()]
    return DeniedConnections(available=found is not None, items=items)
