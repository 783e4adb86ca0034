"""The program that replaces `sudo` in a gVisor sandbox: it asks the agent to run the image's own sudo; see `elevation`.

Imports nothing else of this project, so that it starts quickly.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import struct
import sys

# The same as in `elevation`.
SOCKET = "/dev/.sudo.sock"
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")


def main() -> None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.connect(SOCKET)
            # Signals that arrive in the meantime are forwarded after the request.
            numbers = [getattr(signal, name) for name in FORWARDED]
            signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
            _forward_signals(server)
            _send_request(server)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
            response = json.loads(server.recv(65536) or b'{"error": "the agent closed the connection"}')
    except OSError as error:
        response = {"error": f"could not reach the agent: {error.strerror}"}
    if "error" in response:
        sys.exit(f"sudo: {response['error']}")
    _exit_with_status(response["status"])


def _forward_signals(server: socket.socket) -> None:
    def forward(number: int, _: object) -> None:
        with contextlib.suppress(OSError):
            server.send(bytes([number]))

    for name in FORWARDED:
        signal.signal(getattr(signal, name), forward)


def _send_request(server: socket.socket) -> None:
    request = json.dumps({"arguments": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}).encode()
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open("/dev/null", os.O_RDWR)  # becomes the lowest free descriptor, which is this one
    data = struct.pack("!I", len(request)) + request
    credentials = struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())
    ancillary: list[tuple[int, int, bytes | array.array[int]]] = [
        (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials),
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2])),
    ]
    sent = server.sendmsg([data], ancillary)
    server.sendall(data[sent:])


def _exit_with_status(status: int) -> None:
    """Exit with the code of the command, or end by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
