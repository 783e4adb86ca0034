"""Messages to the service manager that started this process, if one did (sd_notify)."""

from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"


def notify_service_manager(state: str) -> None:
    """Send a state such as `READY=1`. Does nothing without a service manager that wants to know."""
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
