"""Writes down what one command says: bytes to its files, then how many there are to the database, with an event.

Nothing is told before it is kept: an event's offsets can be read from the files the moment it arrives.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from sqlalchemy import update

from sandyard.kit.errors import NoSpaceError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command, Sandbox
from sandyard.platform.domain.sandboxes.model import CommandStatus, about, utc_now
from sandyard.platform.domain.sandboxes.output import STDERR, STDOUT, OutputFiles

log = get_logger(__name__)

FLUSH_S = 0.05
FLUSH_BYTES = 2 << 20
WAITING_BYTES = 8 << 20
"""So much may wait while something is written; more waits in the sandbox. Each write costs a transaction, however much it is of."""
MERGED_BYTES = 64 * 1024
"""What comes in smaller pieces is put together."""
INLINE_BYTES = 8 * 1024
"""What an event carries of a stream; of more it says from where to where, and the reader fetches it."""


class _Waiting:
    """Bytes that are not kept yet, in the pieces in which they came, so that much output is not copied once more."""

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

    def put_back(self, earlier: _Waiting) -> None:
        # as bytes: a thread may still write these, and nothing may be added to them
        self.pieces[:0] = [bytes(piece) for piece in earlier.pieces]
        self.size += earlier.size


class Recorder:
    """For one command at a time. `add` as output comes, `finish` at the end."""

    def __init__(
        self, database: Database, files: OutputFiles, sandbox: Sandbox, command: Command, *, most: int = 1 << 30
    ) -> None:
        """`most` is how much is kept of a stream."""
        self._most = most
        self._cut: set[str] = set()
        self._database = database
        self._files = files
        self._about = about(sandbox)
        self.command_id = command.id
        self.begun = False  # it is known to run, or to have run
        self._kept = {STDOUT: command.stdout_bytes, STDERR: command.stderr_bytes}
        self._known = dict(self._kept)
        self._waiting = {STDOUT: _Waiting(), STDERR: _Waiting()}
        self._flushing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    async def begin(self) -> None:
        await self._files.begin(self.command_id, self._kept)

    @property
    def offsets(self) -> tuple[int, int]:
        """How much of standard output and standard error is known here."""
        return self._known[STDOUT], self._known[STDERR]

    async def add(self, stream: str, offset: int, data: bytes) -> None:
        known, waiting = self._known[stream], self._waiting[stream]
        if stream in self._cut:
            return
        if offset < known:
            data = data[known - offset :]  # already here
        if known + len(data) > self._most:
            self._cut.add(stream)
            data = data[: self._most - known]
        if not data:
            return
        self._known[stream] += len(data)
        waiting.add(data)
        if waiting.size >= WAITING_BYTES:
            await self.flush()
        elif waiting.size >= FLUSH_BYTES and not self._flushing.locked():
            self._flush_now()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush_now)

    def news(self) -> asyncio.Future[None]:
        """Done as soon as more has been kept than at this moment."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return waiter

    def _flush_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        """What could not be kept stays in hand; the next flush says so to somebody who can do something about it."""
        try:
            await self.flush()
        except SandyardError as error:
            log.warning("output_not_kept", command=self.command_id, reason=error.message)
            return
        if (
            any(waiting.size for waiting in self._waiting.values()) and self._timer is None
        ):  # arrived during the flush, and has no timer
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush_now)

    async def flush(self, **end: Any) -> None:
        """Keep what came. `end` are fields of the row to set with it, when this is the end."""
        async with self._flushing:
            news = {stream: waiting for stream, waiting in self._waiting.items() if waiting.size}
            if not news and not end:
                return
            self._waiting |= {stream: _Waiting() for stream in news}
            try:
                await self._keep(news, end)
            except BaseException:
                for stream, waiting in news.items():
                    self._waiting[stream].put_back(waiting)
                raise
            for stream, waiting in news.items():
                self._kept[stream] += waiting.size
            for waiter in list(self._waiters):
                if not waiter.done():
                    waiter.set_result(None)

    async def _keep(self, news: Mapping[str, _Waiting], end: Mapping[str, Any]) -> None:
        """To the files, then to the database."""
        for stream, waiting in news.items():
            try:
                await self._files.write(self.command_id, stream, self._kept[stream], *waiting.pieces)
            except OSError as error:
                raise NoSpaceError(f"The output could not be written: {error.strerror}.") from error
        sizes = {f"{stream}_bytes": self._kept[stream] + waiting.size for stream, waiting in news.items()}
        async with self._database.transaction() as tx:
            await tx.session.execute(update(Command).where(Command.id == self.command_id).values(**sizes, **end))
            if news:
                pieces = [self._piece(stream, waiting) for stream, waiting in news.items()]
                tx.emit("command.output", **self._about, commandId=self.command_id, output=pieces)
            if end:
                totals = {f"{stream}_bytes": size for stream, size in self._kept.items()} | sizes
                tx.emit(
                    "command.finished",
                    **self._about,
                    commandId=self.command_id,
                    status=end["status"],
                    exitCode=end.get("exit_code"),
                    signal=end.get("signal"),
                    error=end.get("error"),
                    stdoutBytes=totals[f"{STDOUT}_bytes"],
                    stderrBytes=totals[f"{STDERR}_bytes"],
                )

    def _piece(self, stream: str, waiting: _Waiting) -> dict[str, Any]:
        start = self._kept[stream]
        piece: dict[str, Any] = {"stream": stream, "offset": start, "end": start + waiting.size}
        if waiting.size <= INLINE_BYTES:
            data = b"".join(waiting.pieces)
            try:
                piece["text"] = data.decode()
            except UnicodeDecodeError:
                piece["base64"] = base64.b64encode(data).decode()
        return piece

    async def close(self) -> None:
        """Write nothing any more. What was not written is still in the sandbox's journal. Idempotent."""
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
        if self._timer is not None:
            self._timer.cancel()
        if self._cut:
            cut = f"Only the first {self._most:,} bytes of {' and '.join(sorted(self._cut))} were stored."
            error = f"{error} {cut}" if error else cut
        await self.flush(
            status=status,
            exit_code=exit_code,
            signal=signal,
            error=error,
            duration_s=duration_s,
            finished_at=utc_now(),
        )
