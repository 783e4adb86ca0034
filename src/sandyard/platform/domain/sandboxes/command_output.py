"""Stored output of commands: two files per command, written and read by offset, and their valid sizes in the database.

Bytes are written to the files first, then the sizes to the database, with an event. Nothing is announced before it is
stored: the offsets in an event can be read from the files as soon as it arrives. After a crash a file may be longer
than the database says; the rest is truncated and fetched again from the journal in the sandbox, which has every byte.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import update

from sandyard.kit.errors import NoSpaceError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command, Sandbox
from sandyard.platform.domain.sandboxes.model import CommandStatus, get_sandbox_event_fields, utc_now

log = get_logger(__name__)

STDOUT, STDERR = "stdout", "stderr"
STREAMS = (STDOUT, STDERR)
_MAX_PIECES_PER_WRITE = 256  # the kernel accepts 1024
_OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
FLUSH_S = 0.05
"""Delay before received output is stored."""
FLUSH_BYTES = 2 << 20
"""Received bytes after which a flush starts immediately, without waiting for FLUSH_S. Each flush costs a transaction."""
MAX_PENDING_BYTES = 8 << 20
"""Bytes of a stream to keep in memory during a flush. `add` then waits, and further output stays in the sandbox."""
MERGED_BYTES = 64 * 1024
"""Smaller pieces are joined, so that few writes are needed."""
INLINE_BYTES = 8 * 1024
"""Maximum bytes of a stream in an event. For more, the event has only the range, and the reader fetches it."""


class OutputFiles:
    """Reads and writes the files. All methods except `get_path` run in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_path(self, command_id: str, stream: str) -> Path:
        assert stream in STREAMS
        # two characters of the random part, so that no directory has to hold them all
        return self._folder / command_id[-2:] / command_id / stream

    async def begin(self, command_id: str, sizes: Mapping[str, int]) -> None:
        """Create the files, or truncate them to the valid sizes."""
        await asyncio.to_thread(self._begin, command_id, sizes)

    def _begin(self, command_id: str, sizes: Mapping[str, int]) -> None:
        for stream in STREAMS:
            path = self.get_path(command_id, stream)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, _OPEN_FLAGS, 0o600)
            try:
                if os.fstat(fd).st_size > sizes.get(stream, 0):
                    os.ftruncate(fd, sizes.get(stream, 0))
            finally:
                os.close(fd)

    async def write(self, command_id: str, stream: str, offset: int, *pieces: bytes | bytearray) -> None:
        """Write the pieces one after another at that offset.

        Writing the same bytes twice is harmless, which matters if it is unknown whether they were recorded.
        """
        await asyncio.to_thread(self._write, command_id, stream, offset, pieces)

    def _write(self, command_id: str, stream: str, offset: int, pieces: Sequence[bytes | bytearray]) -> None:
        fd = os.open(self.get_path(command_id, stream), _OPEN_FLAGS, 0o600)
        try:
            views = [memoryview(piece) for piece in pieces]
            while views:
                written = os.pwritev(fd, views[:_MAX_PIECES_PER_WRITE], offset)
                offset += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if written:
                    views[0] = views[0][written:]
        finally:
            os.close(fd)

    async def read(self, command_id: str, stream: str, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes from the offset; fewer at the end, and none if there is no file."""
        return await asyncio.to_thread(self._read, command_id, stream, offset, limit)

    def _read(self, command_id: str, stream: str, offset: int, limit: int) -> bytes:
        if limit <= 0:
            return b""
        with contextlib.suppress(FileNotFoundError), self.get_path(command_id, stream).open("rb") as file:
            file.seek(offset)
            return file.read(limit)
        return b""

    async def get_size(self, command_id: str, stream: str) -> int:
        """Return the size of the stored output."""
        return await asyncio.to_thread(self._get_size, command_id, stream)

    def _get_size(self, command_id: str, stream: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self.get_path(command_id, stream).stat().st_size
        return 0

    async def list_ids(self, prefix: str) -> list[str]:
        """Return the ids with this prefix that have files."""
        return await asyncio.to_thread(lambda: [path.name for path in self._folder.glob(f"??/{prefix}*")])

    async def list_folders(self) -> list[Path]:
        """Return the folders of all commands and runs; each is named after its id."""
        return await asyncio.to_thread(lambda: list(self._folder.glob("??/*")))

    async def remove(self, command_id: str) -> None:
        """Delete the files of a command. Idempotent."""
        folder = self.get_path(command_id, STDOUT).parent
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class _Pending:
    """Bytes that are not stored yet, in the pieces in which they arrived, to avoid copying large output."""

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        last = self.pieces[-1] if self.pieces else None
        if len(data) >= MERGED_BYTES:
            self.pieces.append(data)
        elif isinstance(last, bytearray) and len(last) < MERGED_BYTES:
            last += data
        else:
            self.pieces.append(bytearray(data))

    def prepend(self, earlier: _Pending) -> None:
        """Put output that could not be stored before the output that has arrived since."""
        # as bytes: a thread may still be writing these, so nothing may be appended to them
        self.pieces[:0] = [bytes(piece) for piece in earlier.pieces]
        self.size += earlier.size


class OutputRecorder:
    """Records one command. Call `add` as output arrives and `finish` at the end."""

    def __init__(
        self, database: Database, files: OutputFiles, sandbox: Sandbox, command: Command, *, max_bytes: int = 1 << 30
    ) -> None:
        """`max_bytes` is the maximum number of bytes to store per stream."""
        self._max_bytes = max_bytes
        self._truncated_streams: set[str] = set()
        self._database = database
        self._files = files
        self._event_fields = get_sandbox_event_fields(sandbox)
        self.command_id = command.id
        self.begun = False
        """Whether the command is known to run or to have run."""
        self._stored = {STDOUT: command.stdout_bytes, STDERR: command.stderr_bytes}
        self._received = dict(self._stored)
        self._pending = {STDOUT: _Pending(), STDERR: _Pending()}
        self._flushing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    async def begin(self) -> None:
        """Prepare the files. Bytes that a crashed process wrote but did not record are truncated."""
        await self._files.begin(self.command_id, self._stored)

    @property
    def offsets(self) -> tuple[int, int]:
        """Return how many bytes of stdout and stderr have been received."""
        return self._received[STDOUT], self._received[STDERR]

    async def add(self, stream: str, offset: int, data: bytes) -> None:
        """Add output that starts at `offset`. What was already received is ignored."""
        received, pending = self._received[stream], self._pending[stream]
        if stream in self._truncated_streams:
            return
        if offset < received:
            data = data[received - offset :]
        if received + len(data) > self._max_bytes:
            self._truncated_streams.add(stream)
            data = data[: self._max_bytes - received]
        if not data:
            return
        self._received[stream] += len(data)
        pending.add(data)
        if pending.size >= MAX_PENDING_BYTES:
            await self.flush()
        elif pending.size >= FLUSH_BYTES and not self._flushing.locked():
            self.start_flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.start_flush)

    def watch(self) -> asyncio.Future[None]:
        """Return a future that completes when more output has been stored."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return waiter

    @property
    def is_idle(self) -> bool:
        """Whether no flush is running or scheduled."""
        return self._timer is None and (self._flush is None or self._flush.done())

    def start_flush(self) -> None:
        """Start a flush in the background, unless one is running."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._flush_in_background())

    async def _flush_in_background(self) -> None:
        """Flush and only log failures. Unwritten output is kept; if the next flush fails too, its caller gets the error."""
        try:
            await self.flush()
        except SandyardError as error:
            log.warning("output_not_kept", command=self.command_id, reason=error.message)
            return
        has_new_output = any(pending.size for pending in self._pending.values())
        if has_new_output and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.start_flush)

    async def flush(self, **end: Any) -> None:
        """Store the output received so far. `end` holds fields of the row to set with it when the command has ended."""
        async with self._flushing:
            batch = {stream: pending for stream, pending in self._pending.items() if pending.size}
            if not batch and not end:
                return
            self._pending |= {stream: _Pending() for stream in batch}
            try:
                await self._store(batch, end)
            except BaseException:
                for stream, pending in batch.items():
                    self._pending[stream].prepend(pending)
                raise
            for stream, pending in batch.items():
                self._stored[stream] += pending.size
            for waiter in list(self._waiters):
                if not waiter.done():
                    waiter.set_result(None)

    async def _store(self, batch: Mapping[str, _Pending], end: Mapping[str, Any]) -> None:
        """Write to the files, then to the database."""
        for stream, pending in batch.items():
            try:
                await self._files.write(self.command_id, stream, self._stored[stream], *pending.pieces)
            except OSError as error:
                is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
                message = f"The command's output could not be stored on the platform: {error.strerror}."
                raise (NoSpaceError if is_full else SandyardError)(message) from error
        sizes = {f"{stream}_bytes": self._stored[stream] + pending.size for stream, pending in batch.items()}
        async with self._database.transaction() as tx:
            await tx.session.execute(update(Command).where(Command.id == self.command_id).values(**sizes, **end))
            if batch:
                pieces = [self._describe_output(stream, pending) for stream, pending in batch.items()]
                tx.emit("command.output", **self._event_fields, commandId=self.command_id, output=pieces)
            if end:
                totals = {f"{stream}_bytes": size for stream, size in self._stored.items()} | sizes
                tx.emit(
                    "command.finished",
                    **self._event_fields,
                    commandId=self.command_id,
                    status=end["status"],
                    exitCode=end.get("exit_code"),
                    signal=end.get("signal"),
                    error=end.get("error"),
                    stdoutBytes=totals[f"{STDOUT}_bytes"],
                    stderrBytes=totals[f"{STDERR}_bytes"],
                )

    def _describe_output(self, stream: str, pending: _Pending) -> dict[str, Any]:
        """Return one entry of an event's `output`."""
        start = self._stored[stream]
        piece: dict[str, Any] = {"stream": stream, "offset": start, "end": start + pending.size}
        if pending.size <= INLINE_BYTES:
            data = b"".join(pending.pieces)
            try:
                piece["text"] = data.decode()
            except UnicodeDecodeError:
                piece["base64"] = base64.b64encode(data).decode()
        return piece

    async def close(self) -> None:
        """Stop writing. Unwritten output is still in the sandbox's journal. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flush is not None:
            await end_tasks(self._flush)

    async def finish(
        self,
        status: CommandStatus,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        error: str | None = None,
        duration_s: float | None = None,
    ) -> None:
        """Store the rest of the output and the end of the command in one transaction."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._truncated_streams:
            streams = " and ".join(sorted(self._truncated_streams))
            note = f"Only the first {self._max_bytes:,} bytes of {streams} were stored."
            error = f"{error} {note}" if error else note
        await self.flush(
            status=status,
            exit_code=exit_code,
            signal=signal,
            error=error,
            duration_s=duration_s,
            finished_at=utc_now(),
        )
