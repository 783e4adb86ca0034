"""The engine's side of the zygote: start it, send requests, and replace it if it died."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import sandyard
from sandyard.engine.drivers.machine.errors import translate_child_error
from sandyard.engine.drivers.machine.exit_watcher import get_signal_name
from sandyard.engine.drivers.namespace.zygote import bootstrap, protocol
from sandyard.kit.errors import BusyError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.python import SAFE_FOLDER, make_bare_python_command

log = get_logger(__name__)

_TIMEOUT_S = 30.0
_BUFFER_BYTES = 4 << 20


SendRequest = Callable[[str, protocol.Message], Awaitable[protocol.Message]]


class ZygoteDiedError(BusyError):
    """The process that creates sandboxes died; another one is being started. Try again."""


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    pid: int
    pidfd: int  # the caller must close it


class _Pending:
    """A request that waits for its last answer. A start has two, from two processes, in any order."""

    __slots__ = ("future", "ready", "started")

    def __init__(self, future: asyncio.Future[protocol.Message]) -> None:
        self.future = future
        self.started: ForkedProcess | None = None
        self.ready: protocol.Message | None = None

    def complete(self, answer: protocol.Message) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class Forker:
    """Manages one zygote at a time. Requests are pipelined: none waits for the answer to another. A request starts a
    zygote if there is none; a request in progress when the zygote dies raises ZygoteDiedError."""

    def __init__(
        self,
        title: str,
        guest: str,
        set_up: Callable[[int, SendRequest], Awaitable[None]],
        on_exit: Callable[[int, int], None],
        on_loss: Callable[[], None],
    ) -> None:
        """`set_up(pid, send_request)` is called with each new zygote to set it up before any other request.
        `on_exit(pid, exit code)` is called for every process of this zygote that has ended; negative means a signal.
        `on_loss()` is called when a zygote is gone: there will be no such call for the processes it started."""
        self._title = title
        self._guest = guest
        self._set_up = set_up
        self._on_exit = on_exit
        self._on_loss = on_loss
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pidfd = -1
        self._last_number = 0
        self._pending: dict[int, _Pending] = {}
        self._starts_by_pid: dict[int, int] = {}  # for starts in progress: pid → number
        self._outbox: deque[tuple[protocol.Message, Sequence[int]]] = deque()
        self._starting = asyncio.Lock()
        self._closed = False
        self._stderr: BinaryIO | None = None  # the zygote's, for errors before it can report them as a message
        self._fatal_message = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._socket else None

    async def ensure_running(self) -> None:
        """Ensure that a zygote is running and set up. Idempotent."""
        if self._socket is not None and not self._starting.locked():
            return
        async with self._starting:
            if self._socket is None:
                await self._spawn()

    async def restart(self) -> None:
        """Replace the zygote, because its setup has changed. Starts in progress raise ZygoteDiedError."""
        async with self._starting:
            self._discard_zygote()
            await self._spawn()

    async def close(self) -> None:
        """End the zygote. Later requests raise ZygoteDiedError."""
        self._closed = True
        self._discard_zygote()

    async def request(
        self,
        op: str,
        fields: protocol.Message,
        *,
        timeout: float | None = _TIMEOUT_S,  # noqa: ASYNC109
    ) -> protocol.Message:
        """Send a request and return its answer. Raises BusyError after the timeout, and the error that the answer
        contains."""
        await self.ensure_running()
        return await self._send_request(op, fields, timeout)

    async def start(self, fields: protocol.Message, fds: Sequence[int] = ()) -> ForkedProcess:
        """Start a process that is ready to serve. If this raises, no process is left."""
        await self.ensure_running()
        return await self._start_process("start", fields, fds)

    # Internals ---------------------------------------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        if self._closed:
            raise ZygoteDiedError("The driver is closed.")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        ours.setblocking(False)
        root = Path(sandyard.__file__).parents[1]
        # No environment of the engine and no site-packages: no secrets, and nothing that starts a thread.
        command = make_bare_python_command("-B", bootstrap.__file__, str(root), self._guest, self._title)
        self._stderr = os.fdopen(os.memfd_create("zygote-stderr"), "rb")
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 (a vfork: one millisecond)
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                cwd=SAFE_FOLDER,
                env={"LANG": "C.UTF-8"},
                start_new_session=True,
            )
        self._socket = ours
        # Its death is visible here immediately; its end of the socket may be held a little longer by a process it just
        # created.
        self._pidfd = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._receive)
        loop.add_reader(self._pidfd, self._handle_zygote_loss)
        try:
            await self._set_up(self._process.pid, self._send_request)
        except BaseException:
            self._discard_zygote()
            raise
        log.info("zygote_started", pid=self._process.pid)

    async def _send_request(
        self,
        op: str,
        fields: protocol.Message,
        timeout: float | None = _TIMEOUT_S,  # noqa: ASYNC109
    ) -> protocol.Message:
        number, pending = self._enqueue(op, fields, ())
        try:
            async with asyncio.timeout(timeout):
                answer = await pending.future
        except TimeoutError:
            raise BusyError(f"The process that creates sandboxes did not answer within {timeout} s.") from None
        finally:
            self._pending.pop(number, None)
        if "error" in answer:
            raise translate_child_error(answer)
        return answer

    async def _start_process(self, op: str, fields: protocol.Message, fds: Sequence[int]) -> ForkedProcess:
        number, pending = self._enqueue(op, fields, fds)
        done = False
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await pending.future
            if "error" in answer:
                raise translate_child_error(answer)
            assert pending.started is not None
            done = True
        except TimeoutError:
            raise BusyError(f"The sandbox was not ready within {_TIMEOUT_S:.0f} s.") from None
        else:
            return pending.started
        finally:
            self._pending.pop(number, None)
            if pending.started is not None:
                self._starts_by_pid.pop(pending.started.pid, None)
                if not done:
                    _kill_process(pending.started)

    def _enqueue(self, op: str, fields: protocol.Message, fds: Sequence[int]) -> tuple[int, _Pending]:
        if self._socket is None:
            raise ZygoteDiedError
        self._last_number += 1
        pending = _Pending(asyncio.get_running_loop().create_future())
        self._pending[self._last_number] = pending
        copies = [os.dup(fd) for fd in fds]
        self._outbox.append(({"n": self._last_number, "op": op, **fields}, copies))
        self._flush()
        return self._last_number, pending

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._outbox and self._socket is not None:
            message, fds = self._outbox[0]
            try:
                protocol.send(self._socket, message, fds)
            except BlockingIOError:
                loop.add_writer(self._socket, self._flush)
                return
            except OSError:
                self._handle_zygote_loss()
                return
            self._outbox.popleft()
            for fd in fds:
                os.close(fd)
        if self._socket is not None:
            loop.remove_writer(self._socket)

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                message, fds = protocol.receive(self._socket)
            except BlockingIOError:
                return
            if message is None:
                self._handle_zygote_loss()
                return
            self._dispatch(message, fds)

    def _dispatch(self, message: protocol.Message, fds: list[int]) -> None:
        if "fatal" in message:
            self._fatal_message = str(message["fatal"])
        elif "gone" in message:
            self._handle_exit(message["gone"], os.waitstatus_to_exitcode(message["status"]))
        elif message["n"] not in self._pending:  # the caller was cancelled
            for fd in fds:
                _kill_process(ForkedProcess(message.get("pid", 0), fd))
        elif "pid" in message:
            pending = self._pending[message["n"]]
            pending.started = ForkedProcess(message["pid"], fds[0])
            self._starts_by_pid[message["pid"]] = message["n"]
            if pending.ready is not None:
                pending.complete(pending.ready)
        elif "ready" in message and (pending := self._pending[message["n"]]).started is None:
            pending.ready = message
        else:
            self._pending[message["n"]].complete(message)

    def _handle_exit(self, pid: int, code: int) -> None:
        number = self._starts_by_pid.pop(pid, None)
        if number in self._pending:
            outcome = f"was ended by {get_signal_name(-code)}" if code < 0 else f"ended with {code}"
            self._pending[number].complete({"error": f"could not start: its first process {outcome}", "errno": None})
        self._on_exit(pid, code)

    def _handle_zygote_loss(self) -> None:
        """Process what the zygote sent before it died, and fail the requests that are left."""
        if self._socket is not None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    message, fds = protocol.receive(self._socket)
                    if message is None:
                        break
                    self._dispatch(message, fds)
        lines = self._fatal_message.strip().splitlines()
        if not lines and self._stderr is not None:
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        log.warning("zygote_died", error=lines[-1] if lines else "none")
        self._discard_zygote(
            ZygoteDiedError(f"The process that creates sandboxes died: {lines[-1]}" if lines else None)
        )

    def _discard_zygote(self, error: SandyardError | None = None) -> None:
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._socket.close()
            self._socket = None
            self._on_loss()
        self._fatal_message = ""
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()  # it was killed, or closed its socket before it exited
            self._process = None
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(error or ZygoteDiedError())


def _kill_process(started: ForkedProcess) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(started.pidfd, signal.SIGKILL)
    os.close(started.pidfd)
