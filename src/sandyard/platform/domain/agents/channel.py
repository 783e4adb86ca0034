"""The two halves of an agent's journal in its sandbox: what it says is read from its output, what is said to it is written to a file.

The process runs under the relay for commands, which keeps its output. Its input is a file that `tail` reads to it: line after
line at its own place, so that to write one twice does no harm. Both outlive the platform, the engine and a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import cast

from sqlalchemy import select

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.kit.text import storable
from sandyard.platform.db.models import AgentInput, AgentRun
from sandyard.platform.domain.agents.consuming import TOO_LOUD, RunBrokenError
from sandyard.platform.domain.agents.errors import AgentProtocolError
from sandyard.platform.domain.agents.measure import batches
from sandyard.platform.domain.agents.ports import Desk
from sandyard.platform.domain.agents.rows import DELIVERED
from sandyard.platform.domain.agents.wire import MOST, Lines, parse
from sandyard.platform.domain.sandboxes.e2b import (
    Ended,
    EngineError,
    Output,
    SandboxNotFoundError,
    Started,
    Stream,
)
from sandyard.platform.domain.sandboxes.output import STDERR, STDOUT

log = get_logger(__name__)

BATCH_S = 0.1
RETRY_S = 1.0
HELD = 8 << 20
"""Bytes of output that may wait for the database before no more are read."""
PIECE = 90_000
"""Of input written at once: it has to fit into an argument."""
WRITES = 1000
"""So many writes are remembered: among the first of them is the prompt."""
INTERVAL_S = 0.04
"""How often `tail` looks into the journal: it does not trust the kernel to tell it on an overlay file system."""
TAIL = 16 << 10
STARTS = ":starts"
"""A line of ours before the first one of the agent's: what a login shell's profile prints is before it."""
STRAY_BYTES, STRAY_SHOWN = 64 << 10, 500
"""Of output that is no message, before the first message: more is no protocol. And how much of it people are shown."""
_WRITE = """set -o pipefail; umask 077
have=$(stat -c %s -- "$1" 2>/dev/null || echo 0)
[ "$have" -ge "$2" ] || exit 3
printf %s "$3" | dd of="$1" bs=1M iflag=fullblock oflag=seek_bytes seek="$2" conv=notrunc status=none"""
_HOLE = 3

Taker = Callable[[Sequence[tuple[int, bytes]], int], Awaitable[None]]
"""Gets lines with the places where they end, and how far all was read."""


def input_path(run_id: str) -> str:
    return f"/tmp/.sandyard-{run_id}.in"  # noqa: S108 - in the sandbox


def command(run_id: str, argv: Sequence[str], first: str) -> str:
    """The line of shell that runs an agent with its journal as its input; `first` is what it is told at once."""
    path = shlex.quote(input_path(run_id))
    return (
        f"[ -s {path} ] || (umask 077; printf %s {shlex.quote(first)} >{path})\n"
        f"printf '%s\\n' {STARTS}\n"
        f"exec {shlex.join(argv)} < <(exec tail -c +1 -s {INTERVAL_S} -f --pid=$$ {path} 2>/dev/null)"
    )


class Inputs:
    """Delivers what was decided to be said, in its order. `nudge` when there is more. `heard`: how many bytes of its output and
    error output were read so far."""

    def __init__(self, desk: Desk, run: AgentRun, heard: Callable[[], tuple[int, int]]) -> None:
        self._desk = desk
        self._run_id = run.id
        self._sandbox_id = run.sandbox_id
        self._more = asyncio.Event()
        self._heard = heard
        self._writes: list[tuple[int, tuple[int, int]]] = []
        self.delivered: int | None = run.options.get(DELIVERED)  # None: nobody knows

    def nudge(self) -> None:
        self._more.set()

    def heard_before(self, position: int) -> tuple[int, int] | None:
        """What was heard before the agent could read what is at this place. None: it cannot read it yet."""
        for end, heard in self._writes:
            if end > position:
                return heard
        return (0, 0) if self.delivered is None or self.delivered > position else None

    async def run(self) -> None:
        """Until it is cancelled, or the sandbox is gone. Wakes the sandbox when there is something to say."""
        self._more.set()
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                await self._deliver()
            except SandboxNotFoundError:
                return
            except SandyardError as error:
                row = await self._desk.database.retry_while_away(
                    lambda: self._desk.lifecycle.rows.get(self._sandbox_id), "agent input", run=self._run_id
                )
                if row.status in ("error", "destroyed"):
                    return
                log.warning("agent_input_not_delivered", run=self._run_id, reason=error.message)
                self._more.set()
                await asyncio.sleep(RETRY_S)

    async def _deliver(self) -> None:
        async with self._desk.database.reading() as session:
            query = select(AgentInput).where(AgentInput.run_id == self._run_id).order_by(AgentInput.position)
            if self.delivered is not None:
                query = query.where(AgentInput.position >= self.delivered)
            rows = list(await session.scalars(query))
        if not rows:
            return
        sandbox = await self._desk.lifecycle.rows.get(self._sandbox_id)
        await self._desk.lifecycle.call(sandbox, lambda engine_id: self._write(engine_id, rows))
        async with self._desk.database.transaction() as tx:  # so that nobody has to wake the sandbox to see it
            run = await tx.session.get(AgentRun, self._run_id, with_for_update=True)
            if run is not None:
                run.options = {**run.options, DELIVERED: self.delivered}

    async def _write(self, engine_id: str, rows: Sequence[AgentInput]) -> None:
        engine, path = self._desk.lifecycle.engine, input_path(self._run_id)
        if self.delivered is None:
            ran = await engine.run(engine_id, ["stat", "-c", "%s", "--", path], idempotent=True)
            told = ran.stdout.strip()
            self.delivered = int(told) if ran.exit_code == 0 and told.isdigit() else 0
        start, text = rows[0].position, "".join(row.line for row in rows)
        end = start + len(text)
        while self.delivered < end:
            at = max(self.delivered, start)
            piece = text[at - start : at - start + PIECE]
            words = ["/bin/bash", "-c", _WRITE, "sandyard", path, str(at), piece]
            if len(self._writes) < WRITES:
                self._writes.append((at + len(piece), self._heard()))
            ran = await engine.run(engine_id, words, idempotent=True)
            if ran.exit_code == _HOLE:
                self.delivered = None
                raise EngineError("The agent's earlier input is no longer in the sandbox.")
            if ran.exit_code != 0:
                raise EngineError(f"The sandbox could not store the agent's input: {ran.stderr[-300:]}")
            self.delivered = at + len(piece)


class Outputs:
    """Reads what an agent says, keeps its bytes, and hands its lines on in batches."""

    def __init__(self, desk: Desk, run_id: str, consumed: int, take: Taker) -> None:
        self._desk = desk
        self._run_id = run_id
        self._take = take
        self._lines = Lines(consumed)
        self._ready: list[tuple[int, bytes]] = []
        self._raw: dict[str, list[tuple[int, bytes]]] = {STDOUT: [], STDERR: []}
        self._held = 0
        self._errors = 0  # bytes of standard error known here
        self._flushing = asyncio.Lock()
        self._hurry = False  # what waits to be taken is left for later
        self._news, self._urgent = asyncio.Event(), asyncio.Event()
        self._last = 0.0
        self._stray, self._stray_bytes = b"", 0  # what it said that is no message, before the first one
        self._speaks = consumed > 0
        self.stray_at: float | None = None
        """Since when there is output that is no message, and no message; by the loop's clock."""
        self.heard = 0.0
        """When something came, by the loop's clock."""
        self.tail = b""

    async def begin(self) -> None:
        self._errors = await self._desk.files.size(self._run_id, STDERR)
        # what is kept beyond what was taken is the same bytes as will come again: nothing has to be cut off
        await self._desk.files.begin(self._run_id, {STDOUT: sys.maxsize, STDERR: sys.maxsize})
        self.tail = await self._desk.files.read(self._run_id, STDERR, max(0, self._errors - TAIL), TAIL)

    @property
    def offsets(self) -> tuple[int, int]:
        return self._lines.seen, self._errors

    def tail_since(self, offset: int) -> bytes:
        """The end of its error output, as far as it was written behind this place."""
        return self.tail[max(0, len(self.tail) - max(0, self._errors - offset)) :]

    async def read(
        self, events: AsyncIterator[Started | Output | Ended], started: Callable[[Started], None]
    ) -> Ended | None:
        """Its end, when that was seen."""
        loop = asyncio.get_running_loop()
        flusher, reader = loop.create_task(self._flusher()), loop.create_task(self._hear(events, started))
        try:
            await asyncio.wait((flusher, reader), return_when=asyncio.FIRST_COMPLETED)
            if flusher.done():
                flusher.result()  # raises what made it end, also when the agent says nothing more
            ended = reader.result()
        finally:
            reader.cancel()
            self._hurry = True
            try:
                async with self._flushing:  # not in the middle of a batch
                    flusher.cancel()
            finally:
                self._hurry = False
                await end_tasks(flusher, reader)
        await self.flush()
        return ended

    async def _hear(
        self, events: AsyncIterator[Started | Output | Ended], started: Callable[[Started], None]
    ) -> Ended | None:
        async with contextlib.aclosing(cast("AsyncGenerator[Started | Output | Ended, None]", events)) as stream:
            async for event in stream:
                if isinstance(event, Output):
                    self.heard = asyncio.get_running_loop().time()
                    self._add(event)
                    if self._held > HELD:
                        await self.flush()
                elif isinstance(event, Started):
                    started(event)
                else:
                    return event
        return None

    def _add(self, event: Output) -> None:
        if event.stream is Stream.STDERR:
            fresh = event.data[max(0, self._errors - event.offset) :]
            self._keep(STDERR, self._errors, fresh)
            self._errors += len(fresh)
            self.tail = (self.tail + fresh)[-TAIL:]
        else:
            seen = self._lines.seen
            fresh = event.data[max(0, seen - event.offset) :]
            if not fresh:
                return
            begin = 0
            if self._lines.skipped:  # of a line that is too long, no more is kept either
                begin = fresh.find(b"\n") if b"\n" in fresh else len(fresh)
            self._keep(STDOUT, seen + begin, fresh[begin:])
            found = self._lines.feed(fresh)
            if self._lines.skipped > MOST:
                raise RunBrokenError(f"The agent wrote a line of more than {MOST >> 20} MiB and was killed.", TOO_LOUD)
            lines = [one for one in found if one[1].lstrip()[:1] == b"{"]  # others are no messages
            if not self._speaks:
                self._look_for_message([line for _, line in found])
            self._ready += lines
            if any(b'"id"' in line for _, line in lines):
                self._urgent.set()
        self._news.set()

    def _look_for_message(self, lines: Sequence[bytes]) -> None:
        """RunBrokenError when it says much, and none of it is a message."""
        for line in lines:
            if line.strip() == STARTS.encode():
                self._stray, self._stray_bytes, self.stray_at = b"", 0, None
            elif parse(line) is not None:
                self._speaks, self.stray_at = True, None
                return
            elif line.strip():
                self._stray = (self._stray + line + b"\n")[:STRAY_SHOWN]
                self._stray_bytes += len(line)
                self.stray_at = self.stray_at or asyncio.get_running_loop().time()
        if self._stray_bytes > STRAY_BYTES:
            raise RunBrokenError(self.stray_fault, AgentProtocolError.code)

    @property
    def stray_fault(self) -> str:
        said = storable(self._stray.decode("utf-8", "replace")).strip()
        return (
            f"The agent does not speak ACP: its output is not an Agent Client Protocol message. It starts with:\n{said}"
        )

    def _keep(self, stream: str, offset: int, data: bytes) -> None:
        room = self._desk.settings.output_kept - offset
        if room > 0 and data:
            self._raw[stream].append((offset, data[:room]))
        self._held += len(data)

    async def _flusher(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._news.wait()
            wait = self._last + BATCH_S - loop.time()
            if wait > 0 and not self._urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._urgent.wait()
            await self.flush()

    async def flush(self) -> None:
        """Keep what came, and take what it says. Tries on while the database is away."""
        async with self._flushing:
            try:
                await self._flush()
            except BaseException:
                self._news.set()  # what could not be taken is tried again by whoever reads next
                raise

    async def _flush(self) -> None:
        self._news.clear()
        self._urgent.clear()
        self._last = asyncio.get_running_loop().time()
        # first of all: what comes while this is written is not kept yet, and must not count as taken
        lines, consumed = list(self._ready), self._lines.consumed
        for stream, pieces in self._raw.items():
            count = len(pieces)
            for offset, data in _join(pieces[:count]):
                await self._desk.files.write(self._run_id, stream, offset, data)
            del pieces[:count]
        now = asyncio.get_running_loop().time
        for batch, end in batches(lines, consumed):
            if self._hurry:
                self._news.set()
                return
            begun = now()
            await self._desk.database.retry_while_away(
                partial(self._take, batch, end), "agent output", run=self._run_id
            )
            del self._ready[: len(batch)]
            if self._ready:
                await asyncio.sleep(
                    min(1.0, now() - begun)
                )  # who says much takes half of the time, and leaves half to others
        self._held = 0


def _join(pieces: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Those that follow each other as one."""
    found: list[tuple[int, list[bytes]]] = []
    end = -1
    for offset, data in pieces:
        if offset != end or not found:
            found.append((offset, []))
        found[-1][1].append(data)
        end = offset + len(data)
    return [(offset, b"".join(parts)) for offset, parts in found]
