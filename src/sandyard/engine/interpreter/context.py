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
INTERRUPT_SECONDS = 2.0
"""How long an interrupted execution may continue before the next one is queued behind it."""


@dataclass(frozen=True, slots=True)
class ContextResources:
    """Resources shared by all contexts."""

    connections: Path
    forks: ForkServer
    sandbox: environment.Sandbox


class Context:
    """A kernel starts with the first execution, or with `start_kernel`. Executions run one at a time, in order."""

    def __init__(self, language: str, spec: Spec, cwd: str, resources: ContextResources) -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self._spec = spec
        self._resources = resources
        self._kernel: Kernel | None = None
        self._kernel_variables: dict[str, str] = {}  # the sandbox's variables, as the kernel has them
        self._lock = asyncio.Lock()
        self._running: _Execution | None = None

    @property
    def description(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def start_kernel(self) -> None:
        """Start a kernel if there is none. Raises KernelError."""
        async with self._lock:
            await self._ensure_kernel()

    async def restart(self) -> None:
        """Start a new kernel. An execution in the old one ends with an error. Raises KernelError."""
        self.end("The context was restarted")
        await self.start_kernel()

    def end(self, reason: str = "The context was removed") -> None:
        """Kill the kernel. An execution in progress ends with an error and this reason."""
        kernel, self._kernel = self._kernel, None
        if self._running is not None:
            self._running.fail("ContextRestarted", reason)
        if kernel is not None:
            kernel.kill()

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        """Run the code and yield its events as they arrive, until it has ended. Closing the generator early interrupts
        the code. Raises KernelError if no kernel can be started."""
        async with self._lock:
            kernel = await self._ensure_kernel()
            execution = self._running = _Execution()
            request_ids = self._send(kernel, execution, code, variables)
            try:
                async for event in execution.events():
                    yield event
            finally:
                if not execution.ended.is_set():
                    kernel.interrupt()
                    with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                        async with asyncio.timeout(INTERRUPT_SECONDS):
                            await execution.ended.wait()
                self._running = None
                for request_id in request_ids:
                    kernel.remove_listener(request_id)

    def _send(self, kernel: Kernel, execution: _Execution, code: str, temporary: Mapping[str, str]) -> list[str]:
        """Send the code with its variables. Sandyard's own kernels take them with the request; others get code that
        sets and unsets them before and after it, which they run in that order. `temporary` variables apply to this
        execution only."""
        current = self._resources.sandbox.read_variables()
        changed = {name: value for name, value in current.items() if self._kernel_variables.get(name) != value}
        self._kernel_variables = dict(current)
        content = messages.make_execute_content(code)
        if self._spec.forked:
            env_metadata = {"env": changed, "env_once": dict(temporary)} if changed or temporary else {}
            if restored := {name: current[name] for name in temporary if name in current}:
                env_metadata["env_back"] = restored
            return [
                kernel.request(content, {"sandyard": env_metadata} if env_metadata else None, execution.handle_message)
            ]
        language = self._spec.language
        before = environment.make_set_code(language, {**changed, **temporary})
        after = environment.make_unset_code(language, temporary, current)
        request_ids = []
        if before:
            request_ids.append(kernel.request(messages.make_execute_content(before, silent=True), None, _ignore))
        request_ids.append(kernel.request(content, None, execution.handle_message))
        if after:
            request_ids.append(kernel.request(messages.make_execute_content(after, silent=True), None, _ignore))
        return request_ids

    async def _ensure_kernel(self) -> Kernel:
        if self._kernel is None or not self._kernel.alive:
            variables = self._resources.sandbox.read_variables()
            kernel = Kernel(self._spec, self._resources.connections, lambda: self._on_kernel_exit(kernel))
            await kernel.start(self._resources.forks, self.cwd, environment.make_kernel_environment(variables))
            # other kernels get all variables as code, because Java programs look for properties instead of variables
            self._kernel, self._kernel_variables = kernel, dict(variables) if self._spec.forked else {}
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
        elif channel == "iopub" and (event := outputs.make_event(message)) is not None:
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
        self._queue.put_nowait(outputs.make_error(name, value, f"{name}: {value}"))
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
        return outputs.parse_error(reply)
    return outputs.make_error("KeyboardInterrupt", "The execution was interrupted")


def _ignore(channel: str, message: Message) -> None:
    return None
