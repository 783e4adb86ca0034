"""A context: runs code and keeps its state for the next execution. It outlives its kernels."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandyard.engine.interpreter import environment, messages, outputs
from sandyard.engine.interpreter.kernel import Kernel
from sandyard.engine.interpreter.messages import Message
from sandyard.engine.interpreter.outputs import Event
from sandyard.engine.interpreter.processes import ForkServer
from sandyard.engine.interpreter.specs import Spec

KEEPALIVE_SECONDS = 5.0
PATIENCE_SECONDS = 2.0
"""How long an interrupted execution may continue before the next one is queued behind it."""


@dataclass(frozen=True, slots=True)
class ContextResources:
    """Resources shared by all contexts."""

    connections: Path
    forks: ForkServer
    sandbox: environment.Sandbox


class Context:
    """A kernel starts with the first execution, or with `warm`. Executions run one at a time, in order."""

    def __init__(self, language: str, spec: Spec, cwd: str, place: ContextResources) -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self._spec = spec
        self._place = place
        self._kernel: Kernel | None = None
        self._known: dict[str, str] = {}  # the sandbox's variables, as the kernel has them
        self._turn = asyncio.Lock()
        self._running: _Execution | None = None

    @property
    def description(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def warm(self) -> None:
        """Start a kernel if there is none. Raises KernelError."""
        async with self._turn:
            await self._ready_kernel()

    async def restart(self) -> None:
        """Start a new kernel; whatever runs in the old one ends with an error. Raises KernelError."""
        self.end("The context was restarted")
        await self.warm()

    def end(self, reason: str = "The context was removed") -> None:
        kernel, self._kernel = self._kernel, None
        if self._running is not None:
            self._running.fail("ContextRestarted", reason)
        if kernel is not None:
            kernel.kill()

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        """Run the code and yield its events as they arrive, until it has ended. Closing the generator early interrupts
        the code. Raises KernelError if no kernel can be started."""
        async with self._turn:
            kernel = await self._ready_kernel()
            execution = self._running = _Execution()
            requests = self._send(kernel, execution, code, variables)
            try:
                async for event in execution.events():
                    yield event
            finally:
                if not execution.ended.is_set():
                    kernel.interrupt()
                    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                        async with asyncio.timeout(PATIENCE_SECONDS):
                            await execution.ended.wait()
                self._running = None
                for request in requests:
                    kernel.forget(request)

    def _send(self, kernel: Kernel, execution: _Execution, code: str, once: Mapping[str, str]) -> list[str]:
        """Send the code with its variables. Our own kernels take them with the request; others get code that sets and
        unsets them before and after it, which they run in that order."""
        now = self._place.sandbox.variables()
        fresh = {name: value for name, value in now.items() if self._known.get(name) != value}
        self._known = dict(now)
        content = messages.execute(code)
        if self._spec.forked:
            wishes = {"env": fresh, "env_once": dict(once)} if fresh or once else {}
            if back := {name: now[name] for name in once if name in now}:
                wishes["env_back"] = back
            return [kernel.request(content, {"sandyard": wishes} if wishes else None, execution.handle_message)]
        language = self._spec.language
        before = environment.make_set_code(language, {**fresh, **once})
        after = environment.make_unset_code(language, once, now)
        requests = []
        if before:
            requests.append(kernel.request(messages.execute(before, silent=True), None, _ignore))
        requests.append(kernel.request(content, None, execution.handle_message))
        if after:
            requests.append(kernel.request(messages.execute(after, silent=True), None, _ignore))
        return requests

    async def _ready_kernel(self) -> Kernel:
        if self._kernel is None or not self._kernel.alive:
            variables = self._place.sandbox.variables()
            kernel = Kernel(self._spec, self._place.connections, lambda: self._on_kernel_exit(kernel))
            await kernel.start(self._place.forks, self.cwd, environment.of_kernels(variables))
            # other kernels get all variables as code, because Java programs look for properties instead of variables
            self._kernel, self._known = kernel, dict(variables) if self._spec.forked else {}
        return self._kernel

    def _on_kernel_exit(self, kernel: Kernel) -> None:
        if self._kernel is kernel:
            self._kernel = None
            if self._running is not None:
                self._running.fail(
                    "KernelDied",
                    "The kernel ended while the code was running: it was killed, or the sandbox ran out of memory. "
                    "Its variables are lost; the next execution starts a new kernel.",
                )


class _Execution:
    """Collects the messages about one request until it has ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._idle = self._failed = False
        self._reply: Mapping[str, Any] | None = None

    def handle_message(self, channel: str, message: Message) -> None:
        if channel == "iopub" and message.kind == "status":
            self._idle |= message.content.get("execution_state") == "idle"
        elif channel == "shell" and message.kind == "execute_reply":
            self._reply = message.content
        elif channel == "iopub" and (event := outputs.event_of(message)) is not None:
            if event["type"] == "error":
                if self._failed:
                    return
                self._failed = True
            self._queue.put_nowait(event)
        if self._idle and self._reply is not None:  # both are needed, in either order
            if self._reply.get("status") != "ok" and not self._failed:
                self._queue.put_nowait(_make_refusal(self._reply))
            self._end()

    def fail(self, name: str, value: str) -> None:
        self._queue.put_nowait(outputs.failure(name, value, f"{name}: {value}"))
        self._end()

    async def events(self) -> AsyncGenerator[Event, None]:
        while True:
            try:
                event = self._queue.get_nowait()
            except asyncio.QueueEmpty:
                try:
                    async with asyncio.timeout(KEEPALIVE_SECONDS):
                        event = await self._queue.get()
                except TimeoutError:
                    event = outputs.KEEPALIVE
            if event is None:
                return
            yield event

    def _end(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            self._queue.put_nowait(None)


def _make_refusal(reply: Mapping[str, Any]) -> Event:
    if reply.get("status") == "error":
        return outputs.error_of(reply)
    return outputs.failure("KeyboardInterrupt", "The execution was interrupted")


def _ignore(channel: str, message: Message) -> None:
    return None
