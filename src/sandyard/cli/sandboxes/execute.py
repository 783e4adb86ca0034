"""`sandyard sandbox exec`: run a command in a sandbox like a local one."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import stat
import sys
from typing import TYPE_CHECKING, Any

import click

from sandyard.cli.completion import complete_sandboxes
from sandyard.cli.connection import connect, get_sandbox_id, quote_segment
from sandyard.cli.errors import FAILED, NoResponseError
from sandyard.cli.options import drop_missing, env_option
from sandyard.cli.output import echo, print_json
from sandyard.cli.sse import follow
from sandyard.kit.errors import SandyardError

if TYPE_CHECKING:
    from sandyard.cli.client import Client

TIMED_OUT, KILLED, INTERRUPTED = 124, 137, 130
GIVE_UP_SECONDS = 120.0
"""How long the server may be unreachable while its command continues."""


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("sandbox_id", metavar="SANDBOX", shell_complete=complete_sandboxes)
@click.argument("command", nargs=-1, required=True)
@click.option("--cwd", help="Working directory.")
@env_option
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Timeout in seconds.  [default: 300]")
@click.option("-d", "--detach", is_flag=True, help="Print the command's id and leave it running.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Wait for the command and print the API's JSON.")
def execute(
    *,
    sandbox_id: str,
    command: tuple[str, ...],
    cwd: str | None,
    envs: dict[str, str],
    timeout: float | None,
    detach: bool,
    output: str | None,
) -> None:
    """Run COMMAND in a sandbox. Shows its output as it arrives and exits with its exit code.

    A single argument is a line for the sandbox's shell; several are a command and its arguments. Put options before
    SANDBOX. Standard input is not forwarded: copy a file there instead. Ctrl-C kills the command. Exit codes: the
    command's own, 124 on timeout, 137 if it was killed, 130 after Ctrl-C.
    """
    if command[0] == "--":
        command = command[1:]
    if not command:
        raise click.UsageError("No command given.")
    if stat.S_ISFIFO(os.fstat(0).st_mode) or stat.S_ISREG(os.fstat(0).st_mode):
        echo(
            "Standard input is not forwarded to the command. Copy it as a file instead (sandyard sandbox cp).", err=True
        )
    line = command[0] if len(command) == 1 else shlex.join(command)
    body = drop_missing(command=line, cwd=cwd, envs=envs, timeout=timeout)
    with connect(timeout=(timeout or 300) + 60) as client:
        path = f"/sandboxes/{quote_segment(get_sandbox_id(client, sandbox_id))}"
        if output == "json" and not detach:
            sys.exit(_run_and_wait(client, path, body))
        started = client.post(f"{path}/execute", body | {"background": True})
        if detach:
            print_json(started) if output == "json" else echo(started["id"])
            return
        sys.exit(_follow_command(client, started["id"]))


def _run_and_wait(client: Client, path: str, body: dict[str, object]) -> int:
    """Run a command and wait for the response. After Ctrl-C, kill the newest running command with the same text."""
    try:
        done = client.post(f"{path}/execute", body)
    except KeyboardInterrupt:
        for command in client.get(f"{path}/commands", limit=10)["items"]:
            if command["command"] == body["command"] and command["status"] in {"starting", "running"}:
                _kill_command(client, command["id"])
                break
        return INTERRUPTED
    print_json(done)
    return get_exit_code(done)


def _follow_command(client: Client, command_id: str) -> int:
    """Show a command's output until it ends. Return the exit code for this process."""
    interrupted = False
    offsets = {"stdout": 0, "stderr": 0}
    while True:
        try:
            ended = copy_output(client, command_id, offsets)
            break
        except KeyboardInterrupt:
            if interrupted:  # second Ctrl-C: do not wait any longer
                return INTERRUPTED
            interrupted = True
            _kill_command(client, command_id)
        except BrokenPipeError:  # the reader is gone
            _kill_command(client, command_id)
            raise
        except NoResponseError as error:
            raise NoResponseError(f"{error.message} The command {command_id} is still running.") from None
    if interrupted and ended["status"] == "killed":
        return INTERRUPTED
    return get_exit_code(ended)


def copy_output(client: Client, command_id: str, offsets: dict[str, int]) -> Any:
    """Write a command's output, starting at `offsets`, which are updated, until it ends. Return the command.

    Survives dropped connections and restarts of the server.
    """
    path = f"/commands/{quote_segment(command_id)}/stream"
    for event in follow(client, path, offsets, give_up=GIVE_UP_SECONDS):
        message: Any = json.loads(event.data)
        if event.kind == "end":
            return message
        if event.kind == "output":
            data = base64.b64decode(message["data"])
            _write_output(message["stream"], data)
            offsets[message["stream"]] = message["offset"] + len(data)
    raise AssertionError("follow never ends by itself")


def get_exit_code(command: Any) -> int:
    """Return the exit code. If the end of the command is unknown, report that and return a failure."""
    status, code, command_id = command["status"], command.get("exitCode"), command.get("id") or command["commandId"]
    if status == "timed_out":
        echo(f"sandyard: The command timed out and was killed ({command_id}).", err=True)
        return TIMED_OUT
    if status == "killed":
        return KILLED
    if status == "exited" and code is not None:
        return int(code) if 0 <= code <= 255 else FAILED
    if status == "exited" and command.get("signal"):
        return 128 + int(command["signal"])
    outcome = {"lost": "was lost with its sandbox", "not_started": "did not start"}.get(status, f"is {status}")
    reason = f": {command['error'].rstrip('.')}" if command.get("error") else ""
    echo(f"sandyard: The command {outcome}{reason} ({command_id}).", err=True)
    return FAILED


def _write_output(stream: str, data: bytes) -> None:
    """Write bytes unchanged: a command's output need not be text."""
    target = sys.stderr if stream == "stderr" else sys.stdout
    target.buffer.write(data)
    target.buffer.flush()


def _kill_command(client: Client, command_id: str) -> None:
    with contextlib.suppress(SandyardError):
        client.post(f"/commands/{quote_segment(command_id)}/kill")
