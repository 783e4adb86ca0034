"""Sandboxes, as tools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandyard.platform.api.mcp.given import Done, Paged, SandboxId
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
        description="Variables of every process in it; stored encrypted.",
        examples=[{"STAGE": "test"}],
    ),
]
Template = Annotated[
    str | None,
    Field(
        default=None,
        min_length=1,
        max_length=256,
        description="What it starts from: a template or snapshot of the engine; left out: the usual one.",
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
        description="The project whose settings apply to it; left out: of no project.",
    )
    envs: Envs
    idle_seconds: int | None = Field(
        default=None, ge=5, le=7 * 86400, description="Unused this long, it is paused; any use wakes it again."
    )


class OneSandbox(Input):
    model_config = example(sandboxId="sbx_00mwhnkzb5gfh26ygacc")

    sandbox_id: SandboxId


class ListSandboxes(Paged):
    model_config = example(status="running")

    status: Status | None = Field(default=None, description="Only those; left out: all but destroyed ones.")


class SandboxState(Model):
    id: str
    status: Status
    template: str
    session_id: str | None
    project_id: str | None
    task_id: str | None
    error: str | None = Field(description="Why it is in status error.")
    idle_seconds: int = Field(description="Unused this long, it is paused.")
    created_at: Instant

    @classmethod
    def of(cls, row: models.Sandbox) -> SandboxState:
        return cls.model_validate(row)


class SandboxList(Model):
    items: list[SandboxState]
    next_cursor: str | None


@tools.add("create_sandbox", title="Create a sandbox", limit="create")
async def create_sandbox(call: Call, given: CreateSandbox) -> SandboxState:
    """Make a sandbox: a Linux computer of your own, isolated from everything else. Returns when it runs.

    Run commands in it with run_command; destroy it with destroy_sandbox when you need it no longer. To work on a project's repository,
    use create_session or create_task instead: they check it out."""
    row = await call.services.sandboxes.create_sandbox(call.caller, **dict(given))
    call.note(target=row.id)
    return SandboxState.of(row)


@tools.add("list_sandboxes", title="List sandboxes", reads=True)
async def list_sandboxes(call: Call, given: ListSandboxes) -> SandboxList:
    """List your sandboxes, newest first."""
    found = await call.services.sandboxes.list_sandboxes(
        call.caller, given.page, everybody=False, status=given.status, session_id=None
    )
    return SandboxList(items=[SandboxState.of(row) for row in found.items], next_cursor=found.next_cursor)


@tools.add("get_sandbox", title="Look at a sandbox", reads=True)
async def get_sandbox(call: Call, given: OneSandbox) -> SandboxState:
    """What is known of a sandbox: its status, and why it failed. Never wakes it."""
    return SandboxState.of(await call.services.sandboxes.get_status(call.caller, given.sandbox_id))


@tools.add("pause_sandbox", title="Pause a sandbox", repeats=True)
async def pause_sandbox(call: Call, given: OneSandbox) -> SandboxState:
    """Stop all processes of a sandbox where they are; memory and files are kept. Any use of it wakes it again."""
    return SandboxState.of(await call.services.sandboxes.pause(call.caller, given.sandbox_id))


@tools.add("resume_sandbox", title="Resume a sandbox", repeats=True)
async def resume_sandbox(call: Call, given: OneSandbox) -> SandboxState:
    """Let the processes of a paused sandbox go on where they were."""
    return SandboxState.of(await call.services.sandboxes.resume(call.caller, given.sandbox_id))


@tools.add("destroy_sandbox", title="Destroy a sandbox", destroys=True, repeats=True)
async def destroy_sandbox(call: Call, given: OneSandbox) -> Done:
    """End a sandbox and everything in it, for good. What should stay must be read or pushed before."""
    await call.services.sandboxes.destroy_sandbox(call.caller, given.sandbox_id)
    return Done()
