"""Start commands: what a template runs in each of its sandboxes before a client gets it."""

from __future__ import annotations

import asyncio
import contextlib

from sandyard.engine.contract import Handle
from sandyard.engine.sandboxes.agent import Agent, OnOutput
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import StartCommand
from sandyard.kit.errors import SandyardError

FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 0.5
CHECK_TIMEOUT_S = 10.0
"""How long one check may take, or half of the total time if that is longer: a ready command that hangs must not block
the rest."""


class NotReadyError(SandyardError):
    """The start command was not ready in time."""

    code, status = "not_ready", 500


async def run_start_command(
    calls: DriverCalls, handle: Handle, start: StartCommand, timeout_s: float, *, output: OnOutput | None = None
) -> None:
    """Run the start command and return when it is ready. Raises NotReadyError after `timeout_s`; the caller then
    removes the sandbox. `output` gets the output of the ready command."""
    agent = Agent(calls, handle)
    await agent.spawn(start.command)
    if start.ready is None:
        return
    pause = FIRST_PAUSE_S
    try:
        async with asyncio.timeout(timeout_s):
            while not await _is_ready(agent, start.ready, max(CHECK_TIMEOUT_S, timeout_s / 2), output):
                await asyncio.sleep(pause)
                pause = min(MAX_PAUSE_S, pause * 1.5)
    except TimeoutError:
        raise NotReadyError(
            f"The start command was not ready after {timeout_s:g} s: the ready command never succeeded."
        ) from None


async def _is_ready(agent: Agent, command: str, timeout_s: float, output: OnOutput | None) -> bool:
    with contextlib.suppress(TimeoutError):
        return await agent.run(command, timeout_s=timeout_s, output=output) == 0
    return False
