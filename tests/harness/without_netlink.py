"""Run a program that cannot open netlink sockets: `python without_netlink.py PROGRAM [ARGUMENT …]`.

Chromium watches the machine's network interfaces with such a socket, and aborts all of its requests when an address is added or
removed. Other tests that run at the same time do that all the time, with network namespaces of their own."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys

from sandyard.engine.drivers.machine import kernel

_SOCKET_NUMBERS = {"x86_64": 41, "aarch64": 198}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_CALL_NUMBER, _FIRST_ARGUMENT = 0, 16  # offsets in struct seccomp_data
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000


def make_program(machine: str) -> bytes:
    """Return a seccomp filter with which socket(AF_NETLINK, …) fails as on a kernel without netlink."""
    steps = (
        (_LOAD, 0, 0, _CALL_NUMBER),
        (_JUMP_IF_EQUAL, 0, 3, _SOCKET_NUMBERS[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 0, 1, socket.AF_NETLINK),
        (_RETURN, 0, 0, _FAIL | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def main() -> None:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.load_seccomp(make_program(os.uname().machine))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
