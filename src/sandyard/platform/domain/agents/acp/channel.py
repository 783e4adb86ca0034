"""Read an agent's output and write its input, through files in its sandbox.

The process runs under the relay for commands, which keeps its output. Its input is a file that `tail` feeds to it. Each
line has a fixed offset in this file, so that writing a line twice does no harm. Both files survive restarts of the
platform and the engine, and a pause of the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import cast

from sqlalchemy import select

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentInput, AgentRun
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.agents.acp import wire
from sandyard.platform.domain.agents.acp.limits import split_into_batches
from sandyard.platform.domain.agents.errors import AgentProtocolError, RunBrokenError
from sandyard.platform.domain.agents.json_columns import change_options, get_run_options
from sandyard.platform.domain.sandboxes.command_output import STDERR, STDOUT, OutputFiles
from sandyard.platform.domain.sandboxes.e2b import (
    CommandEnded,
    CommandOutput,
    CommandStarted,
    EngineError,
    SandboxNotFoundError,
    Stream,
)
from sandyard.platform.domain.sandboxes.e2b.guest.relay.journal import list_journal_folders
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle

log = get_logger(__name__)

BATCH_S = 0.1
RETRY_S = 1.0
MAX_HELD_BYTES = 8 << 20
"""Bytes of output that may wait for the database before reading stops."""
WRITE_BYTES = 90_000
"""Bytes of input written at once: they must fit into one argument."""
REMEMBERED_WRITES = 1000
"""Maximum number of writes to remember. The prompt is among the first ones."""
POLL_INTERVAL_S = 0.04
"""How often `tail` polls the input file: it does not rely on inotify on an overlay file system."""
TAIL_BYTES = 16 << 10
START_LINE = ":starts"
"""A line printed by the platform before the agent starts. Everything before it was printed by a login shell's profile."""
MAX_STRAY_BYTES, SHOWN_STRAY_BYTES = 64 << 10, 500
"""Bytes of output allowed before the first message, and how much of it an error message shows."""
_WRITE = """set -o pipefail; umask 077
have=$(stat -c %s -- "$1" 2>/dev/null || echo 0)
[ "$have" -ge "$2" ] || exit 3
[ "$have" -gt "$2" ] || stat -c '%n %s' -- "$4"/out "$4"/err "$5"/out "$5"/err 2>/dev/null
printf %s "$3" | dd of="$1" bs=1M iflag=fullblock oflag=seek_bytes seek="$2" conv=notrunc status=none"""
_EXIT_GAP = 3
_SIZE = re.compile(r"[0-9]{1,15}")

HandleLines = Callable[[Sequence[tuple[int, bytes]], int], Awaitable[None]]
"""Handles lines, each with its end offset, and stores the offset up to which the output was read."""


def get_input_path(run_id: str) -> str:
    return f"/tmp/.sandyard-{run_id}.in"  # noqa: S108 - in the sandbox


def build_command(run_id: str, argv: Sequence[str], first: str) -> str:
    """Return the shell command that runs an agent with the input file as its input. `first` is the initial input."""
    path = shlex.quote(get_input_path(run_id))
    return (
        f"[ -s {path} ] || (umask 077; printf %s {shlex.quote(first)} >{path})\n"
        f"printf '%s\\n' {START_LINE}\n"
        f"exec {shlex.join(argv)} < <(exec tail -c +1 -s {POLL_INTERVAL_S} -f --pid=$$ {path} 2>/dev/null)"
    )


