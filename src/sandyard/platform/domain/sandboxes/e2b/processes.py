"""A process of the platform in a sandbox: the one way to run a program there and to read its output."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from e2b import AsyncCommandHandle, CommandExitException

from sandyard.kit.errors import drop_traceback
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b.errors import SandboxUnreachableError
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

_QUEUE = 32
"""Maximum number of pieces of output that were received and not read. With more, the program has to wait."""
_END_S = 5.0
"""Time limit to disconnect from a process, and to kill it."""


class GuestProcess:
    """One run of a shell line in a sandbox, without a time limit. Disconnecting from it does not end it."""

    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport
        self._output: asyncio.Queue[str | None] = asyncio.Queue(_QUEUE)
        self._command: AsyncCommandHandle[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self.ended = False

    @property
    def pid(self) -> int | None:
        """Return the process id of the shell. None if it has not started."""
        return None if self._command is None else int(self._command.pid)

    async def start(
        self,
        handle: SandboxHandle,
        line: str,
        *,
        envs: Mapping[str, str],
        user: str | None = None,
        stdin: bool = False,
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        self._command = await handle.sandbox.commands.run(
            line,
            background=True,
            timeout=0,
            user=user,
            envs=dict(envs),
            stdin=stdin or None,  # old versions of envd refuse False
            on_stdout=self.receive,
            on_stderr=on_stderr,
            retain_output=False,
        )
        self._watcher = asyncio.get_running_loop().create_task(self._wait(self._command))

    async def receive(self, text: str) -> None:
        """Add output for `read`."""
        await self._output.put(text)

    async def read(self, silence_s: float | None = None) -> str | None:
        """Return the next output, and None at the end.

        Raises EngineError if the connection breaks, and SandboxUnreachableError if there is no output for `silence_s`.
        """
        try:
            async with asyncio.timeout(silence_s):
                text = await self._output.get()
        except TimeoutError:
            raise SandboxUnreachableError("The sandbox did not respond in time.") from None
        if text is None and self._error is not None:
            error, self._error = self._error, None
            try:
                with self._transport.translate_errors():
                    raise error
            finally:
                del error  # its traceback refers to this frame
        return text

    async def write(self, text: str, timeout_s: float) -> None:
        """Send input. Not retried. Raises exceptions of the SDK; pass them to `fail`."""
        assert self._command is not None, "the process has not started"
        await self._command.send_stdin(text, request_timeout=timeout_s)

    async def fail(self, error: BaseException) -> None:
        """Make `read` raise this error after the output received so far."""
        self._error = self._error or drop_traceback(error)
        await self._output.put(None)

    async def disconnect(self, *, patience_s: float = 0.0) -> None:
        """Stop reading, and drop unread output. If the process ends within `patience_s`, its connection can be reused."""
        watcher, self._watcher = self._watcher, None  # a cancelled task keeps its frames
        if watcher is not None:
            await asyncio.wait([watcher], timeout=patience_s)
            await end_tasks(watcher)
        if self._command is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_END_S):
                    await self._command.disconnect()
        self._output = asyncio.Queue(_QUEUE)

    async def kill(self) -> None:
        """End the shell with SIGKILL, if it is running."""
        if self._command is not None and not self.ended:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_END_S):
                    await self._command.kill()

    async def _wait(self, command: AsyncCommandHandle[None]) -> None:
        try:
            await command.wait()
        except CommandExitException:
            self.ended = True
        except Exception as error:
            await self.fail(error)
            return
        else:
            self.ended = True
        await self._output.put(None)
