"""Run the proxy in a separate thread and event loop, so that sandboxes' traffic never delays the engine's own work for
longer than the interpreter's switch interval."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from ipaddress import IPv4Address
from typing import Any, TypeVar

import uvloop

from sandyard.engine.drivers.machine.net.policy import Egress
from sandyard.engine.drivers.machine.net.proxy.listener import Proxy

_T = TypeVar("_T")


class ProxyThread:
    """Runs a Proxy in a separate thread. Its methods are called from the engine's loop and do what those of Proxy do."""

    def __init__(self, make: Callable[[], Proxy]) -> None:
        """`make` is called in the thread."""
        self._make = make
        self._proxy: Proxy
        self._loop: asyncio.AbstractEventLoop
        self._running = threading.Event()
        self._ended: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="sandyard-proxy", daemon=True)
        self.port = 0

    async def open(self, address: IPv4Address) -> None:
        """Open the proxy. Raises OSError."""
        self._thread.start()
        await asyncio.to_thread(self._running.wait)
        try:
            self.port = await self._run_in_thread(self._open(address))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._thread.is_alive():
            await self._run_in_thread(self._close())
            await asyncio.to_thread(self._thread.join)

    async def set_rules(self, index: int, address: IPv4Address, egress: Egress) -> None:
        await self._run_in_thread(self._set_rules(index, address, egress))

    async def remove_client(self, address: IPv4Address) -> None:
        await self._run_in_thread(self._proxy.remove_client(address))

    async def _run_in_thread(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._wait_for_end())

    async def _wait_for_end(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._running.set()
        await self._ended.wait()

    async def _open(self, address: IPv4Address) -> int:
        self._proxy = self._make()
        self._proxy.open(address)
        return self._proxy.port

    async def _set_rules(self, index: int, address: IPv4Address, egress: Egress) -> None:
        self._proxy.set_rules(index, address, egress)

    async def _close(self) -> None:
        try:
            if hasattr(self, "_proxy"):
                await self._proxy.close()
        finally:
            self._ended.set()
