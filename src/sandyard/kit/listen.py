"""A server's listening socket and its file descriptors: what has to be had before anything else is worth starting."""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import secrets
import socket
from pathlib import Path

from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, SandyardError

BACKLOG = 4096
INHERITED = "SANDYARD_LISTENER"
FIRST_FOR_ALL = 1024
"""Ports below it are root's."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
BELOW, TRIES = 12_000, 50
"""A free port is looked for among so many, so often."""
FILES_WANTED = 1 << 20
"""A sandbox costs a handful of descriptors, a client one: room for thousands of each."""


def listen(host: str, port: int, kind_of: str = "") -> socket.socket:
    """Bind and listen. Raises, in a sentence for a person, what keeps it from doing so. `kind_of` is what its options' names
    begin with."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise InvalidInputError(f"There is no address {host!r} to listen on. Choose another --{kind_of}host.") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # only now does the kernel say whether somebody else listens there
    except OSError as error:
        listener.close()
        raise _reason(error, host, port, kind_of) from None
    listener.setblocking(False)
    return listener


def inherited() -> socket.socket | None:
    """The one that whoever started this process has opened for it, because its user may not."""
    text = os.environ.pop(INHERITED, None)
    if text is None:
        return None
    listener = socket.socket(fileno=int(text))
    listener.set_inheritable(False)
    listener.setblocking(False)
    return listener


def free_port(host: str = "127.0.0.1") -> int:
    """One that nobody has, and hardly anybody takes before it is listened on: it lies below those that the kernel gives to
    outgoing connections, and to whoever asks for any. Raises OSError when `host` is no address of this machine."""
    try:
        first = int(EPHEMERAL.read_text().split()[0])
    except OSError:
        first = 0
    for port in (*(secrets.randbelow(BELOW) + first - BELOW for _ in range(TRIES if first > 2 * BELOW else 0)), 0):
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
    """Only programs on this machine get through."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def raise_file_limit(wanted: int = FILES_WANTED) -> int:
    """As many open files as this process may have. The number it may have from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [(max(hard, wanted), max(hard, wanted)), (hard, hard)]  # the first needs privilege
    for new in limits if hard != resource.RLIM_INFINITY else [(hard, hard)]:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, new)
        except (OSError, ValueError):
            continue
        return new[0]
    return soft


def _reason(error: OSError, host: str, port: int, kind_of: str) -> SandyardError:
    if error.errno == errno.EADDRINUSE:
        return ConflictError(
            f"Port {port} on {host} is in use by another program. Stop it, or choose another --{kind_of}port."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ForbiddenError(
            f"Listening on port {port} of {host} is not permitted. Choose a --{kind_of}port above 1023."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidInputError(f"{host} is not an address of this machine. Choose another --{kind_of}host.")
    return SandyardError(f"Listening on {host}:{port} failed: {error.strerror}.")
