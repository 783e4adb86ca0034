"""Watch running sandboxes: detect that one has ended, find out why, and clean up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sandyard.engine.drivers.machine import processes
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Life, Record
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

T = TypeVar("T")

_EXIT_REPORT_TIMEOUT_S = 30.0  # a runtime knows at once, but may be delayed on a busy machine
_MAX_EARLY_REPORTS = 64
_TAIL_BYTES = 4096


class ExitWatcher:
    """Watches the first process of each sandbox. Work that outlasts an operation runs in tracked tasks:
    `wait_for_tasks` waits for all of it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._by_pid: dict[int, Record] = {}
        self._exit_reports: dict[int, asyncio.Event] = {}  # by pid, of those whose exit will be reported
        self._early_reports: dict[int, int] = {}  # pid → exit code, of processes that are not watched yet
        self._tasks: set[asyncio.Task[Any]] = set()

    def watch(self, record: Record, life: Life, pidfd: int, stderr_fd: int, *, reports_exit: bool) -> None:
        """Watch a sandbox: from now on the end of this process is its end. `reports_exit`: `on_exit` will be called with
        how it ended. Takes ownership of both descriptors."""
        record.life, record.pidfd, record.stderr_fd = life, pidfd, stderr_fd
        record.end_reason = record.exit_code = None
        record.frozen = False
        record.ended = asyncio.get_running_loop().create_future()
        self._by_pid[life.pid] = record
        early_report = self._early_reports.pop(life.pid, None)
        if reports_exit:
            self._exit_reports[life.pid] = asyncio.Event()
            if early_report is not None and processes.has_ended(pidfd):
                self.on_exit(life.pid, early_report)
        asyncio.get_running_loop().add_reader(pidfd, self._on_process_end, record)

    def list_running(self, driver: str) -> list[Record]:
        """Return the sandboxes of a runtime that are running or frozen."""
        return [record for record in self._by_pid.values() if record.driver == driver and record.alive]

    def on_exit(self, pid: int, code: int) -> None:
        """Handle a runtime's report that a process has ended. `code` is its exit code, or the negative number of the
        signal that ended it."""
        if pid in self._by_pid:
            self._by_pid[pid].exit_code = code
        else:
            self._early_reports[pid] = code
            if len(self._early_reports) > _MAX_EARLY_REPORTS:
                del self._early_reports[next(iter(self._early_reports))]
        if pid in self._exit_reports:
            self._exit_reports[pid].set()

    def on_reports_lost(self) -> None:
        """Handle a runtime that can no longer report how the processes that run now end."""
        for report in self._exit_reports.values():
            report.set()

    def track(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that must run to completion, even if nobody waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:  # also raised to callers that await it
            log.debug("work_failed", error=str(task.exception()))

    async def wait_for_tasks(self) -> None:
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop_watching(self) -> None:
        """Stop watching; the sandboxes keep running."""
        loop = asyncio.get_running_loop()
        for record in self._by_pid.values():
            loop.remove_reader(record.pidfd)
            os.close(record.pidfd)
            _close_stderr(record)
        self._by_pid.clear()

    def _on_process_end(self, record: Record) -> None:
        assert record.life is not None
        asyncio.get_running_loop().remove_reader(record.pidfd)
        os.close(record.pidfd)
        record.pidfd = -1
        self.track(self._handle_end(record, record.life))

    async def _handle_end(self, record: Record, life: Life) -> None:
        """Handle the end of the first process, with which all others end. Record the reason, then free what only a
        running sandbox needs."""
        exit_reported = self._exit_reports.get(life.pid)
        if exit_reported is not None and record.end_reason is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_REPORT_TIMEOUT_S):
                    await exit_reported.wait()
        self._exit_reports.pop(life.pid, None)
        reason = record.end_reason or self._find_reason(record)
        if record.end_reason is None:
            log.info("sandbox_ended", sandbox=record.id, reason=reason)
        _close_stderr(record)
        self._by_pid.pop(life.pid, None)
        try:
            await self._machine.cgroups.kill_and_remove(record.id)
            remove_run_directory(self._machine.run_dir / record.id)
        finally:
            if not record.ended.done():
                record.ended.set_result(reason)
            await self.free_slot(life.slot)

    async def free_slot(self, slot: int) -> None:
        """Free a slot and its network."""
        try:
            if self._machine.network is not None:
                await self._machine.network.release(slot)
        finally:
            self._machine.slots.release(slot)

    def _find_reason(self, record: Record) -> str:
        code = record.exit_code
        if code is None or code == -signal.SIGKILL:
            if self._machine.cgroups.read_usage(record.id).oom_kills > 0:
                return f"out of memory: the limit of the sandbox is {record.limits.memory_mb} MiB"
            return "ended for an unknown reason" if code is None else "killed from outside"
        if code < 0:
            return f"its agent was ended by {get_signal_name(-code)}"
        if code == 0:
            return "it was shut down"
        last_line = read_last_line(record.stderr_fd)
        return f"its agent failed with {code}" + (f": {last_line}" if last_line else "")


def get_signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _close_stderr(record: Record) -> None:
    if record.stderr_fd >= 0:
        os.close(record.stderr_fd)
        record.stderr_fd = -1


def read_last_line(fd: int) -> str:
    """Return the last line of a file that is open for reading."""
    with contextlib.suppress(OSError):
        size = os.fstat(fd).st_size
        lines = os.pread(fd, _TAIL_BYTES, max(size - _TAIL_BYTES, 0)).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


def remove_run_directory(folder: Path) -> None:
    """Remove a sandbox's directory in run/, which contains a few small files. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                remove_run_directory(Path(entry.path))
            else:
                Path(entry.path).unlink(missing_ok=True)
        folder.rmdir()
