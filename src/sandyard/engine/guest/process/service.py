"""The Connect service `process.Process`."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import signal
from collections import deque
from typing import Any

from sandyard.engine.guest import kernel
from sandyard.engine.guest.process.input import InputClosedError, InputFullError
from sandyard.engine.guest.process.launcher import Launcher, StartRequest
from sandyard.engine.guest.process.output import Chunk, Reader
from sandyard.engine.guest.process.process import Process
from sandyard.engine.guest.process.registry import EndedProcess, Registry
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.wire import connect, protojson
from sandyard.engine.guest.wire.connect import RpcError, ServerStream, make_envelope
from sandyard.engine.guest.wire.connection import PeerGoneError
from sandyard.engine.guest.wire.http1 import Exchange, Request

_KEEPALIVE = b'{"event":{"keepalive":{}}}'
_BATCH_BYTES = 256 << 10
_CHUNK_HEADER_BYTES = 8  # approximate size of the HTTP chunk header before the events
_KILL_TIMEOUT = 1.0
_KILL_POLL_INTERVAL = 0.001
# Sending the start event at once would wake all programs up to the client while a short command needs the same cores.
_START_DELAY = 0.003
_SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM, 9: signal.SIGKILL, 15: signal.SIGTERM}

Message = protojson.Message


class ProcessService:
    def __init__(self, sandbox: Sandbox, registry: Registry, launcher: Launcher) -> None:
        self._sandbox = sandbox
        self._registry = registry
        self._launcher = launcher

    # server streams --------------------------------------------------------------------------------------------------

    async def start(self, exchange: Exchange, message: Message) -> None:
        """Start a process and follow it. It is killed at the call's deadline, not when the client disconnects."""
        user = self._sandbox.get_rpc_user(exchange.request)
        limit = connect.parse_timeout(exchange.request)
        process = self._launcher.start(StartRequest.parse(message), user)
        if limit is not None:
            process.expire_after(limit)
        await self._follow(exchange, process, limit)

    async def connect(self, exchange: Exchange, message: Message) -> None:
        """Follow a process, from the first event that was not certainly delivered to a client."""
        limit = connect.parse_timeout(exchange.request)
        await self._follow(exchange, self._registry.find_followable(message), limit)

    async def _follow(self, exchange: Exchange, process: Process | EndedProcess, limit: float | None) -> None:
        """Send the process's output and end. What was not certainly delivered is kept for the next client."""
        pid, output = process.pid, process.output
        del process  # so that it is freed when it has ended, although a client may still read its output
        stream = ServerStream(exchange, _KEEPALIVE, limit)
        reader = output.attach(stream.wake)
        # With receipts: the chunks that were sent, and the number of bytes sent up to the end of each.
        unconfirmed: deque[tuple[int, Chunk]] = deque()
        try:
            await stream.begin(b'{"event":{"start":{"pid":%d}}}' % pid, _START_DELAY)
            while True:
                stream.check()
                _drop_confirmed(exchange, unconfirmed)
                chunks = _take_batch(reader)
                events = [_encode_event(chunk) for chunk in chunks]
                end = reader.end
                if exchange.uses_receipts:
                    offset = exchange.sent + stream.opening_size
                    for chunk, event in zip(chunks, events, strict=True):
                        offset += len(event)
                        unconfirmed.append((offset, chunk))
                try:
                    if end is not None:
                        events.append(make_envelope(protojson.render({"event": {"end": end.render()}})))
                        await stream.end(b"".join(events))
                        self._registry.mark_seen(pid, output)
                        return
                    if events:
                        await stream.send(b"".join(events))
                except PeerGoneError as gone:
                    if not exchange.uses_receipts:
                        reader.give_back(_list_undelivered(chunks, events, gone.sent))
                    raise
                if not events:
                    await stream.wait()
        finally:
            exchange.take_last_receipts()
            _drop_confirmed(exchange, unconfirmed)
            reader.give_back([chunk for _, chunk in unconfirmed])
            output.detach(reader)
            stream.release()

    # unary calls -----------------------------------------------------------------------------------------------------

    async def list(self, _request: Request, _message: Message) -> Message:
        processes: list[dict[str, Any]] = []
        for process in self._registry:
            info: dict[str, Any] = {"config": process.config, "pid": process.pid}
            if process.tag is not None:
                info["tag"] = process.tag
            processes.append(info)
        return {"processes": processes}

    async def update(self, _request: Request, message: Message) -> Message:
        process = self._registry.find(message)
        pty = protojson.get_message(message, "pty")
        if pty is not None:
            if process.terminal is None or process.terminal.closed:
                raise RpcError("internal", "error resizing tty: tty not assigned to process")
            size = protojson.get_message(pty, "size") or {}
            process.resize(protojson.get_uint32(size, "cols"), protojson.get_uint32(size, "rows"))
            if self._sandbox.config.signal_resize:
                kernel.signal_session(process.pid, signal.SIGWINCH)
        return {}

    async def send_input(self, request: Request, message: Message) -> Message:
        process = self._registry.find(message)
        try:
            async with asyncio.timeout(connect.parse_timeout(request)):
                await _write_input(process, protojson.get_message(message, "input") or {})
        except TimeoutError:
            raise RpcError(
                "deadline_exceeded", "the process did not read its input before the deadline of the request"
            ) from None
        return {}

    async def send_signal(self, _request: Request, message: Message) -> Message:
        process = self._registry.find(message)
        wanted = protojson.get_value(message, "signal")
        number = _SIGNALS.get(wanted) if isinstance(wanted, str | int) else None
        if number is None:
            raise RpcError("unimplemented", f"invalid signal: {wanted}")
        try:
            # Killing a shell also kills its children, because clients could not select them afterwards.
            group = number == signal.SIGKILL or protojson.get_flag(message, "descendants")
            process.send_signal(number, group=group)
        except ProcessLookupError:
            raise RpcError("not_found", f"process with pid {process.pid} not found") from None
        if number == signal.SIGKILL:
            # A client that kills a process and then lists processes should find neither it nor its children.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_TIMEOUT):
                    await process.ended.wait()
                    while process.has_group():  # noqa: ASYNC110 - there is no event for the end of another process's child
                        await asyncio.sleep(_KILL_POLL_INTERVAL)
        return {}

    async def close_stdin(self, _request: Request, message: Message) -> Message:
        process = self._registry.find(message)
        if process.terminal is not None:
            raise RpcError("failed_precondition", "cannot close stdin for PTY process — send Ctrl+D (0x04) instead")
        if process.stdin is not None:
            process.stdin.close()
        return {}

    # client streams --------------------------------------------------------------------------------------------------

    async def stream_input(self, exchange: Exchange) -> None:
        """Receive input in order: first the process, then its data, until the client ends the stream."""
        process: Process | None = None
        try:
            async with asyncio.timeout(connect.parse_timeout(exchange.request)):
                async for message in connect.read_messages(exchange.request):
                    start, data = protojson.get_message(message, "start"), protojson.get_message(message, "data")
                    if start is not None:
                        process = self._registry.find(start)
                    elif data is not None:
                        if process is None:
                            raise RpcError(
                                "invalid_argument", "input arrived before a start event selected its process"
                            )
                        await _write_input(process, protojson.get_message(data, "input") or {})
                    elif protojson.get_message(message, "keepalive") is None:
                        raise RpcError("unimplemented", "invalid event type")
        except TimeoutError:
            raise RpcError("deadline_exceeded", "context deadline exceeded") from None
        await connect.reply_client_stream(exchange, {})


