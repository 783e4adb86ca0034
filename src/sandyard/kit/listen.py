"""Open a server's listening socket and raise its file descriptor limit before anything else starts."""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import secrets
import socket
import sys
from pathlib import Path

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, SandyardError

BACKLOG = 4096
LISTENER_VARIABLE = "SANDYARD_LISTENER"
FIRST_UNPRIVILEGED_PORT = 1024
"""Ports below this one are reserved for root."""
EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_RANGE, PORT_TRIES = 12_000, 50
"""Look for a free port in a range of this size, at most this many times."""
_TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
WANTED_FILE_LIMIT = 1 << 20
"""A sandbox needs a handful of descriptors and a client one. This leaves room for thousands of each."""


def listen(host: str, port: int, option_prefix: str = "") -> socket.socket:
    """Bind and listen. Raises an error with a readable message if that fails. `option_prefix` is the prefix of the option names in that
    message."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise InvalidInputError(
            f"Cannot resolve {host!r} to listen on it. Choose another --{option_prefix}host."
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # only now the kernel reports whether the port is in use
    except OSError as error:
        listener.close()
        raise _to_error(error, host, port, option_prefix) from None
    listener.setblocking(False)
    return listener


def take_inherited_socket() -> socket.socket | None:
    """Return the listening socket that the parent process opened for this one, whose user may not bind the port. None if there is none."""
    text = os.environ.pop(LISTENER_VARIABLE, None)
    if text is None:
        return None
    listener = socket.socket(fileno=int(text))
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free and unlikely to be taken before it is listened on: it lies below the range that the kernel uses for
    outgoing connections and for port 0. Raises OSError if `host` is not an address of this machine."""
    try:
        first = int(EPHEMERAL_RANGE_FILE.read_text().split()[0])
    except OSError:
        first = 0
    tries = PORT_TRIES if first > 2 * PORT_RANGE else 0
    candidates = [first - PORT_RANGE + secrets.randbelow(PORT_RANGE) for _ in range(tries)]
    for port in (*candidates, 0):  # 0: any port that the kernel chooses
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return int(probe.getsockname()[1])
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def list_listener_owners(port: int) -> set[int]:
    """Return the users of the sockets of this machine that take connections to this port of a loopback address."""
    owners = set()
    for table in _TCP_TABLES:
        for line in _read_lines(table):
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTENING and int(number, 16) == port and _takes_local_connections(address):
                owners.add(int(fields[7]))
    return owners


def _read_lines(table: Path) -> list[str]:
    """Return the lines of a table of the kernel without its heading. There is no table for IPv6 if the kernel does not have it."""
    try:
        return table.read_text().splitlines()[1:]
    except FileNotFoundError:
        return []


def _takes_local_connections(address: str) -> bool:
    """Return whether a socket on this address takes connections to a loopback address.

    `address`: as the kernel writes it, in words of 32 bits with the byte order of the machine.
    """
    words = [bytes.fromhex(address[start : start + 8]) for start in range(0, len(address), 8)]
    parsed = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    return parsed.is_loopback or parsed.is_unspecified


def raise_file_limit(wanted: int = WANTED_FILE_LIMIT) -> int:
    """Raise the limit on open files as far as permitted. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [(max(hard, wanted), max(hard, wanted)), (hard, hard)]  # the first needs privilege
    for new in limits if hard != resource.RLIM_INFINITY else [(hard, hard)]:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, new)
        except (OSError, ValueError):
            continue
        return new[0]
    return soft


def _to_error(error: OSError, host: str, port: int, option_prefix: str) -> SandyardError:
    if error.errno == errno.EADDRINUSE:
        return ConflictError(
            f"Port {port} on {host} is in use by another program. Stop it, or choose another --{option_prefix}port."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ForbiddenError(f"Not permitted to listen on {host}:{port}. Choose a --{option_prefix}port above 1023.")
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidInputError(f"{host} is not an address of this machine. Choose another --{option_prefix}host.")
    return SandyardError(f"Cannot bind {host}:{port}: {error.strerror}.")
