"""Check whether a process serves, with a plain GET and without slow imports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

from sandyard.cli.errors import CommandError
from sandyard.kit.listen import free_port

TIMEOUT_SECONDS = 2.0


async def is_healthy(url: str, expected: int) -> bool:
    """Return whether a GET of `url` returns that status within 2 s."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await get_status(url) == expected
    except (OSError, TimeoutError, ValueError):
        return False


async def get_status(url: str) -> int:
    """Return the HTTP status of a GET. Raises OSError if there is no response and ValueError if it is not HTTP."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        version, _, rest = (await reader.readline()).decode("latin-1").partition(" ")
        if not version.startswith("HTTP/"):
            raise ValueError("not HTTP")
        return int(rest[:3])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def choose_port(host: str, port: int, option: str) -> int:
    """Return the port if it is free, or a free one for 0. Raises CommandError if it is taken or the address is not this machine's."""
    try:
        if port == 0:
            return free_port(host)
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise CommandError(f"Cannot bind {host}:{port}: {error.strerror}. Choose another port with {option}.") from None
