"""Start commands: what a template runs in each of its sandboxes before a client gets it."""

from __future__ import annotations

import asyncio
import contextlib

from sandyard.engine.contract import Handle
from sandyard.engine.sandboxes.agent import Agent, Output
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import Start
from sandyard.kit.errors import SandyardError

FIRST_LOOK_S, LONGEST_PAUSE_S = 0.02, 0.5
LOOK_S = 10.0
"""How long one check may take, or half of the total time if that is longer: a ready command that hangs must not block
the rest."""


class NotReadyError(SandyardError):
    """The start command was not ready in time."""

    code, status = "not_ready", 500


async def run_start_command(
    calls: DriverCalls, handle: Handle, wanted: Start, patience_s: float, *, output: Output | None = None
) -> None:
    """Run the start command and return when it is ready. Raises NotReadyError after `patience_s`; the caller then
    removes the sandbox. `output` gets the output of the ready command."""
    agent = Agent(calls, handle)
    await agent.spawn(wanted.command)
    if wanted.ready is None:
        return
    pause = FIRST_LOOK_S
    try:
        async with asyncio.timeout(patience_s):
            while not await _is_ready(agent, wanted.ready, max(LOOK_S, patience_s / 2), output):
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE_S, pause * 1.5)
    except TimeoutError:
        raise NotReadyError(
            f"The start command was not ready after {patience_s:g} s: the ready command never succeeded."
        ) from None


async def _is_ready(agent: Agent, command: str, look_s: float, output: Output | None) -> bool:
    with contextlib.suppress(TimeoutError):
        return await agent.run(command, timeout_s=look_s, output=output) == 0
    return False
