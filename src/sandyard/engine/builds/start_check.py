"""Verifies once that a start command becomes ready, before its template may be used."""

from __future__ import annotations

import asyncio
import re

from sandyard.engine.builds.model import FINALIZE, BuildFailedError, State
from sandyard.engine.builds.steps import ROOT, Executor, describe_command_error, describe_exit_status
from sandyard.engine.sandboxes.internal_sandboxes import InternalSandbox
from sandyard.engine.sandboxes.model import LogLevel
from sandyard.kit.errors import SandyardError

SETTLE_S = 5.0
"""A start command without a ready command has to run for this long, or end successfully."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
_SLEEP = re.compile(r"\s*sleep\s+(\d+(?:\.\d+)?)s?\s*")
# a row of the kernel's TCP tables: local port, remote port 0, state 0A (TCP_LISTEN)
_LISTENING = re.compile(r":([0-9A-F]{4}) [0-9A-F]+:0000 0A ")
TCP_TABLES = "/proc/net/tcp /proc/net/tcp6"


async def verify_start_command(
    sandbox: InternalSandbox,
    executor: Executor,
    state: State,
    command: str | None,
    ready: str | None,
    *,
    timeout_s: float,
) -> str | None:
    """Run the start command, wait until it is ready, and return the ready command that sandboxes should use. A ready
    command that only sleeps is replaced, because every sandbox would have to sleep that long: sandboxes wait for the
    ports that are open afterwards instead.

    Raises BuildFailedError if it fails first or is not ready within `timeout_s`, which is also the limit for
    sandboxes.
    """
    sleep_command = _SLEEP.fullmatch(ready or "")
    before = await _list_listening_ports(sandbox) if sleep_command else set()
    running: asyncio.Task[None] | None = None
    if command:
        executor.log.add_message("Running start command", step=FINALIZE)
        running = asyncio.ensure_future(_run_start_command(sandbox, executor, state, command))
    readiness = asyncio.ensure_future(_wait_until_ready(sandbox, executor, state, ready))
    try:
        async with asyncio.timeout(timeout_s + (float(sleep_command[1]) if sleep_command else 0.0)):
            await asyncio.wait({readiness, running} if running else {readiness}, return_when=asyncio.FIRST_COMPLETED)
            if running is not None and running.done():
                running.result()  # a command that ended successfully may have left something that is not ready yet
            await readiness
        if sleep_command:
            ready = _make_port_check(await _list_listening_ports(sandbox) - before)
    except TimeoutError:
        raise BuildFailedError(
            f"The template was not ready after {timeout_s:g} s: the ready command '{ready}' never succeeded. "
            "Check the command. The engine's operator can raise the limit (start_patience_s), which also applies to new sandboxes."
        ) from None
    finally:
        for task in filter(None, (readiness, running)):
            task.cancel()
        await asyncio.gather(*filter(None, (readiness, running)), return_exceptions=True)
    executor.log.add_message("Template is ready", step=FINALIZE)
    return ready


async def _run_start_command(sandbox: InternalSandbox, executor: Executor, state: State, command: str) -> None:
    try:
        code = await executor.run_shell(sandbox, command, state, "start", FINALIZE, user=state.user, cwd=state.workdir)
    except SandyardError as error:
        raise BuildFailedError(f"failed to run start command: {describe_command_error(error.message)}") from error
    if code != 0:
        raise BuildFailedError(f"failed to run start command '{command}': {describe_exit_status(code, sandbox)}")


async def _wait_until_ready(sandbox: InternalSandbox, executor: Executor, state: State, ready: str | None) -> None:
    if not ready:
        executor.log.add_message("Waiting for template to be ready", step=FINALIZE)
        await asyncio.sleep(SETTLE_S)
        return
    executor.log.add_message(f"Waiting for template to be ready: {ready}", step=FINALIZE)
    pause, reported = MIN_PAUSE_S, False
    while True:
        try:
            code = await executor.run_shell(
                sandbox, ready, state, "ready", FINALIZE, user=state.user, cwd=state.workdir
            )
        except SandyardError as error:
            raise BuildFailedError(f"failed to run ready command: {describe_command_error(error.message)}") from error
        if code == 0:
            return
        if not reported:
            reported = True
            executor.log.add_message(f"Template is not ready: exit status {code}", step=FINALIZE, level=LogLevel.DEBUG)
        await asyncio.sleep(pause)
        pause = min(MAX_PAUSE_S, pause * 1.5)


async def _list_listening_ports(sandbox: InternalSandbox) -> set[str]:
    """Return the TCP ports with a listener in the sandbox, in hexadecimal as the kernel writes them."""
    table = bytearray()

    def collect(stream: str, data: bytes) -> None:
        if len(table) < 1 << 20:
            table.extend(data)

    await sandbox.agent.run(f"cat {TCP_TABLES} 2>/dev/null", user=ROOT, cwd="/", output=collect)
    return set(_LISTENING.findall(table.decode(errors="replace")))


def _make_port_check(ports: set[str]) -> str | None:
    """Return a ready command that succeeds when all these ports have a listener. None without ports."""
    if not ports:
        return None
    return " && ".join(
        f"cat {TCP_TABLES} 2>/dev/null | grep -qE ':{port} [0-9A-F]+:0000 0A '" for port in sorted(ports)
    )