def _drop_confirmed(exchange: Exchange, unconfirmed: deque[tuple[int, Chunk]]) -> None:
    """Remove the chunks that the peer has confirmed."""
    while unconfirmed and unconfirmed[0][0] <= exchange.confirmed:
        unconfirmed.popleft()


def _take_batch(reader: Reader) -> list[Chunk]:
    """Take the chunks that are ready, up to a limit of bytes."""
    chunks: list[Chunk] = []
    size = 0
    while size < _BATCH_BYTES:
        chunk = reader.take()
        if chunk is None:
            break
        chunks.append(chunk)
        size += len(chunk[1])
    return chunks


def _encode_event(chunk: Chunk) -> bytes:
    kind, data = chunk
    return make_envelope(b'{"event":{"data":{"%b":"%b"}}}' % (kind.encode(), binascii.b2a_base64(data, newline=False)))


def _list_undelivered(chunks: list[Chunk], events: list[bytes], sent: int) -> list[Chunk]:
    """Return the chunks whose events were not completely accepted by the kernel."""
    end = _CHUNK_HEADER_BYTES
    for index, _chunk in enumerate(chunks):
        end += len(events[index])
        if end > sent:
            return chunks[index:]
    return []


async def _write_input(process: Process, message: Message) -> None:
    if protojson.get_value(message, "pty") is not None:
        what, data, channel = "tty", protojson.get_bytes(message, "pty"), process.terminal
        if channel is None:
            raise RpcError(
                "failed_precondition",
                "error writing to tty: tty not assigned to process — input should be written to the stdin, not the tty",
            )
    elif protojson.get_value(message, "stdin") is not None:
        what, data, channel = "stdin", protojson.get_bytes(message, "stdin"), process.stdin
        if process.terminal is not None:
            raise RpcError(
                "failed_precondition",
                "error writing to stdin: tty assigned to process — input should be written to the pty, not the stdin",
            )
        if channel is None:
            raise RpcError("failed_precondition", "error writing to stdin: stdin not enabled or closed")
    else:
        raise RpcError("unimplemented", "invalid input type")
    try:
        await channel.write(data)
    except InputClosedError:
        raise RpcError("failed_precondition", f"error writing to {what}: {what} not enabled or closed") from None
    except InputFullError:
        raise RpcError("resource_exhausted", f"error writing to {what}: the process does not read its input") from None
