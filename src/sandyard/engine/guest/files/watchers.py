"""The watchers of the Connect service `filesystem.Filesystem`: streams, and watchers that clients poll."""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections import deque

from sandyard.engine.guest import kernel
from sandyard.engine.guest.files.watch import Event, Watch, is_directory
from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.sandbox import PathError, Sandbox
from sandyard.engine.guest.wire import connect, protojson
from sandyard.engine.guest.wire.connect import RpcError, ServerStream, make_envelope
from sandyard.engine.guest.wire.http1 import Exchange, Request

_KEEPALIVE = b'{"keepalive":{}}'
EVENTS_LIMIT = 100_000

Message = protojson.Message


class _Collector:
    """Events that a client has not fetched yet. If there are too many, the watcher fails, so that a client that never
    fetches them does not use up the agent's memory."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.error: str | None = None
        self.watch: Watch | None = None
        self.on_change = _ignore

    def add(self, event: Event) -> None:
        if len(self.events) >= EVENTS_LIMIT:
            if self.watch is not None:
                self.watch.close()
            self.fail(f"watcher error: more than {EVENTS_LIMIT} events were not fetched")
            return
        self.events.append(event)
        self.on_change()

    def fail(self, reason: str) -> None:
        self.error = reason
        self.on_change()

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()


class Watchers:
    def __init__(self, loop: Loop, sandbox: Sandbox) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self._watchers: dict[str, _Collector] = {}

    async def watch_dir(self, exchange: Exchange, message: Message) -> None:
        """Stream the events of a directory until the client disconnects or its deadline."""
        limit = connect.parse_timeout(exchange.request)
        collector = self._open(exchange.request, message)
        stream = ServerStream(exchange, _KEEPALIVE, limit)
        collector.on_change = stream.wake
        try:
            await stream.begin(b'{"start":{}}')
            while True:
                stream.check()
                pending = [collector.events.popleft() for _ in range(min(len(collector.events), 512))]
                if pending:
                    events = [make_envelope(protojson.render({"filesystem": event})) for event in pending]
                    await stream.send(b"".join(events))
                elif collector.error is not None:
                    raise RpcError("internal", collector.error)
                else:
                    await stream.wait()
        finally:
            collector.close()
            stream.release()

    async def create(self, request: Request, message: Message) -> Message:
        collector = self._open(request, message)
        watcher_id = "w" + secrets.token_hex(10)
        self._watchers[watcher_id] = collector
        return {"watcherId": watcher_id}

    async def events(self, _request: Request, message: Message) -> Message:
        """Return the events since the last call."""
        collector = self._find(message)
        await asyncio.sleep(0)  # lets the loop read the events that the kernel already has
        if collector.error is not None and not collector.events:
            raise RpcError("internal", collector.error)
        events = list(collector.events)
        collector.events.clear()
        return {"events": events}

    async def remove(self, _request: Request, message: Message) -> Message:
        self._find(message).close()
        del self._watchers[protojson.get_text(message, "watcherId")]
        return {}

    def _find(self, message: Message) -> _Collector:
        watcher_id = protojson.get_text(message, "watcherId")
        try:
            return self._watchers[watcher_id]
        except KeyError:
            raise RpcError("not_found", f"watcher with id {watcher_id} not found") from None

    def _open(self, request: Request, message: Message) -> _Collector:
        user = self._sandbox.get_rpc_user(request)
        try:
            path = self._sandbox.resolve(protojson.get_text(message, "path"), user)
        except PathError as error:
            raise RpcError("invalid_argument", str(error)) from None
        host = self._sandbox.to_host_path(path)
        collector = _Collector()
        try:
            if not is_directory(host):
                raise RpcError("invalid_argument", f"path {path} not a directory")
            if not protojson.get_flag(message, "allowNetworkMounts") and kernel.is_on_network_filesystem(host):
                raise RpcError("invalid_argument", f"cannot watch path on network filesystem: {path}")
            collector.watch = Watch(
                self._loop,
                self._sandbox,
                path,
                recursive=protojson.get_flag(message, "recursive"),
                include_entry=protojson.get_flag(message, "includeEntry"),
                on_event=collector.add,
                on_error=collector.fail,
            )
        except FileNotFoundError:
            raise RpcError("not_found", f"path {path} not found") from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOSPC):
                raise RpcError(
                    "resource_exhausted",
                    "the kernel's limit of watchers is reached: remove a watcher, or watch without recursive",
                ) from None
            raise RpcError("internal", f"error adding path {path} to watcher: {error.strerror}") from None
        return collector


def _ignore() -> None:
    pass
