"""MCP tools: sandboxes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandyard.platform.api.mcp.arguments import Done, Paged, SandboxId
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.schema import Input, Instant, Model, example
from sandyard.platform.db import models
from sandyard.platform.domain.sandboxes.model import Status

tools = Toolbox()
Envs = Annotated[
    dict[str, str],
    Field(
        default_factory=dict,
        max_length=200,
        description="Environment variables of every process in the sandbox. Stored encrypted.",
        examples=[{"STAGE": "test"}],
    ),
]
Template = Annotated[
    str | None,
    Field(
        default=None,
        min_length=1,
        max_length=256,
        description="The engine's template or snapshot to start from. Default: the platform's default template.",
        examples=["base"],
    ),
]


class CreateSandbox(Input):
    model_config = example(template="base", envs={"STAGE": "test"})

    template: Template
    project_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=40,
        description="The project whose settings apply. Default: no project.",
    )
    envs: Envs
    idle_seconds: int | None = Field(
        default=None,
        ge=5,
        le=7 * 86400,
        description="Seconds of inactivity after which the sandbox is paused. Using it resumes it.",
    )


class SandboxReference(Input):
    model_config = example(sandboxId="sbx_00mwhnkzb5gfh26ygacc")

    sandbox_id: SandboxId


class ListSandboxes(Paged):
    model_config = example(status="running")

    status: Status | None = Field(
        default=None, description="Only sandboxes with this status. Default: all except deleted ones."
    )


class SandboxState(Model):
    id: str
    status: Status
    template: str
    session_id: str | None
    project_id: str | None
    task_id: str | None
    error: str | None = Field(description="Why the status is error.")
    idle_seconds: int = Field(description="Seconds of inactivity after which the sandbox is paused.")
    created_at: Instant

    @classmethod
    def from_row(cls, row: models.Sandbox) -> SandboxState:
        return cls.model_validate(row)


class SandboxList(Model):
    items: list[SandboxState]
    next_cursor: str | None


@tools.add("create_sandbox", title="Create a sandbox", limit="create")
async def create_sandbox(call: Call, arguments: CreateSandbox) -> SandboxState:
    """Create a sandbox: an isolated Linux machine. Returns when it is running.

    Run commands in it with run_command, and delete it with destroy_sandbox when you no longer need it. To work on a project's repository,
    use create_session or create_task instead: they check it out.
    """
    row = await call.services.sandboxes.create_sandbox(call.caller, **dict(arguments))
    call.add_audit_detail(target=row.id)
    return SandboxState.from_row(row)


@tools.add("list_sandboxes", title="List sandboxes", reads=True)
async def list_sandboxes(call: Call, arguments: ListSandboxes) -> SandboxList:
    """List your sandboxes, newest first."""
    found = await call.services.sandboxes.list_sandboxes(
        call.caller, arguments.page, everybody=False, status=arguments.status, session_id=None
    )
    return SandboxList(items=[SandboxState.from_row(row) for row in found.items], next_cursor=found.next_cursor)


@tools.add("get_sandbox", title="Get a sandbox", reads=True)
async def get_sandbox(call: Call, arguments: SandboxReference) -> SandboxState:
    """Get a sandbox's status, and why it failed. Does not resume it."""
    return SandboxState.from_row(await call.services.sandboxes.get_status(call.caller, arguments.sandbox_id))


@tools.add("pause_sandbox", title="Pause a sandbox", repeats=True)
async def pause_sandbox(call: Call, arguments: SandboxReference) -> SandboxState:
    """Pause all processes of a sandbox and keep its memory and files. Using the sandbox resumes it."""
    return SandboxState.from_row(await call.services.sandboxes.pause(call.caller, arguments.sandbox_id))


@tools.add("resume_sandbox", title="Resume a sandbox", repeats=True)
async def resume_sandbox(call: Call, arguments: SandboxReference) -> SandboxState:
    """Resume the processes of a paused sandbox."""
    return SandboxState.from_row(await call.services.sandboxes.resume(call.caller, arguments.sandbox_id))


@tools.add("destroy_sandbox", title="Delete a sandbox", destroys=True, repeats=True)
async def destroy_sandbox(call: Call, arguments: SandboxReference) -> Done:
    """Delete a sandbox and everything in it permanently. Read or push what you want to keep first."""
    await call.services.sandboxes.destroy_sandbox(call.caller, arguments.sandbox_id)
    return Done()
