"""Hosts whose sandboxes do not exist: real host services, one driver that only counts, and agents that agree to everything.

`python -m bench.simulated_hosts FOLDER` runs all of them in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from sandyard.engine.contract import Capabilities, Condition, Handle, Isolation, Layers, Room, Spec, Stats
from sandyard.engine.hosting import server
from sandyard.engine.hosts.authority import HostAuthority
from sandyard.engine.hosts.directory import HostDetails, Hosts
from sandyard.engine.hosts.enrollment import JoinResponse
from sandyard.engine.hosts.identity import HostIdentity, HostRegistration, HostServerTls
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.listen import free_port, listen, raise_file_limit

MB = 1 << 20
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
_OK = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"


def register(data_dir: Path, count: int) -> Path:
    """Register hosts in the data directory of an engine that does not run yet. Return the folder with their identities."""
    folder = data_dir.with_name("hosts")
    data = DataDir(data_dir)
    data.prepare()
    database = Database(data.database)
    database.open()
    try:
        authority = HostAuthority.load(data.hosts_authority)
        hosts = Hosts(database, authority)
        for number in range(count):
            _register(HostIdentity(folder / f"h{number:02}"), hosts, authority)
    finally:
        asyncio.run(_close(database))
    return folder


async def _close(database: Database) -> None:
    await database.flush()
    database.close()


def _register(identity: HostIdentity, hosts: Hosts, authority: HostAuthority) -> None:
    identity.prepare_certificate_request()
    details = HostDetails(identity.folder.parent.name, "127.0.0.1", free_port(), {})
    record, certificate = hosts.register(identity.load_key().public_key(), details, lambda: None)
    registration = HostRegistration(record.id, record.name, "127.0.0.1:1", record.port)
    identity.store(registration, JoinResponse(record.id, certificate.pem, authority.pem, certificate.expires_at))


class CountingDriver:
    """Implements as much of the driver contract as creating and listing sandboxes needs."""

    name = "counting"
    hairpin = None
    capabilities = Capabilities(
        freeze=True,
        suspend=frozenset(),
        memory_fork=frozenset(),
        live_copy="cow",
        limits=frozenset(("memory", "cpu", "pids", "disk")),
        egress=True,
        isolation=frozenset((Isolation.NAMESPACE,)),
        containers=frozenset(),
    )
    _stats = Stats(1.5, 2, 20 * MB, 4 * MB, 512 * MB, 8 * MB, 4096 * MB)

    def __init__(self) -> None:
        self._forever = asyncio.Event()
        self.agents: set[asyncio.Task[None]] = set()

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        return {handle.id: Condition.RUNNING for handle in keep}

    async def close(self) -> None: ...

    def find_layers(self, layers: Layers) -> Layers:
        return tuple("/" for _ in layers)

    def get_room(self) -> Room:
        return Room(64 << 30, 500 << 30, "/")

    async def wait_for_failure(self) -> str:
        await self._forever.wait()
        return ""

    async def wait_for_exit(self, handle: Handle) -> str:
        return await self.wait_for_failure()

    async def create(self, spec: Spec) -> Handle:
        # as much as the driver of a machine stores
        life = {"pid": 12345, "start": 123456789, "slot": 17, "cgroup": f"/sandyard-1a2b3c/{spec.id}"}
        return Handle(spec.id, self.name, {"life": life, "layers": list(spec.layers), "uid": 1_000_000})

    async def get_condition(self, handle: Handle) -> Condition:
        return Condition.RUNNING

    async def connect(self, handle: Handle, port: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        task = asyncio.get_running_loop().create_task(_agree(ours))
        self.agents.add(task)
        task.add_done_callback(self.agents.discard)
        return theirs

    async def kill(self, handle: Handle) -> None: ...

    async def get_stats(self, handle: Handle) -> Stats:
        return self._stats

    async def take_denied(self, handle: Handle) -> Collection[Any]:
        return ()


async def _agree(connection: socket.socket) -> None:
    """Answer every request with 204, as an agent would answer the settings of its sandbox."""
    reader, writer = await asyncio.open_connection(sock=connection)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(_OK)
    writer.close()


async def serve(identities: Sequence[HostIdentity]) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        for identity in identities:
            joined = identity.get()
            settings = EngineSettings(driver="fake", data_dir=identity.folder.parent, disk_reserve_mb=0)
            service = server.make_service(joined.id, CountingDriver(), settings)  # type: ignore[arg-type]
            stack.push_async_callback(service.close)
            tls = HostServerTls(identity).context
            await stack.enter_async_context(server.HostServer(service, listen("127.0.0.1", joined.port), tls))
        print(json.dumps({"pid": os.getpid()}), flush=True)
        await stopping.wait()


if __name__ == "__main__":
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve([HostIdentity(path) for path in sorted(Path(sys.argv[1]).iterdir())]))
