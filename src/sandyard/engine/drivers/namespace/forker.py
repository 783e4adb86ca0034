"""The engine's side of the zygote: starts it, sends requests, and replaces it if it died."""

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
from sandyard.engine.drivers.namespace.errors import translate_child_error
from sandyard.engine.drivers.namespace.zygote import bootstrap, protocol
from sandyard.kit.errors import BusyError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.python import SAFE_FOLDER, bare_python_command

log = get_logger(__name__)

_TIMEOUT = 30.0
_BUFFER = 4 << 20


Ask = Callable[[str, protocol.Message], Awaitable[protocol.Message]]


class ZygoteDiedError(BusyError):
    """The process that creates sandboxes died; another one is being started. Try again."""


@dataclass(frozen=True, slots=True)
class Started:
    pid: int
    pidfd: int  # the caller must close it


class _Pending:
    """A request that waits for its last answer. A start has two, from two processes, in any order."""

    __slots__ = ("future", "ready", "started")

    def __init__(self, future: asyncio.Future[protocol.Message]) -> None:
        self.future = future
        self.started: Started | None = None
        self.ready: protocol.Message | None = None

    def settle(self, answer: protocol.Message) -> None:
        if not self.future.done():
            self.future.set_result(answer)


class Forker:
    """Manages one zygote at a time. Requests are pipelined: none waits for the answer to another. A request starts a
    zygote if there is none; a request in progress when the zygote dies raises ZygoteDiedError."""

    def __init__(
        self,
        title: str,
        guest: str,
        settle: Callable[[int, Ask], Awaitable[None]],
        on_exit: Callable[[int, int], None],
    ) -> None:
        """`settle(pid, ask)` is called with each new zygote to set it up before any other request. `on_exit(pid, exit
        code)` is called for every process of this zygote that has ended; negative means a signal."""
        self._title = title
        self._guest = guest
        self._settle = settle
        self._on_exit = on_exit
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pidfd = -1
        self._numbers = 0
        self._pending: dict[int, _Pending] = {}
        self._by_pid: dict[int, int] = {}  # for starts in progress: pid → number
        self._outbox: deque[tuple[protocol.Message, Sequence[int]]] = deque()
        self._starting = asyncio.Lock()
        self._closed = False
        self._errors: BinaryIO | None = None  # its stderr, for errors before it can report them properly
        self._last_words = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._socket else None

    async def ensure(self) -> None:
        """Ensure that a zygote is running and set up. Idempotent."""
        if self._socket is not None and not self._starting.locked():
            return
        async with self._starting:
            if self._socket is None:
                await self._spawn()

    async def restart(self) -> None:
        """Replace the zygote, because its setup has changed."""
        async with self._starting:
            self._drop()
            await self._spawn()

    async def close(self) -> None:
        self._closed = True
        self._drop()

    async def request(self, op: str, fields: protocol.Message, *, timeout: float | None = _TIMEOUT) -> protocol.Message:  # noqa: ASYNC109
        await self.ensure()
        return await self._ask(op, fields, timeout)

    async def start(self, fields: protocol.Message, fds: Sequence[int] = ()) -> Started:
        """Start a process that is ready to serve. If this raises, no process is left."""
        await self.ensure()
        return await self._begin("start", fields, fds)

    # Inside ---------------------------------------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        if self._closed:
            raise ZygoteDiedError("The driver is closed.")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        ours.setblocking(False)
        root = Path(sandyard.__file__).parents[1]
        # No environment of the engine and no site-packages: no secrets, and nothing that starts a thread.
        command = bare_python_command("-B", bootstrap.__file__, str(root), self._guest, self._title)
        self._errors = os.fdopen(os.memfd_create("zygote-stderr"), "rb")
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 (a vfork: one millisecond)
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
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
            await self._settle(self._process.pid, self._ask)
        except BaseException:
            self._drop()
            raise
        log.info("zygote_started", pid=self._process.pid)

    async def _ask(self, op: str, fields: protocol.Message, timeout: float | None = _TIMEOUT) -> protocol.Message:  # noqa: ASYNC109
        number, pending = self._post(op, fields, ())
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

    async def _begin(self, op: str, fields: protocol.Message, fds: Sequence[int]) -> Started:
        number, pending = self._post(op, fields, fds)
        done = False
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer = await pending.future
            if "error" in answer:
                raise translate_child_error(answer)
            assert pending.started is not None
            done = True
        except TimeoutError:
            raise BusyError(f"The sandbox was not ready within {_TIMEOUT:.0f} s.") from None
        else:
            return pending.started
        finally:
            self._pending.pop(number, None)
            if pending.started is not None:
                self._by_pid.pop(pending.started.pid, None)
                if not done:
                    _end(pending.started)

    def _post(self, op: str, fields: protocol.Message, fds: Sequence[int]) -> tuple[int, _Pending]:
        if self._socket is None:
            raise ZygoteDiedError
        self._numbers += 1
        pending = _Pending(asyncio.get_running_loop().create_future())
        self._pending[self._numbers] = pending
        copies = [os.dup(fd) for fd in fds]
        self._outbox.append(({"n": self._numbers, "op": op, **fields}, copies))
        self._flush()
        return self._numbers, pending

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
            self._last_words = str(message["fatal"])
        elif "gone" in message:
            self._handle_exit(message["gone"], os.waitstatus_to_exitcode(message["status"]))
        elif message["n"] not in self._pending:  # the caller was cancelled
            for fd in fds:
                _end(Started(message.get("pid", 0), fd))
        elif "pid" in message:
            pending = self._pending[message["n"]]
            pending.started = Started(message["pid"], fds[0])
            self._by_pid[message["pid"]] = message["n"]
            if pending.ready is not None:
                pending.settle(pending.ready)
        elif "ready" in message and (pending := self._pending[message["n"]]).started is None:
            pending.ready = message
        else:
            self._pending[message["n"]].settle(message)

    def _handle_exit(self, pid: int, code: int) -> None:
        number = self._by_pid.pop(pid, None)
        if number in self._pending:
            why = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            self._pending[number].settle({"error": f"could not start: its first process {why}", "errno": None})
        self._on_exit(pid, code)

    def _handle_zygote_loss(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    message, fds = protocol.receive(self._socket)
                    if message is None:
                        break
                    self._dispatch(message, fds)
        words = self._last_words.strip().splitlines()
        if not words and self._errors is not None:
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace").strip().splitlines()
        log.warning("zygote_died", words=words[-1] if words else "none")
        self._drop(ZygoteDiedError(f"The process that creates sandboxes died: {words[-1]}" if words else None))

    def _drop(self, error: SandyardError | None = None) -> None:
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._socket.close()
            self._socket = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None
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


def _end(started: Started) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(started.pidfd, signal.SIGKILL)
    os.close(started.pidfd)
