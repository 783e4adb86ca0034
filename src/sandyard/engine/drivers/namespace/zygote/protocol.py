"""The protocol between engine and zygote: JSON packets on a SOCK_SEQPACKET pair, with attached descriptors.

Every request has a number `n`, and every answer to it carries the same number:
- `start` is answered by the zygote with `pid` and a pidfd, and then by the new process itself with `ready` or `error`;
- all others are answered once, with their result or with `error`.
An `error` contains `errno` if there is one. Messages without a number are `gone` (a pid that ended, with its wait
status) and `fatal` (the zygote's last message).
"""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

MAX_PACKET = 1 << 15  # more would need a separate memory mapping for each received packet
MAX_FDS = 16
_INT = array.array("i").itemsize
_RIGHTS_SPACE = socket.CMSG_SPACE(MAX_FDS * _INT)
_CLOEXEC, _CUT_OFF = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_TRUNC | socket.MSG_CTRUNC)  # enums are slow


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one packet, completely or not at all. Raises BlockingIOError on a non-blocking socket whose buffer is full."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([encode(message)], rights, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """Return the next packet with its descriptors (close-on-exec), or None if the other side is gone."""
    try:
        raw, ancillary, flags, _ = sock.recvmsg(MAX_PACKET, _RIGHTS_SPACE, _CLOEXEC)
    except ConnectionError:
        return None, []
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _INT])
    if not raw:
        return None, list(fds)
    assert not flags & _CUT_OFF, "a packet was cut off"
    return json.loads(raw.decode()), list(fds)
