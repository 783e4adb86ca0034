"""The running sandboxes: notices when one has ended, finds out why, and tidies up after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sandyard.engine.drivers.namespace.host import Host
from sandyard.engine.drivers.namespace.record import Life, Record
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

T = TypeVar("T")

_STATUS_PATIENCE = 2.0  # the zygote knows at once, but on a busy machine it may not run at once
_TAIL = 4096


class Lives:
    """Work that outlasts a verb runs in tracked tasks: `settle` waits for all of it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._by_pid: dict[int, Record] = {}
        self._statuses: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, record: Record, life: Life, pidfd: int, words: int, *, ours: bool) -> None:
        """From now on the end of this process is the end of the sandbox. `ours`: the zygote that made it runs, and will say
        how it ended. Takes both descriptors."""
        record.life, record.pidfd, record.words = life, pidfd, words
        record.ending = record.exit_code = None
        record.frozen = False
        record.ended = asyncio.get_running_loop().create_future()
        self._by_pid[life.pid] = record
        if ours:
            self._statuses[life.pid] = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end, record)

    def on_exit(self, pid: int, code: int) -> None:
        """The zygote saw a process end."""
        if pid in self._by_pid:
            self._by_pid[pid].exit_code = code
        if pid in self._statuses:
            self._statuses[pid].set()

    def track(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that must come to its end, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:  # who waits for it hears of it as well
            log.debug("work_failed", error=str(task.exception()))

    async def settle(self) -> None:
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Stop watching; the sandboxes go on."""
        loop = asyncio.get_running_loop()
        for record in self._by_pid.values():
            loop.remove_reader(record.pidfd)
            os.close(record.pidfd)
            _close(record)
        self._by_pid.clear()

    def _on_end(self, record: Record) -> None:
        assert record.life is not None
        asyncio.get_running_loop().remove_reader(record.pidfd)
        os.close(record.pidfd)
        record.pidfd = -1
        self.track(self._end(record, record.life))

    async def _end(self, record: Record, life: Life) -> None:
        """All processes are gone with the first one. Say why, then free what only a running sandbox needs."""
        event = self._statuses.pop(life.pid, None)
        if event is not None and record.ending is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STATUS_PATIENCE):
                    await event.wait()
        reason = record.ending or self._reason(record)
        if record.ending is None:
            log.info("sandbox_ended", sandbox=record.id, reason=reason)
        _close(record)
        self._by_pid.pop(life.pid, None)
        try:
            await self._host.cgroups.clear(record.id)
            remove_run(self._host.run / record.id)
        finally:
            if not record.ended.done():
                record.ended.set_result(reason)
            await self.free(life.slot)

    async def free(self, slot: int) -> None:
        """Give a slot back, with its network."""
        try:
            if self._host.network is not None:
                await self._host.network.release(slot)
        finally:
            self._host.slots.give_back(slot)

    def _reason(self, record: Record) -> str:
        starved = self._host.cgroups.usage(record.id).oom_kills > 0
        code = record.exit_code
        if code == -signal.SIGKILL:
            return "out of memory: the kernel killed its agent" if starved else "killed from outside"
        if code is None:
            return (
                "ended; before, the kernel killed processes in it for lack of memory"
                if starved
                else "ended while nobody was looking how"
            )
        if code < 0:
            return f"its agent was ended by {signal.Signals(-code).name}"
        if code == 0:
            return "it was shut down"
        words = _last_words(record.words)
        return f"its agent failed with {code}" + (f": {words}" if words else "")


def _close(record: Record) -> None:
    if record.words >= 0:
        os.close(record.words)
        record.words = -1


def _last_words(fd: int) -> str:
    with contextlib.suppress(OSError):
        size = os.fstat(fd).st_size
        lines = os.pread(fd, _TAIL, max(size - _TAIL, 0)).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


def remove_run(folder: Path) -> None:
    """A sandbox's directory in run/ holds a few plain files. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(folder)):
            Path(entry.path).unlink(missing_ok=True)
        folder.rmdir()
