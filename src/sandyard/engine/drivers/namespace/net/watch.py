"""Kernel notifications about changes by others on this host, delivered in the event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from sandyard.engine.drivers.namespace.net.netlink import split

log = logging.getLogger(__name__)

_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1


@dataclass(frozen=True, slots=True)
class Subscription:
    """A multicast group, the message types that matter, and how long to wait for the rest of a burst."""

    protocol: int
    group: int
    types: frozenset[int]
    settle: float


ADDRESS_CHANGED = Subscription(socket.NETLINK_ROUTE, 5, frozenset({20, 21}), 0.2)  # RTM_NEWADDR, RTM_DELADDR
RULES_CHANGED = Subscription(12, 7, frozenset({10 << 8 | 2, 10 << 8 | 3}), 0)  # NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN


class Watch:
    """Calls `notice` soon after something happened: once for a burst, and never twice at a time."""

    def __init__(self, news: Subscription, notice: Callable[[], Awaitable[None]]) -> None:
        self._news = news
        self._notice = notice
        self._happened = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, news.protocol
        )
        try:
            self._socket.bind((0, 0))
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, news.group)
        except OSError:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _drain(self) -> None:
        try:
            while True:
                if any(kind in self._news.types for kind, _, _ in split(self._socket.recv(1 << 16))):
                    self._happened.set()
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: some were lost, so it may have been among them
            self._happened.set()

    async def _run(self) -> None:
        while True:
            await self._happened.wait()
            await asyncio.sleep(self._news.settle)
            self._happened.clear()
            try:
                await self._notice()
            except Exception:
                log.exception("network_watch_failed")
