"""Run commands in sandboxes, read or stream their output, and kill them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller, StreamCaller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.paging import Page, Paging
from sandyard.platform.api.revocation import run_until_revoked, wait_until_revoked
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.sandboxes import SandboxId
from sandyard.platform.api.schema import Input, Instant, Model, example, id_in_path
from sandyard.platform.db import models
from sandyard.platform.domain.sandboxes import commands as domain
from sandyard.platform.domain.sandboxes.command_output import STDERR, STDOUT
from sandyard.platform.domain.sandboxes.model import CommandStatus, NewCommand
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

router = api_router("commands")
Commands = Annotated[domain.Commands, inject("commands")]
Settings = Annotated[PlatformSettings, inject("settings")]
CommandId = Annotated[str, id_in_path("command", "cmd_00mwhnkzc0a1b2c3d4e5")]
Stream = Literal["stdout", "stderr"]
PAGE_LIMIT = 1 << 20


class Execute(Input):
    model_config = example(command="pytest -q", cwd="/home/user/project", timeout=300)

    command: str = Field(min_length=1, max_length=domain.MAX_COMMAND, description="Run with `bash -l -c`.")
    cwd: str | None = Field(None, max_length=4096)
    envs: dict[str, str] = Field(default_factory=dict, max_length=200, description="Not stored.")
    timeout: float | None = Field(None, gt=0, description="In seconds. Default: 300.")
    background: bool = Field(False, description="Respond immediately with 202. Read the output while the command runs.")


class CommandView(Model):
    model_config = example(id="cmd_00mwhnkzc0a1b2c3d4e5", status="exited", exitCode=0, stdoutBytes=12)

    id: str
    sandbox_id: str
    command: str
    cwd: str | None
    background: bool
    timeout_s: float
    status: CommandStatus
    exit_code: int | None
    signal: int | None
    error: str | None
    stdout_bytes: int
    stderr_bytes: int
    duration_ms: int | None
    started_at: Instant
    finished_at: Instant | None

    @classmethod
    def from_row(cls, row: models.Command) -> CommandView:
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "duration_ms"}
        return cls(**fields, duration_ms=_get_duration_ms(row))


class Truncated(Model):
    stdout: bool = Field(description="The rest is available from GET /commands/{id}/output.")
    stderr: bool


class Result(Model):
    model_config = example(commandId="cmd_00mwhnkzc0a1b2c3d4e5", status="exited", stdout="ok\n", stderr="", exitCode=0)

    command_id: str
    status: CommandStatus
    stdout: str = Field(
        description="The beginning of the output. Bytes that are not UTF-8 are replaced. The exact output is available from `output`."
    )
    stderr: str
    exit_code: int | None = Field(
        description="Null if the command did not exit by itself, or if its exit was not observed."
    )
    signal: int | None
    error: str | None
    duration_ms: int | None
    truncated: Truncated


@router.post(
    "/sandboxes/{sandbox_id}/execute",
    name="sandbox.execute",
    dependencies=[limit_rate("execute")],
    response_model=Result,
    responses={202: {"model": CommandView, "description": "The command runs in the background."}},
)
async def execute(
    request: Request, caller: Caller, commands: Commands, settings: Settings, sandbox_id: SandboxId, body: Execute
) -> Response | Result:
    """Run a command and return its result. Resumes a paused sandbox. The command continues if the client disconnects."""
    new = NewCommand(
        command=body.command,
        timeout_s=body.timeout or settings.command_timeout_s,
        cwd=body.cwd,
        envs=body.envs,
        background=body.background,
    )
    add_audit_detail(request, text=" ".join(body.command.split())[:500])
    command = await commands.execute(caller, sandbox_id, new)
    add_audit_detail(request, command=command.id)
    if body.background:
        view = CommandView.from_row(command).model_dump(mode="json", by_alias=True)
        return JSONResponse(view, 202, {"Location": f"/api/v1/commands/{command.id}"})
    started = command
    command = await run_until_revoked(
        request, caller, lambda: commands.check_access(caller, started), commands.wait_for(caller, started)
    )
    limit = settings.output_limit
    return Result(
        command_id=command.id,
        status=CommandStatus(command.status),
        stdout=(await commands.files.read(command.id, STDOUT, 0, min(limit, command.stdout_bytes))).decode(errors="replace"),
        stderr=(await commands.files.read(command.id, STDERR, 0, min(limit, command.stderr_bytes))).decode(errors="replace"),
        exit_code=command.exit_code,
        signal=command.signal,
        error=command.error,
        duration_ms=_get_duration_ms(command),
        truncated=Truncated(stdout=command.stdout_bytes > limit, stderr=command.stderr_bytes > limit),
    )  # fmt: skip


@router.get("/sandboxes/{sandbox_id}/commands", name="command.list")
async def list_(caller: Caller, commands: Commands, sandbox_id: SandboxId, page: Paging) -> Page[CommandView]:
    """List commands, newest first."""
    return Page.from_listing(await commands.page(caller, sandbox_id, page), CommandView.from_row)


@router.get("/commands/{command_id}", name="command.get", dependencies=[limit_large_responses()])
async def get(caller: Caller, commands: Commands, command_id: CommandId) -> CommandView:
    """Get a command."""
    return CommandView.from_row((await commands.get_for(caller, command_id))[0])


class OutputPage(Model):
    model_config = example(stream="stdout", offset=0, end=3, total=3, complete=True, text="ok\n")

    stream: Stream
    offset: int
    end: int = Field(description="The offset of the next page.")
    total: int = Field(description="Number of bytes written so far.")
    complete: bool = Field(description="True if the command has finished and this page reaches the end.")
    text: str | None = Field(description="Null if this page is not UTF-8; then see `base64`.")
    base64: str | None = None


@router.get("/commands/{command_id}/output", name="command.output", dependencies=[limit_large_responses()])
async def output(
    caller: Caller,
    commands: Commands,
    command_id: CommandId,
    stream: Stream = "stdout",
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 65536,
) -> OutputPage:
    """Get a page of the command's output. Positions are in bytes."""
    command, _ = await commands.get_for(caller, command_id)
    total: int = getattr(command, f"{stream}_bytes")
    data = await commands.files.read(command.id, stream, offset, max(0, min(limit, total - offset)))
    text = _decode_page(data, at_end=offset + len(data) >= total)
    if text is not None:
        data = data[: len(text.encode())]
    end = offset + len(data)
    return OutputPage(
        stream=stream,
        offset=offset,
        end=end,
        total=total,
        complete=CommandStatus(command.status).is_final and end >= total,
        text=text,
        base64=None if text is not None else base64.b64encode(data).decode(),
    )


