"""The agent's plain HTTP endpoints other than `/files`: health, environment, metrics, `/init`, and connections of the
engine to ports in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import time

from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.connection import Connection
from sandyard.engine.guest.wire.http1 import Exchange, HttpError

_DIAL_TIMEOUT = 5.0
_PIPE_BYTES = 64 << 10
_IDENTITY_FOLDER = "/run/e2b"
_IDENTITY_VARIABLES = frozenset({"E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"})
_VARIABLES_FILE = "/dev/shm/.sandbox-envs.json"  # noqa: S108 (in memory: no snapshot and no template has it)
_NO_STORE = {"Cache-Control": "no-store"}


class AgentEndpoints:
    def __init__(self, loop: Loop, sandbox: Sandbox) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self._last_cpu = (time.monotonic(), 0.0)

    async def health(self, exchange: Exchange) -> None:
        await exchange.reply(204, headers=_NO_STORE)

    async def envs(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, self._sandbox.defaults.env, _NO_STORE)

    async def init(self, exchange: Exchange) -> None:
        """Set defaults for processes started from now on. Variables are added to the existing ones."""
        try:
            message = protojson.parse(await exchange.request.body.read_all(16 << 20))
            env = protojson.get_text_map(message, "envVars")
            user = protojson.get_text(message, "defaultUser")
            workdir = protojson.get_text(message, "defaultWorkdir")
        except protojson.FieldError as error:
            raise HttpError(400, f"invalid request body: {error}") from None
        if any(not key or "=" in key or "\0" in key + value for key, value in env.items()):
            raise HttpError(400, "invalid request body: not an environment variable")
        defaults = self._sandbox.defaults
        defaults.env.update(env)
        self._write_identity()
        self._write_variables()
        defaults.user = user or defaults.user
        defaults.workdir = workdir or defaults.workdir
        await exchange.reply(204, headers=_NO_STORE)

    def _write_identity(self) -> None:
        """Write the sandbox's identity to the files where it is in E2B's own sandboxes. Failures are ignored."""
        folder = self._sandbox.to_host_path(_IDENTITY_FOLDER)
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            for name, value in self._sandbox.defaults.env.items():
                if name in _IDENTITY_VARIABLES:
                    # A program in the sandbox may have put a pipe or a link there since the last time.
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
                    fd = self._sandbox.open_file(f"{folder}/.{name}", flags, 0o644)
                    try:
                        os.write(fd, value.encode())
                    finally:
                        os.close(fd)

    def _write_variables(self) -> None:
        """Write all variables to a file that only root can read, for programs that were started before the variables were
        known, such as the code interpreter of a pooled sandbox. Failures are ignored."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):
            fd = self._sandbox.open_file(self._sandbox.to_host_path(_VARIABLES_FILE), flags, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(self._sandbox.defaults.env, file)

    async def metrics(self, exchange: Exchange) -> None:
        config = self._sandbox.config
        now, used = time.monotonic(), _read_cpu_seconds()
        before, used_before = self._last_cpu
        cores = config.cpu_count or os.cpu_count() or 1
        share = (used - used_before) / max(now - before, 0.001) / cores * 100
        if now - before >= 1:
            self._last_cpu = (now, used)
        memory = _read_memory_info()
        disk = os.statvfs(self._sandbox.to_host_path("/"))
        disk_used = (disk.f_blocks - disk.f_bavail) * disk.f_frsize
        values = {
            "ts": int(time.time()),
            "cpu_count": cores,
            "cpu_used_pct": round(min(max(share, 0.0), 100.0), 2),
            "mem_total": config.memory_bytes or memory["MemTotal"],
            "mem_used": _read_private_bytes(),
            "mem_cache": memory["Cached"] if config.memory_bytes is None else 0,
            "disk_used": disk_used,
            "disk_total": config.disk_bytes or disk.f_blocks * disk.f_frsize,
        }
        await exchange.reply_json(200, values, _NO_STORE)

    async def dial(self, exchange: Exchange) -> None:
        """Open a TCP connection to a port of the sandbox's loopback interface, and send its descriptor with the first byte
        of the response."""
        if not exchange.conn.passes_fds:
            raise HttpError(400, "a descriptor can only be sent over a unix socket; use /_sandyard/relay")
        with await self._open_port(exchange) as peer:
            exchange.started = True
            exchange.conn.send_with_fd(exchange.format_head(200, {"Content-Length": "0"}), peer.fileno())

    async def relay(self, exchange: Exchange) -> None:
        """Open a TCP connection like `dial`, and relay everything between it and the client after the response: for a
        client that cannot receive descriptors."""
        peer = Connection(self._loop, await self._open_port(exchange))
        exchange.started, exchange.keep_alive = True, False
        try:
            await exchange.conn.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
            await self._pipe_both_ways(exchange.conn, peer)
        finally:
            peer.close()

    async def _pipe_both_ways(self, one: Connection, other: Connection) -> None:
        directions = [self._loop.create_task(_pipe(one, other)), self._loop.create_task(_pipe(other, one))]
        try:
            await asyncio.gather(*directions)
        finally:
            # If one direction failed, the other still waits for its descriptor, which must not be closed before.
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _open_port(self, exchange: Exchange) -> socket.socket:
        port = exchange.request.query("port") or ""
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise HttpError(400, "port: not a port number")
        peer = await self._dial(int(port))
        if peer is None:
            raise HttpError(502, f"port {port} is not open")
        return peer

    async def _dial(self, port: int) -> socket.socket | None:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                peer = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError:
                continue
            try:
                async with asyncio.timeout(_DIAL_TIMEOUT):
                    await self._connect(peer, (address, port))
            except (OSError, TimeoutError):
                peer.close()
            else:
                return peer
        return None

    async def _connect(self, peer: socket.socket, address: tuple[str, int]) -> None:
        try:
            peer.connect(address)
        except BlockingIOError:
            connected = asyncio.Event()
            self._loop.add_writer(peer.fileno(), connected.set)
            try:
                await connected.wait()
            finally:
                self._loop.remove_writer(peer.fileno())
            code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code)) from None


async def _pipe(source: Connection, target: Connection) -> None:
    """Copy until `source` ends, then tell `target` that nothing more follows."""
    buffer = memoryview(bytearray(_PIPE_BYTES))
    while count := await source.receive_into(buffer, None):
        await target.send(buffer[:count])
    target.end_sending()


def _read_cpu_seconds() -> float:
    """Return the CPU time of all visible processes, and of children that have ended."""
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = gone.ru_utime + gone.ru_stime
    tick = os.sysconf("SC_CLK_TCK")
    for pid in _list_pids():
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def _read_private_bytes() -> int:
    """Return the private memory of all visible processes, without pages of files."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in _list_pids():
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
            total += (int(fields[1]) - int(fields[2])) * page
    return total


def _list_pids() -> list[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _read_memory_info() -> dict[str, int]:
    values = {"MemTotal": 0, "Cached": 0}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="utf-8") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in values:
                values[name] = int(rest.split()[0]) * 1024
    return values