class InputWriter:
    """Delivers the queued input of an agent in order. Call `nudge` when there is more.

    `get_offsets` returns how many bytes of standard output and standard error have been read so far. There may be more of both
    in the agent's journal, which is checked before each write.
    """

    def __init__(
        self, database: Database, lifecycle: Lifecycle, run: AgentRun, get_offsets: Callable[[], tuple[int, int]]
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._run_id = run.id
        self._sandbox_id = run.sandbox_id
        self._has_more = asyncio.Event()
        self._get_offsets = get_offsets
        self._writes: list[tuple[int, tuple[int, int]]] = []
        self.delivered: int | None = get_run_options(run).get("delivered")  # None: unknown

    def nudge(self) -> None:
        self._has_more.set()

    def get_output_before(self, position: int) -> tuple[int, int] | None:
        """Return how much output the agent had written before it could read the input at this position.

        Returns None if the agent cannot read it yet.
        """
        for end, offsets in self._writes:
            if end > position:
                return offsets
        return (0, 0) if self.delivered is None or self.delivered > position else None

    async def run(self) -> None:
        """Deliver input until cancelled or until the sandbox is gone. Resumes the sandbox if there is input to deliver."""
        self._has_more.set()
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            try:
                await self._deliver()
            except SandboxNotFoundError:
                return
            except SandyardError as error:
                row = await retry_while_database_unavailable(
                    lambda: self._lifecycle.repository.get(self._sandbox_id), "agent input", run=self._run_id
                )
                if row.status in ("error", "destroyed"):
                    return
                log.warning("agent_input_not_delivered", run=self._run_id, reason=error.message)
                self._has_more.set()
                await asyncio.sleep(RETRY_S)

    async def _deliver(self) -> None:
        async with self._database.reading() as session:
            query = select(AgentInput).where(AgentInput.run_id == self._run_id).order_by(AgentInput.position)
            if self.delivered is not None:
                query = query.where(AgentInput.position >= self.delivered)
            rows = list(await session.scalars(query))
        if not rows:
            return
        sandbox = await self._lifecycle.repository.get(self._sandbox_id)
        await self._lifecycle.call(sandbox, lambda engine_id: self._write(engine_id, rows))
        async with self._database.transaction() as tx:  # so that the sandbox need not be resumed to check
            run = await tx.session.get(AgentRun, self._run_id, with_for_update=True)
            if run is not None:
                change_options(run, {"delivered": self.delivered})

    async def _write(self, engine_id: str, rows: Sequence[AgentInput]) -> None:
        engine, path = self._lifecycle.engine, get_input_path(self._run_id)
        if self.delivered is None:
            result = await engine.programs.run(engine_id, ["stat", "-c", "%s", "--", path], idempotent=True)
            size = result.stdout.strip()
            self.delivered = int(size) if result.exit_code == 0 and size.isdigit() and len(size) < 16 else 0
        start, text = rows[0].position, "".join(row.line for row in rows)
        end = start + len(text)
        while self.delivered < end:
            at = max(self.delivered, start)
            piece = text[at - start : at - start + WRITE_BYTES]
            argv = ["/bin/bash", "-c", _WRITE, "sandyard", path, str(at), piece, *list_journal_folders(self._run_id)]
            read_before = self._get_offsets()
            if remember := len(self._writes) < REMEMBERED_WRITES:
                self._writes.append((at + len(piece), read_before))
            result = await engine.programs.run(engine_id, argv, idempotent=True)
            if remember:
                sizes = result.stdout.decode(errors="replace")
                self._writes[-1] = (at + len(piece), _parse_sizes(sizes, read_before))
            if result.exit_code == _EXIT_GAP:
                self.delivered = None
                raise EngineError("The agent's earlier input is no longer in the sandbox.")
            if result.exit_code != 0:
                raise EngineError(f"The sandbox could not store the agent's input: {result.stderr[-300:]}")
            self.delivered = at + len(piece)


def _parse_sizes(text: str, read_before: tuple[int, int]) -> tuple[int, int]:
    """Return how much standard output and standard error the agent had written before the input: at least what was
    `read_before`, and at least the sizes of its journal's files, which `text` lists."""
    sizes = {"out": read_before[0], "err": read_before[1]}
    for line in text.splitlines():
        path, _, size = line.rpartition(" ")
        name = path.rpartition("/")[2]
        if name in sizes and _SIZE.fullmatch(size):
            sizes[name] = max(sizes[name], int(size))
    return sizes["out"], sizes["err"]


class OutputReader:
    """Reads the output of an agent, stores its bytes, and passes its lines on in batches."""

    def __init__(
        self,
        database: Database,
        files: OutputFiles,
        run_id: str,
        consumed: int,
        handle_lines: HandleLines,
        *,
        kept: int,
    ) -> None:
        """`consumed`: the offset up to which an earlier reader has handled the output. `kept`: how many bytes of each stream to
        store."""
        self._database = database
        self._files = files
        self._run_id = run_id
        self._handle_lines = handle_lines
        self._kept_bytes = kept
        self._lines = wire.LineSplitter(consumed)
        self._ready: list[tuple[int, bytes]] = []
        self._raw: dict[str, list[tuple[int, bytes]]] = {STDOUT: [], STDERR: []}
        self._held = 0
        self._stderr_size = 0  # bytes of standard error read so far
        self._flushing = asyncio.Lock()
        self._stop_after_batch = False  # set to stop after the current batch; the rest is taken later
        self._has_output, self._urgent = asyncio.Event(), asyncio.Event()
        self._last_flush_at = 0.0
        self._stray, self._stray_bytes = b"", 0  # output before the first message that is not a message
        self._has_message = consumed > 0
        self.stray_since: float | None = None
        """Loop time of the first output that is not a message, until the first message arrives."""
        self.last_output_at = 0.0
        """Loop time of the last output."""
        self.tail = b""

    async def begin(self) -> None:
        self._stderr_size = await self._files.get_size(self._run_id, STDERR)
        # bytes stored beyond the consumed offset will arrive again unchanged, so nothing needs to be cut off
        await self._files.begin(self._run_id, {STDOUT: sys.maxsize, STDERR: sys.maxsize})
        self.tail = await self._files.read(self._run_id, STDERR, max(0, self._stderr_size - TAIL_BYTES), TAIL_BYTES)

    @property
    def offsets(self) -> tuple[int, int]:
        return self._lines.seen, self._stderr_size

    def get_tail_since(self, offset: int) -> bytes:
        """Return the end of standard error, as far as it was written after this offset."""
        return self.tail[max(0, len(self.tail) - max(0, self._stderr_size - offset)) :]

    async def read(
        self,
        events: AsyncIterator[CommandStarted | CommandOutput | CommandEnded],
        on_started: Callable[[CommandStarted], None],
    ) -> CommandEnded | None:
        """Read events until the process ends. Calls `on_started` when it has started.

        Returns None if the stream ended without reporting the end of the process.
        """
        loop = asyncio.get_running_loop()
        flusher, reader = loop.create_task(self._flush_loop()), loop.create_task(self._read_events(events, on_started))
        try:
            await asyncio.wait((flusher, reader), return_when=asyncio.FIRST_COMPLETED)
            if flusher.done():
                flusher.result()  # raises the flusher's error even if the agent prints nothing more
            ended = reader.result()
        finally:
            reader.cancel()
            self._stop_after_batch = True
            try:
                async with self._flushing:  # wait for the current batch
                    flusher.cancel()
            finally:
                self._stop_after_batch = False
                await end_tasks(flusher, reader)
        await self.flush()
        return ended

    async def _read_events(
        self,
        events: AsyncIterator[CommandStarted | CommandOutput | CommandEnded],
        on_started: Callable[[CommandStarted], None],
    ) -> CommandEnded | None:
        async with contextlib.aclosing(
            cast("AsyncGenerator[CommandStarted | CommandOutput | CommandEnded, None]", events)
        ) as stream:
            async for event in stream:
                if isinstance(event, CommandOutput):
                    self.last_output_at = asyncio.get_running_loop().time()
                    self._add_output(event)
                    if self._held > MAX_HELD_BYTES:
                        await self.flush()
                elif isinstance(event, CommandStarted):
                    on_started(event)
                else:
                    return event
        return None

    def _add_output(self, event: CommandOutput) -> None:
        if event.stream is Stream.STDERR:
            fresh = event.data[max(0, self._stderr_size - event.offset) :]
            self._buffer_raw(STDERR, self._stderr_size, fresh)
            self._stderr_size += len(fresh)
            self.tail = (self.tail + fresh)[-TAIL_BYTES:]
        else:
            seen = self._lines.seen
            fresh = event.data[max(0, seen - event.offset) :]
            if not fresh:
                return
            begin = 0
            if self._lines.skipped:  # the rest of a line that is too long is not stored either
                begin = fresh.find(b"\n") if b"\n" in fresh else len(fresh)
            self._buffer_raw(STDOUT, seen + begin, fresh[begin:])
            found = self._lines.feed(fresh)
            if self._lines.skipped > wire.MAX_SKIPPED_BYTES:
                raise RunBrokenError(
                    f"The agent wrote a line of more than {wire.MAX_SKIPPED_BYTES >> 20} MiB and was killed.",
                    RunBrokenError.TOO_MUCH_OUTPUT,
                )
            lines = [(end, line) for end, line in found if line.lstrip()[:1] == b"{"]  # other lines are not messages
            if not self._has_message:
                self._check_for_message([line for _, line in found])
            self._ready += lines
            if any(b'"id"' in line for _, line in lines):
                self._urgent.set()
        self._has_output.set()

    def _check_for_message(self, lines: Sequence[bytes]) -> None:
        """Look for the first message. Raises RunBrokenError after too much output without one."""
        for line in lines:
            if line.strip() == START_LINE.encode():
                self._stray, self._stray_bytes, self.stray_since = b"", 0, None
            elif wire.parse_line(line) is not None:
                self._has_message, self.stray_since = True, None
                return
            elif line.strip():
                self._stray = (self._stray + line + b"\n")[:SHOWN_STRAY_BYTES]
                self._stray_bytes += len(line)
                self.stray_since = self.stray_since or asyncio.get_running_loop().time()
        if self._stray_bytes > MAX_STRAY_BYTES:
            raise RunBrokenError(self.stray_output_error, AgentProtocolError.code)

    @property
    def stray_output_error(self) -> str:
        output = make_storable(self._stray.decode("utf-8", "replace")).strip()
        return f"The agent does not speak ACP: its output is not an Agent Client Protocol message. It starts with:\n{output}"

    def _buffer_raw(self, stream: str, offset: int, data: bytes) -> None:
        room = self._kept_bytes - offset
        if room > 0 and data:
            self._raw[stream].append((offset, data[:room]))
        self._held += len(data)

    async def _flush_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_output.wait()
            wait = self._last_flush_at + BATCH_S - loop.time()
            if wait > 0 and not self._urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._urgent.wait()
            await self.flush()

    async def flush(self) -> None:
        """Store the pending output and pass on its lines. Retries while the database is unavailable."""
        async with self._flushing:
            try:
                await self._flush()
            except BaseException:
                self._has_output.set()  # the next reader retries what could not be taken
                raise

    async def _flush(self) -> None:
        self._has_output.clear()
        self._urgent.clear()
        self._last_flush_at = asyncio.get_running_loop().time()
        # read these first: output that arrives during the write is not stored yet and must not count as taken
        lines, consumed = list(self._ready), self._lines.consumed
        for stream, pieces in self._raw.items():
            count = len(pieces)
            for offset, data in _join_adjacent(pieces[:count]):
                await self._files.write(self._run_id, stream, offset, data)
            del pieces[:count]
        now = asyncio.get_running_loop().time
        for batch, end in split_into_batches(lines, consumed):
            if self._stop_after_batch:
                self._has_output.set()
                return
            started_at = now()
            await retry_while_database_unavailable(
                partial(self._handle_lines, batch, end), "agent output", run=self._run_id
            )
            del self._ready[: len(batch)]
            if self._ready:
                await asyncio.sleep(min(1.0, now() - started_at))  # a busy agent gets at most half of the time
        self._held = 0


def _join_adjacent(pieces: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Join pieces whose bytes follow each other, so that each is written at once."""
    found: list[tuple[int, list[bytes]]] = []
    end = -1
    for offset, data in pieces:
        if offset != end or not found:
            found.append((offset, []))
        found[-1][1].append(data)
        end = offset + len(data)
    return [(offset, b"".join(parts)) for offset, parts in found]
