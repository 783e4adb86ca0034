"""MCP tools: commands in sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Annotated

from pydantic import Field

from sandyard.platform.api.mcp.arguments import CommandId, SandboxId, wait_field
from sandyard.platform.api.mcp.output import Output, get_page, get_tail
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.schema import Input, Model, example
from sandyard.platform.db import models
from sandyard.platform.domain.sandboxes.command_output import STDERR, STDOUT
from sandyard.platform.domain.sandboxes.commands import MAX_COMMAND
from sandyard.platform.domain.sandboxes.model import CommandStatus, NewCommand

tools = Toolbox()
PROGRESS_S = 5.0
OutputLimit = Annotated[
    int,
    Field(ge=1, le=64 * 1024, description="Maximum bytes to return of each stream."),
]


class RunCommand(Input):
    model_config = example(
        sandboxId="sbx_00mwhnkzb5gfh26ygacc", command="pytest -q", cwd="/home/user/workspace", waitSeconds=120
    )

    sandbox_id: SandboxId
    command: str = Field(
        min_length=1, max_length=MAX_COMMAND, description="Run with `bash -l -c`.", examples=["pytest -q"]
    )
    cwd: str | None = Field(
        default=None, max_length=4096, description="The working directory. Default: the user's home directory."
    )
    envs: dict[str, str] = Field(default_factory=dict, max_length=200, description="Environment variables. Not stored.")
    timeout: float | None = Field(
        default=None, gt=0, description="Seconds after which the command is killed. Default: 300.", examples=[300]
    )
    wait_seconds: Annotated[float, wait_field(120)]
    output_limit: OutputLimit = 16 * 1024


class ReadOutput(Input):
    model_config = example(commandId="cmd_00mwhnkzc0a1b2c3d4e5", stdoutOffset=0, waitSeconds=60)

    command_id: CommandId
    stdout_offset: int = Field(default=0, ge=0, le=2**53, description="The byte of stdout to start at.")
    stderr_offset: int = Field(default=0, ge=0, le=2**53, description="The byte of stderr to start at.")
    wait_seconds: Annotated[float, wait_field(0)]
    output_limit: OutputLimit = 16 * 1024


class CommandReference(Input):
    model_config = example(commandId="cmd_00mwhnkzc0a1b2c3d4e5")

    command_id: CommandId


class CommandResult(Model):
    model_config = example(commandId="cmd_00mwhnkzc0a1b2c3d4e5", status="exited", exitCode=0)

    command_id: str
    status: CommandStatus = Field(
        description="starting, running: not finished; call read_output to wait for more. exited: see exitCode. lost: its end was not "
        "observed."
    )
    exit_code: int | None
    signal: int | None
    error: str | None
    duration_ms: int | None
    stdout: Output
    stderr: Output


@tools.add("run_command", title="Run a command", limit="execute", waits=True)
async def run_command(call: Call, arguments: RunCommand) -> CommandResult:
    """Run a shell command in a sandbox and wait for it to finish. Resumes a paused sandbox.

    Returns the end of its output; read_output returns any other part by offset. A command that takes longer than waitSeconds continues: the
    result then has status running, and read_output waits for more. With waitSeconds 0, it runs in the background.
    """
    commands, settings = call.services.commands, call.services.settings
    new = NewCommand(
        command=arguments.command,
        timeout_s=arguments.timeout or settings.command_timeout_s,
        cwd=arguments.cwd,
        envs=arguments.envs,
        background=arguments.wait_seconds == 0,
    )
    call.add_audit_detail(text=" ".join(arguments.command.split())[:500])
    with call.shield():
        command = await commands.execute(call.caller, arguments.sandbox_id, new)
    call.add_audit_detail(command=command.id)
    command = await _wait_for_command(call, command, arguments.wait_seconds)
    await commands.check_access(call.caller, command)
    return _make_result(
        command,
        await get_tail(commands, command, STDOUT, arguments.output_limit),
        await get_tail(commands, command, STDERR, arguments.output_limit),
    )


@tools.add("read_output", title="Read a command's output", reads=True, waits=True)
async def read_output(call: Call, arguments: ReadOutput) -> CommandResult:
    """Read a command's output from given offsets, and whether it has finished.

    With waitSeconds, waits for the command to finish before reading. To follow a long command, call it again with the `end` of each stream
    as the next offset.
    """
    commands = call.services.commands
    command, _ = await commands.get_for(call.caller, arguments.command_id)
    command = await _wait_for_command(call, command, arguments.wait_seconds)
    if arguments.wait_seconds:
        await commands.get_for(call.caller, command.id)  # the caller may have lost access meanwhile
    return _make_result(
        command,
        await get_page(commands, command, STDOUT, arguments.stdout_offset, arguments.output_limit),
        await get_page(commands, command, STDERR, arguments.stderr_offset, arguments.output_limit),
    )


@tools.add("kill_command", title="Kill a command", destroys=True, repeats=True)
async def kill_command(call: Call, arguments: CommandReference) -> CommandResult:
    """Kill a running command. Does nothing if it has finished."""
    commands = call.services.commands
    command = await commands.kill(call.caller, arguments.command_id)
    return _make_result(
        command, await get_tail(commands, command, STDOUT, 4096), await get_tail(commands, command, STDERR, 4096)
    )


async def _wait_for_command(call: Call, command: models.Command, seconds: float) -> models.Command:
    """Wait for the command to finish or for the time to pass, and report progress meanwhile."""
    commands = call.services.commands
    started, end = time.monotonic(), time.monotonic() + seconds
    while not CommandStatus(command.status).is_final and (left := end - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left, PROGRESS_S)):
                command = await commands.wait(command.id)
                break
        await commands.check_access(call.caller, command)
        command = await commands.get(command.id)
        written = command.stdout_bytes + command.stderr_bytes
        await call.progress(time.monotonic() - started, seconds, f"Running; {written:,} bytes of output so far.")
    return command


def _make_result(command: models.Command, stdout: Output, stderr: Output) -> CommandResult:
    return CommandResult(
        command_id=command.id,
        status=CommandStatus(command.status),
        exit_code=command.exit_code,
        signal=command.signal,
        error=command.error,
        duration_ms=None if command.duration_s is None else round(command.duration_s * 1000),
        stdout=stdout,
        stderr=stderr,
    )
