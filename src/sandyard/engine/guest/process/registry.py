"""The processes that clients started: running ones and, for a while, ended ones, so that clients can fetch their end."""

from __future__ import annotations

from collections.abc import Iterator

from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.process.output import Output
from sandyard.engine.guest.process.process import Process
from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.connect import RpcError

# How long an ended process is kept, in seconds, before and after a client has received its end.
KEEP_UNSEEN = 600.0
KEEP_SEEN = 30.0
MAX_ENDED = 128


class EndedProcess:
    """The end of a process, and its output that was not read yet."""

    __slots__ = ("expiry", "output", "pid", "tag")

    def __init__(self, process: Process, expiry: float) -> None:
        self.pid = process.pid
        self.tag = process.tag
        self.output = process.output
        self.expiry = expiry


class Registry:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._live: dict[int, Process] = {}
        self._ended: dict[int, EndedProcess] = {}
        self._removal_scheduled = False

    def add(self, process: Process) -> None:
        """Add a process. It replaces ended processes with the same pid or tag."""
        self._remove(process.pid)
        if process.tag is not None:
            for pid in [ended.pid for ended in self._ended.values() if ended.tag == process.tag]:
                self._remove(pid)
        self._live[process.pid] = process

    def record_end(self, process: Process) -> None:
        """Keep the end and the unread output for a late `Connect`."""
        if self._live.get(process.pid) is not process:
            return
        del self._live[process.pid]
        while len(self._ended) >= MAX_ENDED:
            self._remove(next(iter(self._ended)))
        self._ended[process.pid] = EndedProcess(process, self._loop.time() + KEEP_UNSEEN)
        if not self._removal_scheduled:
            self._removal_scheduled = True
            self._loop.call_later(KEEP_SEEN, self._remove_expired)

    def mark_seen(self, pid: int, output: Output) -> None:
        """Drop the output of an ended process whose end a client has received, and keep the end only for KEEP_SEEN."""
        ended = self._ended.get(pid)
        if ended is not None and ended.output is output:
            ended.expiry = self._loop.time() + KEEP_SEEN
            output.drop()

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._live.values()))

    def find(self, message: protojson.Message) -> Process:
        """Return the running process that a request selects by pid or tag. Raises RpcError not_found."""
        selector = protojson.get_message(message, "process") or {}
        if protojson.get_value(selector, "pid") is not None:
            pid = protojson.get_uint32(selector, "pid")
            process = self._live.get(pid)
            what = f"pid {pid}"
        elif protojson.get_value(selector, "tag") is not None:
            tag = protojson.get_text(selector, "tag")
            process = next((candidate for candidate in self._live.values() if candidate.tag == tag), None)
            what = f"tag {tag}"
        else:
            raise RpcError("invalid_argument", "the request must select a process by pid or tag")
        if process is None:
            raise RpcError("not_found", f"process with {what} not found")
        return process

    def find_followable(self, message: protojson.Message) -> Process | EndedProcess:
        """Return the selected process, also if it has ended and is still kept. Raises RpcError not_found."""
        try:
            return self.find(message)
        except RpcError as error:
            selector = protojson.get_message(message, "process") or {}
            pid, tag = protojson.get_value(selector, "pid"), protojson.get_value(selector, "tag")
            for ended in self._ended.values():
                if str(ended.pid) == str(pid) or (pid is None and tag is not None and ended.tag == tag):
                    return ended
            raise error from None

    def _remove(self, pid: int) -> None:
        ended = self._ended.pop(pid, None)
        if ended is not None:
            ended.output.drop()

    def _remove_expired(self) -> None:
        now = self._loop.time()
        for pid in [ended.pid for ended in self._ended.values() if ended.expiry <= now]:
            self._remove(pid)
        self._removal_scheduled = bool(self._ended)
        if self._removal_scheduled:
            self._loop.call_later(KEEP_SEEN, self._remove_expired)
