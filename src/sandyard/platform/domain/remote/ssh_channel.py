"""A byte stream over lines between the platform and a program in a sandbox: ordered, complete, with flow control.

The other end is `guest/ssh.py`, which documents the lines. The sandbox is untrusted: everything it sends is limited in size, and invalid
lines end the connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Any, Protocol

from sandyard.kit import bounded_json
from sandyard.kit.errors import SandyardError
from sandyard.kit.tasks import end_tasks

HEARTBEAT_S = 10.0
WINDOW = 2 << 20
"""Bytes that may be in flight in each direction."""
MAX_UNREAD = WINDOW + (256 << 10)
"""Bytes that may be received but not read: the other end counts before it sends, not after."""
CHUNK = 96 << 10
ACK_EVERY = 64 << 10
_MAX_REASON_LENGTH = 500
_MAX_FRAME_BYTES, _MAX_FRAME_VALUES = 64 << 10, 100


class SshError(SandyardError):
    """The SSH connection into the sandbox failed."""

    code, status = "ssh_failed", 502


class NoSshdError(SandyardError):
    """The sandbox has no sshd. Install the packages openssh-server and openssh-sftp-server in it or in its template.

    On Debian or Ubuntu: `sudo apt-get install -y --no-install-recommends openssh-server openssh-sftp-server`. Nothing has to be configured
    or started.
    """

    code, status = "no_sshd", 409


class LineStream(Protocol):
    """The stream of lines that a channel uses."""

    def read_lines(self) -> AsyncIterator[str]: ...
    def send_line(self, line: str) -> None: ...


class SshChannel:
    """One connection. `run` serves it until it ends; the other methods may be called meanwhile."""

    def __init__(self, stream: LineStream, public_key: str) -> None:
        self._stream = stream
        self._changed = asyncio.Condition()
        self._incoming: list[bytes] = []
        self._unread = self._unacked = self._in_flight = 0
        self._host_key: str | None = None
        self._ended = False
        self._error: SandyardError | None = None
        self.reason: str | None = None
        """Why it ended, if the sandbox said so."""
        self._send_frame("begin", key=public_key)

    async def run(self) -> None:
        """Serve the connection and return when it has ended; `receive` reports how."""
        heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())
        try:
            async for text in self._stream.read_lines():
                try:
                    self._handle_line(text)
                except (ValueError, KeyError, TypeError):
                    raise SshError("Protocol error: the SSH program in the sandbox sent an invalid line.") from None
                async with self._changed:
                    self._changed.notify_all()
        except SandyardError as error:
            self._error = error
        finally:
            await end_tasks(heartbeats)
            await self._mark_ended()

    async def wait_for_host_key(self) -> str:
        """Return sshd's public key once it runs. Raises the reason if there is none."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended or self._host_key is not None)
        if self._host_key is None:
            raise self._error or SshError("The SSH program in the sandbox exited before it started.")
        return self._host_key

    async def receive(self) -> bytes | None:
        """Return the next output of sshd; None if it has ended. For one reader. Raises the error that broke the connection.

        Not reading makes sshd wait.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended or self._incoming)
        if not self._incoming:
            if self._error is not None:
                raise self._error
            return None
        data = b"".join(self._incoming)
        self._incoming.clear()
        self._unread -= len(data)
        self._unacked += len(data)
        if self._unacked >= ACK_EVERY:
            self._send_frame("ack", n=self._unacked)
            self._unacked = 0
        return data

    async def send(self, data: bytes) -> None:
        """Send data in the order of calls, waiting while too much is in flight. For one writer. Dropped if the connection has ended."""
        for start in range(0, len(data), CHUNK):
            async with self._changed:
                await self._changed.wait_for(lambda: self._ended or self._in_flight < WINDOW)
            if self._ended:
                return
            piece = data[start : start + CHUNK]
            self._in_flight += len(piece)
            self._stream.send_line("=" + base64.b64encode(piece).decode())

    def finish(self) -> None:
        """Signal the end of input."""
        if not self._ended:
            self._send_frame("eof")

    async def end(self, error: SandyardError) -> None:
        """End the connection with this error, which `receive` raises."""
        self._error = self._error or error
        await self._mark_ended()

    async def _mark_ended(self) -> None:
        self._ended = True
        async with self._changed:
            self._changed.notify_all()

    def _handle_line(self, text: str) -> None:
        if text.startswith("="):
            data = binascii.a2b_base64(text[1:], strict_mode=True)
            self._unread += len(data)
            # empty lines are rejected, because they would also be kept without limit
            if not data or self._unread > MAX_UNREAD or self._host_key is None:
                raise ValueError("more data than was requested")
            self._incoming.append(data)
            return
        frame = bounded_json.parse(text, largest=_MAX_FRAME_BYTES, values=_MAX_FRAME_VALUES)
        match frame["t"]:
            case "hello":
                self._host_key = _parse_key(frame["key"])
            case "ack":
                self._in_flight -= _parse_number(frame["n"], self._in_flight)
            case "end":
                self.reason = str(frame["text"])[:_MAX_REASON_LENGTH] or None
            case "error":
                if frame["code"] == "no_sshd":
                    raise NoSshdError
                raise SshError(f"SSH failed in the sandbox: {str(frame['text'])[:_MAX_REASON_LENGTH]}")

    def _send_frame(self, kind: str, **fields: Any) -> None:
        self._stream.send_line(json.dumps({"t": kind, **fields}, separators=(",", ":")))

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._send_frame("ping")


def _parse_number(value: Any, maximum: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= maximum:
        raise ValueError("not a number")
    return value


def _parse_key(value: Any) -> str:
    kind, _, blob = str(value).partition(" ")
    if kind != "ssh-ed25519" or len(blob) > 200 or not binascii.a2b_base64(blob, strict_mode=True):
        raise ValueError("not a key")
    return f"{kind} {blob}"
