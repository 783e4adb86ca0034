"""Servers for TLS whose connections count towards the limits before their handshake, which may not take long."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

import uvicorn

from sandyard.kit import connections
from sandyard.kit.connections import Connections
from sandyard.kit.logging import get_logger
from sandyard.kit.server import HEAD_SECONDS, BoundedProtocol, Server

log = get_logger(__name__)

HANDSHAKE_SECONDS = HEAD_SECONDS
"""How long a client may take for the handshake."""
ACCEPT_BATCH = 32
"""How many connections are accepted before the event loop does something else."""
ACCEPT_PAUSE_SECONDS = 0.5
"""How long no connection is accepted after the process has run out of descriptors or memory for one."""


class Handshake:
    """A connection whose handshake is in progress. At a limit, the one that began first is dropped."""

    authenticated = False

    def __init__(self, client: tuple[str, int] | None, counted: Connections) -> None:
        self.client = client
        self.task: asyncio.Task[None] | None = None
        self._counted = counted

    def can_be_dropped(self) -> bool:
        return True

    def drop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def release(self) -> None:
        """Stop counting the connection as one in its handshake. Idempotent."""
        self._counted.remove(self)


MakeProtocol = Callable[[Handshake], asyncio.Protocol]


class TlsAcceptor:
    """Accepts connections and completes their handshakes. Those of asyncio are not limited before they are complete: clients that
    begin none, or never finish it, could then take all descriptors of the process."""

    def __init__(
        self, context: ssl.SSLContext, make_protocol: MakeProtocol, counted: Connections | None = None
    ) -> None:
        """`counted` limits connections in their handshake; by default, they count like all others of the process."""
        self._context = context
        self._make_protocol = make_protocol
        self._counted = counted
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []

    def start(self, listeners: Sequence[socket.socket]) -> None:
        self._listeners = list(listeners)
        for listener in self._listeners:
            self._start_accepting(listener)

    def stop(self) -> None:
        """Accept no more connections, and drop those in their handshake."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener)
        self._listeners = []
        for task in self._tasks:
            task.cancel()

    def _start_accepting(self, listener: socket.socket) -> None:
        if listener in self._listeners:  # otherwise the server is stopping
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPT_BATCH):
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.warning("connections_not_accepted", reason=error.strerror)
                loop.remove_reader(listener)
                loop.call_later(ACCEPT_PAUSE_SECONDS, self._start_accepting, listener)
                return
            self._begin(connection, address)

    def _begin(self, connection: socket.socket, address: Any) -> None:
        counted = connections.CONNECTIONS if self._counted is None else self._counted
        handshake = Handshake((str(address[0]), int(address[1])), counted)
        if not counted.add(handshake):
            connection.close()  # nothing can be said to a client that expects TLS
            return
        task = asyncio.get_running_loop().create_task(self._shake_hands(connection, handshake))
        handshake.task = task
        self._tasks.add(task)

        def finish(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            handshake.release()
            if done.cancelled() or done.exception() is not None:
                connection.close()
                if not done.cancelled():
                    log.error("handshake_crashed", exc=done.exception())

        task.add_done_callback(finish)

    async def _shake_hands(self, connection: socket.socket, handshake: Handshake) -> None:
        """Complete the handshake. The connection is then served by its protocol."""
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make_protocol(handshake),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError:  # also what is wrong with the handshake
            connection.close()


class TlsServer(Server):
    """uvicorn with its own listener: uvicorn only learns of a connection after its handshake. The protocol of the configuration must be
    a `BoundedProtocol`."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext) -> None:
        super().__init__(config)
        self._acceptor = TlsAcceptor(context, self._make_protocol)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._acceptor.start(sockets or [])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptor.stop()
        await super().shutdown(sockets)

    def _make_protocol(self, handshake: Handshake) -> BoundedProtocol:
        arguments = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        protocol = cast("BoundedProtocol", self.config.http_protocol_class(**arguments))
        protocol.handshake = handshake
        return protocol
