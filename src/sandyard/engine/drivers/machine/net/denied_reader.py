"""Reads the blocked connections of all sandboxes, which the kernel keeps in one set.

Every user may ask for those of a sandbox, as often as they like. Reading must not delay policies, so it has its own
thread and netlink socket, and callers that wait at the same time share one read.
"""

from __future__ import annotations

import asyncio
import errno
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address

from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.nft import NETFILTER, NftError, stream_keys

_PROTOCOLS = {6: "tcp", 17: "udp"}
_FAST_READ_S, _PAUSE_FACTOR, _MAX_PAUSE_S = 0.01, 9, 1.0
"""After a read that took longer than the first, a pause of that many times its duration: reading takes about a tenth of
the time, also if there are many elements and many callers."""


@dataclass(slots=True)
class DeniedConnection:
    """A blocked connection of a sandbox: the rest of the set's key, which is parsed when it is needed."""

    key: bytes

    @property
    def to(self) -> str:
        return str(IPv4Address(self.key[:4]))

    @property
    def protocol(self) -> str:
        return _PROTOCOLS.get(self.key[4], str(self.key[4]))

    @property
    def port(self) -> int:
        return int.from_bytes(self.key[8:10])


Denied = dict[IPv4Address, list[DeniedConnection]]
"""Blocked connections by the address of the sandbox."""


class DeniedReader:
    """Reads the set of one table. Belongs to one event loop and reads in the network namespace of its thread."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandyard-denied")
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[Denied] | None = None
        self._tasks: set[asyncio.Task[Denied]] = set()
        self._not_before = 0.0

    async def read(self) -> Denied:
        """Return what the set contains at some moment after this call. Callers share the result: whoever reports
        connections takes them out. Raises NftError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_next())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """Wait for reads in progress."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    async def _read_next(self) -> Denied:
        loop = asyncio.get_running_loop()
        async with self._reading:
            await asyncio.sleep(self._not_before - loop.time())
            self._next = None  # for later callers this read may be too early
            start = loop.time()
            try:
                return await loop.run_in_executor(self._thread, self._read)
            except OSError as error:
                if error.errno == errno.ENOENT:  # somebody has flushed the host's rules
                    return {}
                raise NftError(f"could not read the set of blocked connections: {error}") from error
            finally:
                now = loop.time()
                if now - start > _FAST_READ_S:
                    self._not_before = now + min(_PAUSE_FACTOR * (now - start), _MAX_PAUSE_S)

    def _read(self) -> Denied:
        found: defaultdict[bytes, list[DeniedConnection]] = defaultdict(list)
        with Netlink(NETFILTER) as netlink:
            for key in stream_keys(netlink, self._table, "denied"):
                found[key[:4]].append(DeniedConnection(key[4:]))
        return {IPv4Address(address): connections for address, connections in found.items()}
