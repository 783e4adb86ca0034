"""Sockets in the network namespaces of sandboxes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from sandyard.engine.drivers.machine import kernel


def open_socket_inside(
    namespace: Path, family: socket.AddressFamily, kind: socket.SocketKind = socket.SOCK_STREAM
) -> socket.socket:
    """Return a non-blocking socket in the network namespace at this path. Needs root. Raises OSError.

    A socket belongs to the namespace its creator is in at that moment, so this thread enters the namespace and returns,
    without a pause in between.
    """
    there = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel.setns(there, kernel.CLONE_NEWNET)
            try:
                return socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            finally:
                kernel.setns(here, kernel.CLONE_NEWNET)
        finally:
            os.close(here)
    finally:
        os.close(there)
