"""Read a command to its end, and wait for conditions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from sandyard.kit.ids import make_random_id
from sandyard.platform.domain.sandboxes.e2b import (
    CommandEnded,
    CommandOutput,
    CommandSpec,
    CommandStarted,
    SandboxEngine,
    Stream,
)


@dataclass
class Seen:
    """The output that a reader saw. Every piece must start where the last one ended."""

    started: CommandStarted | None = None
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    ended: CommandEnded | None = None

    def add(self, event: CommandStarted | CommandOutput | CommandEnded) -> None:
        assert self.ended is None, "no output after the end"
        if isinstance(event, CommandStarted):
            assert self.started is None
            self.started = event
        elif isinstance(event, CommandEnded):
            self.ended = event
        else:
            whole = self.stdout if event.stream is Stream.STDOUT else self.stderr
            assert event.offset == len(whole), "no gaps and no duplicates"
            whole += event.data

    async def read(self, events: AsyncIterator[CommandStarted | CommandOutput | CommandEnded]) -> Seen:
        async for event in events:
            self.add(event)
        return self


def spec(command: str, **options: object) -> CommandSpec:
    return CommandSpec(id=make_random_id("cmd_"), command=command, **options)  # type: ignore[arg-type]


async def run(engine: SandboxEngine, sandbox_id: str, command: str | CommandSpec, **options: object) -> Seen:
    given = command if isinstance(command, CommandSpec) else spec(command, **options)
    return await Seen().read(engine.commands.start(sandbox_id, given))


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not happen within {seconds} s")
