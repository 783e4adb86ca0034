"""One running kernel: its process and the connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sandyard.engine.interpreter import messages, zmtp
from sandyard.engine.interpreter.messages import BadMessageError, Message, Signer
from sandyard.engine.interpreter.processes import ForkServer, Process, spawn
from sandyard.engine.interpreter.specs import Spec

START_SECONDS = 60.0
RETRY_SECONDS = 1.0
POLL_SECONDS = 0.003
CHANNELS = {"shell": "DEALER", "iopub": "SUB", "control": "DEALER"}

Listener = Callable[[str, Message], None]
"""Called with the channel and the message."""


class KernelError(Exception):
    """The kernel could not be started, or has ended."""


class Kernel:
    """`on_end` is called once when the process has ended for any reason."""

    def __init__(self, spec: Spec, folder: Path, on_end: Callable[[], None]) -> None:
        self.spec = spec
        self.id = uuid.uuid4().hex
        self._folder = folder
        self._on_end = on_end
        self._signer = Signer(key := secrets.token_hex(16))
        self._connection = _make_connection_info(spec, folder / self.id, key)
        self._file = folder / f"{self.id}.json"
        self._process: Process | None = None
        self._peers: dict[str, zmtp.Peer] = {}
        self._listeners: dict[str, Listener] = {}

    async def start(self, forks: ForkServer, cwd: str, env: Mapping[str, str]) -> None:
        """Start the kernel and return when it responds. Raises KernelError."""
        self._file.write_text(json.dumps(self._connection))
        environment = {**env, **self.spec.env}
        try:
            async with asyncio.timeout(START_SECONDS):
                if self.spec.forked:
                    pid = await forks.fork(self.spec.forked, self._file, cwd, environment)
                else:
                    argv = [part.replace("{connection_file}", str(self._file)) for part in self.spec.argv]
                    pid = await spawn(argv, cwd, environment)
                self._process = Process(pid, self._on_process_exit)
                await asyncio.gather(*map(self.connect_channel, CHANNELS))
                await self.greet()
                self._require_process()  # it may have ended right after responding, and the end is reported only once
        except (OSError, TimeoutError, KernelError) as error:
            self.kill()
            reason = str(error) or f"it did not answer within {START_SECONDS:g} s"
            raise KernelError(f"The kernel for {self.spec.language.lower()} could not be started: {reason}.") from error
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def request(self, content: Mapping[str, Any], metadata: Mapping[str, Any] | None, listener: Listener) -> str:
        """Run code. `listener` gets all messages about it until `remove_listener`. Return the request's id."""
        return self._send("shell", "execute_request", content, metadata, listener)

    def remove_listener(self, request_id: str) -> None:
        self._listeners.pop(request_id, None)

    def interrupt(self) -> None:
        """Interrupt the running code."""
        if self.spec.interrupt_by_message and self.alive:
            self._send("control", "interrupt_request", {}, None, None)
        elif self._process is not None:
            self._process.interrupt()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        else:
            self._clean_up()

    def _send(
        self,
        channel: str,
        kind: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        listener: Listener | None,
    ) -> str:
        request, frames = self._signer.make_message(kind, content, metadata)
        if listener is not None:
            self._listeners[request] = listener
        self._peers[channel].send(frames)
        return request

    async def connect_channel(self, channel: str) -> None:
        def handle_frames(frames: zmtp.Frames) -> None:
            with contextlib.suppress(BadMessageError):
                message = messages.parse_message(frames)
                if (listener := self._listeners.get(message.parent)) is not None:
                    listener(channel, message)

        address = _get_address(self._connection, channel)
        while True:
            self._require_process()
            with contextlib.suppress(OSError):
                self._peers[channel] = await zmtp.connect(address, CHANNELS[channel], handle_frames)
                return
            await asyncio.sleep(POLL_SECONDS)

    async def greet(self) -> None:
        """Request kernel info until the reply was received on both channels: what a kernel publishes before it has
        processed the subscription is lost."""
        received: dict[str, asyncio.Event] = {"shell": asyncio.Event(), "iopub": asyncio.Event()}

        def listen(channel: str, message: Message) -> None:
            if channel in received:
                received[channel].set()

        request_ids: list[str] = []
        try:
            while not all(event.is_set() for event in received.values()):
                self._require_process()
                request_ids.append(self._send("shell", "kernel_info_request", {}, None, listen))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS if not received["shell"].is_set() else POLL_SECONDS * 10):
                        await asyncio.gather(*(event.wait() for event in received.values()))
        finally:
            for request_id in request_ids:
                self.remove_listener(request_id)

    def _require_process(self) -> None:
        if not self.alive:
            raise KernelError("it ended while it was starting")

    def _on_process_exit(self) -> None:
        self._clean_up()
        self._on_end()

    def _clean_up(self) -> None:
        for peer in self._peers.values():
            peer.close()
        for path in (self._file, *self._folder.glob(f"{self.id}-*")):
            with contextlib.suppress(OSError):
                path.unlink()


def _make_connection_info(spec: Spec, path: Path, key: str) -> dict[str, Any]:
    """Return the connection info: sockets in a folder for Sandyard's own kernels, loopback ports for others, which may
    support nothing else."""
    common = {"key": key, "signature_scheme": "hmac-sha256", "kernel_name": spec.name}
    names = [f"{channel}_port" for channel in ("shell", "iopub", "stdin", "control", "hb")]
    if spec.forked:
        return {**common, "transport": "ipc", "ip": str(path), **{name: number for number, name in enumerate(names, 1)}}
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in names]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        ports = {name: probe.getsockname()[1] for name, probe in zip(names, probes, strict=True)}
    return {**common, "transport": "tcp", "ip": "127.0.0.1", **ports}


def _get_address(connection: Mapping[str, Any], channel: str) -> str | tuple[str, int]:
    port = connection[f"{channel}_port"]
    return f"{connection['ip']}-{port}" if connection["transport"] == "ipc" else (connection["ip"], port)
