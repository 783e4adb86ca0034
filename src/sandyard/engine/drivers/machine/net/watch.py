"""Kernel notifications about changes by others on this host, delivered in the event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from sandyard.engine.drivers.machine.net.netlink import split_messages

log = logging.getLogger(__name__)

_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1


@dataclass(frozen=True, slots=True)
class Subscription:
    """A multicast group, the message types that matter, and how long to wait for the rest of a burst."""

    protocol: int
    group: int
    types: frozenset[int]
    delay_s: float


ADDRESS_CHANGED = Subscription(socket.NETLINK_ROUTE, 5, frozenset({20, 21}), 0.2)  # RTM_NEWADDR, RTM_DELADDR
RULES_CHANGED = Subscription(12, 7, frozenset({10 << 8 | 2, 10 << 8 | 3}), 0)  # NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN


class Watch:
    """Calls `on_change` shortly after a change: once for a burst, and never while it is still running."""

    def __init__(self, subscription: Subscription, on_change: Callable[[], Awaitable[None]]) -> None:
        self._subscription = subscription
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, subscription.protocol
        )
        try:
            self._socket.bind((0, 0))
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, subscription.group)
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
                if any(kind in self._subscription.types for kind, _, _ in split_messages(self._socket.recv(1 << 16))):
                    self._changed.set()
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: some notifications were lost, so a change may have been among them
            self._changed.set()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._subscription.delay_s)
            self._changed.clear()
            try:
                await self._on_change()
            except Exception:
                log.exception("network_watch_failed")
