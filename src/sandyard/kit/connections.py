"""Limit the number of connections of this process and close connections whose client stops reading."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import struct
from functools import lru_cache
from itertools import chain
from typing import Protocol

MAX_CONNECTIONS = 10_000
"""Default limit on the number of connections."""
LOOPBACK = "loopback"
WRITE_SECONDS = 60.0
"""How often to check whether a client has read some of the data waiting for it."""
_BYTES_ACKED = 120
"""Offset of `tcpi_bytes_acked` in struct tcp_info."""


class LimitedConnection(Protocol):
    """The properties of a connection that the limits depend on."""

    client: tuple[str, int] | None
    authenticated: bool

    def can_be_dropped(self) -> bool:
        """Return whether nothing would be lost: no request is running and every response is on its way to the client."""
        ...

    def drop(self) -> None: ...


@lru_cache(maxsize=4096)
def get_address_group(host: str) -> str:
    """Return the group of clients that share a limit: this machine, one IPv4 address or one IPv6 network (/64)."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return LOOPBACK  # a Unix socket
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return LOOPBACK
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class Connections:
    """The open connections. At a limit, the connection that has been idle longest is dropped. Unauthenticated connections are dropped first.

    There are at most `limit` connections, and no more than a third of the files that this process may open: a request may need a second
    descriptor for its sandbox, and the rest is for everything else. One address may have a quarter of the connections. Clients on
    this machine (the platform, SDKs, a reverse proxy) share three quarters, whichever loopback address they use.
    """

    def __init__(self, limit: int = MAX_CONNECTIONS, limit_per_address: int = 0) -> None:
        self.limit = limit
        self.limit_per_address = limit_per_address
        self._groups: dict[LimitedConnection, str] = {}
        self._counts: dict[str, int] = {}
        self._idle_strangers: dict[LimitedConnection, None] = {}  # ordered by when they became idle
        self._idle_authenticated: dict[LimitedConnection, None] = {}

    def configure(self, limit: int, limit_per_address: int) -> None:
        """Set the limits. `limit_per_address` 0 means a quarter of all."""
        self.limit, self.limit_per_address = limit, limit_per_address

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, connection: LimitedConnection) -> bool:
        """Register a new connection as idle. Return False if there is no room and no other connection can be dropped."""
        group = get_address_group(connection.client[0] if connection.client else "")
        limit = self._get_limit()
        if self._counts.get(group, 0) >= self._get_group_limit(group, limit):
            has_room = self._make_room(group)
        else:
            has_room = len(self._groups) < limit or self._make_room(None)
        if not has_room:
            return False
        self._groups[connection] = group
        self._counts[group] = self._counts.get(group, 0) + 1
        self._idle_strangers[connection] = None
        return True

    def remove(self, connection: LimitedConnection) -> None:
        """Remove a connection. Idempotent."""
        self.mark_busy(connection)
        group = self._groups.pop(connection, None)
        if group is not None:
            self._counts[group] -= 1
            if not self._counts[group]:
                del self._counts[group]

    def mark_busy(self, connection: LimitedConnection) -> None:
        """Protect a connection from being dropped, because it serves a request."""
        self._idle_strangers.pop(connection, None)
        self._idle_authenticated.pop(connection, None)

    def mark_idle(self, connection: LimitedConnection) -> None:
        """Allow a connection to be dropped, because it serves no request."""
        if connection in self._groups:
            (self._idle_authenticated if connection.authenticated else self._idle_strangers)[connection] = None

    def _get_limit(self) -> int:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.limit if files == resource.RLIM_INFINITY else max(1, min(self.limit, files // 3))

    def _get_group_limit(self, group: str, limit: int) -> int:
        if group == LOOPBACK:
            return max(1, limit * 3 // 4)
        return min(self.limit_per_address or max(1, limit // 4), limit)

    def _make_room(self, group: str | None) -> bool:
        for connection in chain(self._idle_strangers, self._idle_authenticated):
            if (group is None or self._groups[connection] == group) and connection.can_be_dropped():
                self.remove(connection)
                connection.drop()
                return True
        return False


CONNECTIONS = Connections()
"""The connections of this process. All its servers share its file descriptors."""


class UnreadWatch:
    """Close a connection whose client stops reading the data waiting for it, between one and two times WRITE_SECONDS after `start`.

    Progress is measured by what the client's kernel has acknowledged: a slow reader may consume its kernel's buffer for minutes before this
    process can write again."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._last_progress = 0

    def start(self) -> None:
        """Start watching, because data is waiting to be read. Idempotent."""
        if self._timer is None:
            self._last_progress = self._get_progress()
            self._timer = self._loop.call_later(WRITE_SECONDS, self._check_progress)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_progress(self) -> None:
        self._timer = None
        if not self._transport.get_write_buffer_size():
            return
        if self._get_progress() == self._last_progress:
            self._transport.abort()
        else:
            self.start()

    def _get_progress(self) -> int:
        """Return a number that changes whenever the client has received something."""
        try:
            connection: socket.socket = self._transport.get_extra_info("socket")
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
            return int(struct.unpack_from("=Q", info, _BYTES_ACKED)[0])
        except (AttributeError, OSError, struct.error):  # not TCP, or closed
            return self._transport.get_write_buffer_size()