@router.get(
    "/commands/{command_id}/stream",
    name="command.stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream_(
    request: Request,
    caller: StreamCaller,
    commands: Commands,
    command_id: CommandId,
    stdout: Annotated[int, Query(ge=0, le=2**53, description="Start at this byte of the stream.")] = 0,
    stderr: Annotated[int, Query(ge=0, le=2**53)] = 0,
) -> StreamingResponse:
    """Stream the output as it is written (SSE): `output` events with stream, offset and base64 data, then one `end` event."""
    command, _ = await commands.get_for(caller, command_id)
    if not CommandStatus(command.status).is_final:
        await commands.check_access(caller, command)
    return StreamingResponse(
        _stream_events(request, caller, commands, command, {STDOUT: stdout, STDERR: stderr}),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _stream_events(
    request: Request, caller: Principal, commands: domain.Commands, command: models.Command, offsets: dict[str, int]
) -> AsyncIterator[bytes]:
    revocation = asyncio.ensure_future(
        wait_until_revoked(request, caller, lambda: commands.check_access(caller, command))
    )
    try:
        async for chunk in commands.follow(command, offsets):
            if revocation.done():
                return
            if chunk is None:
                yield b": still here\n\n"
                continue
            stream, offset, data = chunk
            body = {"stream": stream, "offset": offset, "data": base64.b64encode(data).decode()}
            yield b"event: output\ndata: %s\n\n" % json.dumps(body).encode()
    finally:
        revocation.cancel()
    final = CommandView.from_row(await commands.get(command.id))
    if not final.status.is_final:
        return  # the platform is stopping, or the user lost access; the command continues
    view = final.model_dump_json(by_alias=True)
    yield b"event: end\ndata: %s\n\n" % view.encode()


@router.post("/commands/{command_id}/kill", name="command.kill")
async def kill(caller: Caller, commands: Commands, command_id: CommandId) -> CommandView:
    """Kill the command. Idempotent."""
    return CommandView.from_row(await commands.kill(caller, command_id))


def _get_duration_ms(row: models.Command) -> int | None:
    return None if row.duration_s is None else round(row.duration_s * 1000)


def _decode_page(data: bytes, *, at_end: bool) -> str | None:
    """Decode a page; None if it is not UTF-8.

    A character cut in two by the end of the page is left to the next page.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if not at_end and error.reason == "unexpected end of data" and error.start > 0:
            return data[: error.start].decode()
        return None
