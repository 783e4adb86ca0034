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
HELD = WINDOW + (256 << 10)
"""Bytes that may be received but not read: the other end counts before it sends, not after."""
CHUNK = 96 << 10
ACK_EVERY = 64 << 10
_REASON = 500
_FRAME, _FRAME_VALUES = 64 << 10, 100


class SshError(SandyardError):
    """The SSH connection into the sandbox failed."""

    code, status = "ssh_failed", 502


class NoSshdError(SandyardError):
    """The sandbox has no sshd. Install the packages openssh-server and openssh-sftp-server in it or in its template.

    On Debian or Ubuntu: `sudo apt-get install -y --no-install-recommends openssh-server openssh-sftp-server`. Nothing has to be configured
    or started.
    """

    code, status = "no_sshd", 409


class Lines(Protocol):
    """What `Line` needs of its stream."""

    def lines(self) -> AsyncIterator[str]: ...
    def say(self, line: str) -> None: ...


class Line:
    """One connection. `run` serves it until it ends; the other methods may be called meanwhile."""

    def __init__(self, stream: Lines, public_key: str) -> None:
        self._stream = stream
        self._news = asyncio.Condition()
        self._incoming: list[bytes] = []
        self._held = self._unacked = self._under_way = 0
        self._host_key: str | None = None
        self._over = False
        self._error: SandyardError | None = None
        self.reason: str | None = None
        """Why it ended, if the sandbox said so."""
        self._tell("begin", key=public_key)

    async def run(self) -> None:
        """Serve the connection and return when it has ended; `receive` reports how."""
        beat = asyncio.get_running_loop().create_task(self._beat())
        try:
            async for text in self._stream.lines():
                try:
                    self._hear(text)
                except (ValueError, KeyError, TypeError):
                    raise SshError("Protocol error: the SSH program in the sandbox sent an invalid line.") from None
                async with self._news:
                    self._news.notify_all()
        except SandyardError as error:
            self._error = error
        finally:
            await end_tasks(beat)
            await self._end()

    async def host_key(self) -> str:
        """Return sshd's public key once it runs. Raises the reason if there is none."""
        async with self._news:
            await self._news.wait_for(lambda: self._over or self._host_key is not None)
        if self._host_key is None:
            raise self._error or SshError("The SSH program in the sandbox exited before it started.")
        return self._host_key

    async def receive(self) -> bytes | None:
        """Return the next output of sshd; None if it has ended. For one reader. Raises the error that broke the line.

        Not reading makes sshd wait.
        """
        async with self._news:
            await self._news.wait_for(lambda: self._over or self._incoming)
        if not self._incoming:
            if self._error is not None:
                raise self._error
            return None
        data = b"".join(self._incoming)
        self._incoming.clear()
        self._held -= len(data)
        self._unacked += len(data)
        if self._unacked >= ACK_EVERY:
            self._tell("ack", n=self._unacked)
            self._unacked = 0
        return data

    async def send(self, data: bytes) -> None:
        """Send data in the order of calls, waiting while too much is in flight. For one writer. Dropped if the connection has ended."""
        for start in range(0, len(data), CHUNK):
            async with self._news:
                await self._news.wait_for(lambda: self._over or self._under_way < WINDOW)
            if self._over:
                return
            piece = data[start : start + CHUNK]
            self._under_way += len(piece)
            self._stream.say("=" + base64.b64encode(piece).decode())

    def finish(self) -> None:
        """Signal the end of input."""
        if not self._over:
            self._tell("eof")

    async def end(self, error: SandyardError) -> None:
        """End the connection with this error, which `receive` raises."""
        self._error = self._error or error
        await self._end()

    async def _end(self) -> None:
        self._over = True
        async with self._news:
            self._news.notify_all()

    def _hear(self, text: str) -> None:
        if text.startswith("="):
            data = binascii.a2b_base64(text[1:], strict_mode=True)
            self._held += len(data)
            if not data or self._held > HELD or self._host_key is None:  # empty lines would also be kept without limit
                raise ValueError("more than was asked for")
            self._incoming.append(data)
            return
        frame = bounded_json.parse(text, largest=_FRAME, values=_FRAME_VALUES)
        match frame["t"]:
            case "hello":
                self._host_key = _key(frame["key"])
            case "ack":
                self._under_way -= _number(frame["n"], self._under_way)
            case "end":
                self.reason = str(frame["text"])[:_REASON] or None
            case "error":
                if frame["code"] == "no_sshd":
                    raise NoSshdError
                raise SshError(f"SSH failed in the sandbox: {str(frame['text'])[:_REASON]}")

    def _tell(self, kind: str, **fields: Any) -> None:
        self._stream.say(json.dumps({"t": kind, **fields}, separators=(",", ":")))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._tell("ping")


def _number(value: Any, most: int) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("not a number")
    return value


def _key(value: Any) -> str:
    kind, _, blob = str(value).partition(" ")
    if kind != "ssh-ed25519" or len(blob) > 200 or not binascii.a2b_base64(blob, strict_mode=True):
        raise ValueError("not a key")
    return f"{kind} {blob}"
