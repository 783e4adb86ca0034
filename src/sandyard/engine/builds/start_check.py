"""Verifies once that a start command becomes ready, before its template may be used."""

from __future__ import annotations

import asyncio
import re

from sandyard.engine.builds.model import FINALIZE, BuildFailedError, State
from sandyard.engine.builds.steps import ROOT, Executor, command_failed, exit_status
from sandyard.engine.sandboxes.internal_sandboxes import InternalSandbox
from sandyard.engine.sandboxes.model import LogLevel
from sandyard.kit.errors import SandyardError

SETTLED_S = 5.0
"""A start command without a ready command has to run for this long, or end successfully."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
_SLEEP = re.compile(r"\s*sleep\s+(\d+(?:\.\d+)?)s?\s*")
_LISTENING = re.compile(r":([0-9A-F]{4}) [0-9A-F]+:0000 0A ")
TABLES = "/proc/net/tcp /proc/net/tcp6"


async def verify_start_command(
    sandbox: InternalSandbox,
    executor: Executor,
    state: State,
    command: str | None,
    ready: str | None,
    *,
    patience_s: float,
) -> str | None:
    """Run the start command, wait until it is ready, and return the ready command that sandboxes should use. A ready
    command that only sleeps is replaced, because every sandbox would have to sleep that long: sandboxes wait for the
    ports that are open afterwards instead.

    Raises BuildFailedError if it fails first or is not ready within `patience_s`, which is also the limit for
    sandboxes.
    """
    sleeping = _SLEEP.fullmatch(ready or "")
    before = await _list_listening_ports(sandbox) if sleeping else set()
    running: asyncio.Task[None] | None = None
    if command:
        executor.log.say("Running start command", step=FINALIZE)
        running = asyncio.ensure_future(_start(sandbox, executor, state, command))
    looking = asyncio.ensure_future(_wait(sandbox, executor, state, ready))
    try:
        async with asyncio.timeout(patience_s + (float(sleeping[1]) if sleeping else 0.0)):
            await asyncio.wait({looking, running} if running else {looking}, return_when=asyncio.FIRST_COMPLETED)
            if running is not None and running.done():
                running.result()  # a command that ended successfully may have left something that is not ready yet
            await looking
        if sleeping:
            ready = _wait_for(await _list_listening_ports(sandbox) - before)
    except TimeoutError:
        raise BuildFailedError(
            f"The template was not ready after {patience_s:g} s: the ready command '{ready}' never succeeded. "
            "Sandboxes have the same limit (start_patience_s)."
        ) from None
    finally:
        for task in filter(None, (looking, running)):
            task.cancel()
        await asyncio.gather(*filter(None, (looking, running)), return_exceptions=True)
    executor.log.say("Template is ready", step=FINALIZE)
    return ready


async def _start(sandbox: InternalSandbox, executor: Executor, state: State, command: str) -> None:
    try:
        code = await executor.shell(sandbox, command, state, "start", FINALIZE, user=state.user, cwd=state.workdir)
    except SandyardError as error:
        raise BuildFailedError(f"failed to run start command: {command_failed(error.message)}") from error
    if code != 0:
        raise BuildFailedError(f"failed to run start command '{command}': {exit_status(code, sandbox)}")


async def _wait(sandbox: InternalSandbox, executor: Executor, state: State, ready: str | None) -> None:
    if not ready:
        executor.log.say("Waiting for template to be ready", step=FINALIZE)
        await asyncio.sleep(SETTLED_S)
        return
    executor.log.say(f"Waiting for template to be ready: {ready}", step=FINALIZE)
    pause, told = FIRST_PAUSE_S, False
    while True:
        try:
            code = await executor.shell(sandbox, ready, state, "ready", FINALIZE, user=state.user, cwd=state.workdir)
        except SandyardError as error:
            raise BuildFailedError(f"failed to run ready command: {command_failed(error.message)}") from error
        if code == 0:
            return
        if not told:
            told = True
            executor.log.say(f"Template is not ready: exit status {code}", step=FINALIZE, level=LogLevel.DEBUG)
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE_S, pause * 1.5)


async def _list_listening_ports(sandbox: InternalSandbox) -> set[str]:
    """Return the TCP ports with a listener in the sandbox, in hexadecimal as the kernel writes them."""
    table = bytearray()

    def output(stream: str, data: bytes) -> None:
        if len(table) < 1 << 20:
            table.extend(data)

    await sandbox.agent.run(f"cat {TABLES} 2>/dev/null", user=ROOT, cwd="/", output=output)
    return set(_LISTENING.findall(table.decode(errors="replace")))


def _wait_for(ports: set[str]) -> str | None:
    if not ports:
        return None
    return " && ".join(f"cat {TABLES} 2>/dev/null | grep -qE ':{port} [0-9A-F]+:0000 0A '" for port in sorted(ports))
