"""Terminals: a shell behind a pseudo-terminal in a sandbox. It keeps running while nobody is attached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from e2b import AsyncCommandHandle, CommandExitException, NotFoundException, PtySize

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b.errors import TerminalNotFoundError
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

_MAX_QUEUED_CHUNKS = 64
SIDE_LIMIT = 1000


class Terminal:
    """One attachment to a terminal. `pid` identifies the terminal to any later process of the platform."""

    def __init__(self, terminals: Terminals, engine_id: str) -> None:
        self._terminals = terminals
        self.engine_id = engine_id
        self.pid = 0
        self.exit_code: int | None = None
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_QUEUED_CHUNKS)
        self._handle: AsyncCommandHandle[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._write_lock = asyncio.Lock()

    async def output(self) -> AsyncIterator[bytes]:
        """Yield the terminal's output from now on until its shell has ended.

        Raises the error if the stream breaks; the terminal may then be attached to again. For one reader only. If the
        output is not read, the shell blocks.
        """
        while (chunk := await self._queue.get()) is not None:
            yield chunk
        if self._error is not None:
            with self._terminals.transport.translate_errors():
                raise self._error

    async def write(self, data: bytes) -> None:
        """Send input, in the order of the calls."""
        async with self._write_lock:
            await self._terminals.write(self.engine_id, self.pid, data)

    async def resize(self, cols: int, rows: int) -> None:
        await self._terminals.resize(self.engine_id, self.pid, cols, rows)

    async def close(self) -> bool:
        """End the shell. Returns False if it had ended already."""
        ended = await self._terminals.close(self.engine_id, self.pid)
        await self.detach()
        return ended

    async def detach(self) -> None:
        """Disconnect from the terminal. The shell keeps running."""
        if self._watcher is not None:
            await end_tasks(self._watcher)
        if self._handle is not None:
            with contextlib.suppress(Exception):
                await self._handle.disconnect()

    async def receive(self, data: bytes) -> None:
        await self._queue.put(bytes(data))

    def watch(self, handle: AsyncCommandHandle[Any]) -> None:
        self.pid = handle.pid
        self._handle = handle
        self._watcher = asyncio.get_running_loop().create_task(self._wait(handle))

    async def _wait(self, handle: AsyncCommandHandle[Any]) -> None:
        try:
            self.exit_code = (await handle.wait()).exit_code
        except CommandExitException as ended:
            self.exit_code = ended.exit_code
        except Exception as error:
            self._error = error
        await self._queue.put(None)


class Terminals:
    """Terminals of sandboxes. Raises TerminalNotFoundError if the shell has ended. Input is never retried, so that it
    is not typed twice."""

    def __init__(self, transport: EngineTransport) -> None:
        self.transport = transport

    async def open(
        self,
        engine_id: str,
        cols: int,
        rows: int,
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Terminal:
        size = _make_pty_size(cols, rows)
        terminal = Terminal(self, engine_id)

        async def create(handle: SandboxHandle) -> None:
            pty = handle.sandbox.pty
            terminal.watch(
                await pty.create(size, terminal.receive, user=user, cwd=cwd, envs=dict(envs or {}), timeout=0)
            )

        async with _detach_on_error(terminal):
            await self.transport.call_sandbox("open_terminal", engine_id, create, idempotent=False)
        return terminal

    async def attach(self, engine_id: str, pid: int) -> Terminal:
        terminal = Terminal(self, engine_id)

        async def connect(handle: SandboxHandle) -> None:
            with _translate_not_found():
                terminal.watch(await handle.sandbox.pty.connect(pid, terminal.receive, timeout=0))

        async with _detach_on_error(terminal):
            await self.transport.call_sandbox("attach_terminal", engine_id, connect, idempotent=True)
        return terminal

    async def write(self, engine_id: str, pid: int, data: bytes) -> None:
        async def send(handle: SandboxHandle) -> None:
            with _translate_not_found():
                await handle.sandbox.pty.send_stdin(pid, data)

        await self.transport.call_sandbox("write_terminal", engine_id, send, idempotent=False)

    async def resize(self, engine_id: str, pid: int, cols: int, rows: int) -> None:
        size = _make_pty_size(cols, rows)

        async def resize(handle: SandboxHandle) -> None:
            with _translate_not_found():
                await handle.sandbox.pty.resize(pid, size)

        await self.transport.call_sandbox("resize_terminal", engine_id, resize, idempotent=True)

    async def close(self, engine_id: str, pid: int) -> bool:
        """End the shell with SIGKILL; its children get SIGHUP. Returns False if it had ended already. Idempotent."""
        return await self.transport.call_sandbox(
            "close_terminal", engine_id, lambda handle: handle.sandbox.pty.kill(pid), idempotent=True
        )


@contextlib.asynccontextmanager
async def _detach_on_error(terminal: Terminal) -> AsyncIterator[None]:
    """Detach on an error or cancellation, because the SDK may have attached meanwhile."""
    try:
        yield
    except BaseException:
        await terminal.detach()
        raise


@contextlib.contextmanager
def _translate_not_found() -> Any:
    """Raise TerminalNotFoundError where the SDK reports that something was not found."""
    try:
        yield
    except NotFoundException as error:
        raise TerminalNotFoundError from error


def _make_pty_size(cols: int, rows: int) -> PtySize:
    if not (1 <= cols <= SIDE_LIMIT and 1 <= rows <= SIDE_LIMIT):
        raise InvalidInputError(f"A terminal must have 1 to {SIDE_LIMIT} columns and rows, not {cols} and {rows}.")
    return PtySize(rows=rows, cols=cols)
