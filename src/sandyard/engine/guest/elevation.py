"""sudo on a kernel that ignores set-user-id bits (gVisor).

`elevation_client`, which is mounted over the image's sudo, asks the agent to run the image's own sudo as root, with the
caller's arguments, environment, directory and standard streams. Only root and users whom /etc/sudoers allows everything
without a password may do that.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

from sandyard.engine.guest.loop import Loop, report_error
from sandyard.engine.guest.process.spawn import NoDirectoryError, Program, Spawner, SpawnError
from sandyard.engine.guest.reaper import Waiter
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.users import UnknownUserError, User, read_text

SOCKET = "/dev/.sudo.sock"
SUDO = "/dev/.sandyard/original-sudo"
"""The image's own sudo, mounted once more."""
_MAX_REQUEST_BYTES = 4 << 20
_REQUEST_TIMEOUT_S = 10.0
_BACKLOG = 64
_ANCILLARY_BYTES = socket.CMSG_SPACE(3 * 4) + socket.CMSG_SPACE(3 * 4)  # descriptors, and process, user and group id
_FORWARDED = frozenset({"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"})
_GRANT = re.compile(r"(\S+)\s+ALL\s*=\s*\(\s*ALL\s*(?::\s*ALL\s*)?\)\s*NOPASSWD\s*:\s*ALL\s*")


class Elevation:
    """Runs sudo for clients that connect to `SOCKET`, one command for each."""

    def __init__(self, loop: Loop, sandbox: Sandbox, spawner: Spawner, waiter: Waiter) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self._spawner = spawner
        self._waiter = waiter
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    def listen(self) -> None:
        """Accept clients from now on."""
        self._listener.bind(SOCKET)
        os.chmod(SOCKET, 0o666)  # noqa: S103 - each caller is checked
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            task = self._loop.create_task(self._serve(peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, peer: socket.socket) -> None:
        streams: list[int] = []
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                uid, request, early_signals = await self._receive(peer, streams)
            status = await self._run(peer, uid, request, streams, early_signals)
            peer.send(json.dumps({"status": status}).encode())
        except _RefusedError as error:
            with contextlib.suppress(OSError):
                peer.send(json.dumps({"error": str(error)}).encode())
        except (OSError, ValueError, TypeError, LookupError, TimeoutError):
            pass  # the caller is gone, or is not `elevation_client`
        except Exception:  # a failing caller must not end the agent
            report_error()
        finally:
            _close_all(streams)
            peer.close()

    async def _receive(self, peer: socket.socket, streams: list[int]) -> tuple[int, dict[str, Any], bytes]:
        """Receive the request: its length, JSON, and with the first byte the caller's credentials, which the kernel has
        checked, and three descriptors. Return the caller's user id, the request, and the signals that followed it at once.

        SO_PEERCRED is of no use in gVisor: it returns the ids of the process that asks.
        """
        data, uid = b"", None
        while len(data) < 4 or len(data) < 4 + struct.unpack("!I", data[:4])[0]:
            await self._wait_until_readable(peer)
            part, ancillary, _, _ = peer.recvmsg(65536, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    uid = struct.unpack("3i", content)[1]
                elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors = array.array("i")
                    descriptors.frombytes(content[: len(content) - len(content) % 4])
                    streams.extend(descriptors)
            data += part
            if not part or len(data) > _MAX_REQUEST_BYTES:
                raise ValueError("incomplete or too long")
        end = 4 + struct.unpack("!I", data[:4])[0]
        request = json.loads(data[4:end])
        if uid is None or len(streams) != 3 or not isinstance(request, dict):
            raise ValueError("not a request")
        return uid, request, data[end:]

    async def _run(
        self, peer: socket.socket, uid: int, request: dict[str, Any], streams: list[int], early_signals: bytes
    ) -> int:
        """Run sudo as root and return its wait status."""
        accounts = self._sandbox.accounts
        accounts.refresh()
        try:
            caller = accounts.lookup(accounts.get_user_name(uid))
            root = accounts.lookup("root")
        except UnknownUserError:
            raise _RefusedError("you do not exist in the passwd database") from None
        if not may_become_root(caller, accounts.get_group_name, self._sandbox.to_host_path("/etc")):
            raise _RefusedError("a password is required")
        argv = (SUDO, *map(str, request["arguments"]))
        env = {str(name): str(value) for name, value in request["env"].items()}
        try:
            pid = self._spawner.spawn(Program(argv, env, str(request["cwd"])), root, streams)
        except (SpawnError, NoDirectoryError) as error:
            raise _RefusedError(str(error) or "the current directory does not exist") from None
        ended: asyncio.Future[int] = self._loop.create_future()
        self._waiter.expect(pid, ended.set_result)
        _close_all(streams)
        _send_signals(pid, early_signals)
        self._loop.add_reader(peer.fileno(), lambda: self._forward_signals(peer, pid))
        try:
            return await ended
        finally:
            self._loop.remove_reader(peer.fileno())

    def _forward_signals(self, peer: socket.socket, pid: int) -> None:
        """Forward the signals that the client has received, one byte each. If the client is gone, terminate the command."""
        try:
            numbers = peer.recv(64)
        except BlockingIOError:
            return
        except OSError:
            numbers = b""
        if not numbers:
            self._loop.remove_reader(peer.fileno())
            numbers = bytes([signal.SIGTERM])
        _send_signals(pid, numbers)

    async def _wait_until_readable(self, peer: socket.socket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(peer.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(peer.fileno())


class _RefusedError(Exception):
    """sudo cannot be run; the message is for the caller."""


def may_become_root(user: User, group_name: Callable[[int], str], etc: str) -> bool:
    """Return whether the sudoers files allow this user everything without a password, by name or by group."""
    if user.uid == 0:
        return True
    names = {"ALL", user.name, *(f"%{group_name(number)}" for number in user.groups)}
    return any(found[1] in names for line in _read_sudoers(etc) if (found := _GRANT.fullmatch(line)))


def _read_sudoers(etc: str) -> Iterator[str]:
    folder = f"{etc}/sudoers.d"
    extra: list[str] = []
    with contextlib.suppress(OSError):
        extra = [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if "." not in name and name[-1] != "~"]
    for path in (f"{etc}/sudoers", *extra):
        with contextlib.suppress(OSError):
            yield from (line.strip() for line in read_text(path).split("\n"))


def _send_signals(pid: int, numbers: bytes) -> None:
    """Send the allowed ones of these signals to the process group."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError, ValueError):
            if signal.Signals(number).name in _FORWARDED:
                os.killpg(pid, number)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
