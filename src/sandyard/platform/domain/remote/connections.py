"""SSH connections into sandboxes: opened for one public key, limited in number, and active only while bytes move."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.remote.ssh_channel import SshChannel, SshError
from sandyard.platform.domain.sandboxes.e2b import (
    GuestProgram,
    LineStream,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import Status, check_usable
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)

PROGRAM = GuestProgram.load("ssh")
MAX_CONNECTIONS = 20
"""Maximum number of connections into one sandbox. An editor uses two or three."""
OPEN_TIMEOUT_S = 60.0
_KEY = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com) "
    r"([A-Za-z0-9+/]+={0,2})"
)
_MAX_KEY_LENGTH = 4000


class TooManyConnectionsError(SandyardError):
    """The sandbox has reached its limit of SSH connections. Close one."""

    code, status = "too_many_connections", 429


class SshSandboxPausedError(SandyardError):
    """The sandbox was paused, which closes its SSH connections. Reconnect to resume it."""

    code, status = "sandbox_paused", 409


class SshConnection:
    """An open connection. `host_key` identifies its sshd."""

    def __init__(self, lifecycle: Lifecycle, row: Sandbox, channel: SshChannel, host_key: str) -> None:
        self._lifecycle = lifecycle
        self._channel = channel
        self.sandbox_id = row.id
        self.host_key = host_key

    @property
    def reason(self) -> str | None:
        """The error output of sshd before it ended."""
        return self._channel.reason

    async def receive(self) -> bytes | None:
        """Return the next data; None if sshd has ended. Raises the error that broke the connection.

        For one reader. Not reading makes sshd wait.
        """
        try:
            data = await self._channel.receive()
        except (SandboxNotRunningError, SandboxNotFoundError):
            check_usable(await self._lifecycle.repository.get(self.sandbox_id))
            raise SshSandboxPausedError from None
        if data is not None:
            self._lifecycle.activity.touch(self.sandbox_id)
        return data

    async def send(self, data: bytes) -> None:
        self._lifecycle.activity.touch(self.sandbox_id)
        await self._channel.send(data)

    def finish(self) -> None:
        self._channel.finish()

    async def check(self, caller: Principal) -> None:
        """Raise NotFoundError if the user lost access. Ends a connection into a sandbox that is paused or deleted."""
        row = await self._lifecycle.repository.get_for(caller, self.sandbox_id)
        try:
            check_usable(row)
        except SandyardError as error:
            await self._channel.end(error)
        if row.status == Status.PAUSED:
            await self._channel.end(SshSandboxPausedError())


class SshConnections:
    """The SSH connections of this process."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.open_connections: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def open(self, caller: Principal, sandbox_id: str, public_key: str) -> AsyncIterator[SshConnection]:
        """Start an sshd that accepts only this key, resuming the sandbox if needed. It ends with this context.

        Raises NotFoundError, InvalidInputError for an invalid key, NoSshdError, TooManyConnectionsError and TooManyOperationsError.
        """
        row = await self._lifecycle.repository.get_for(caller, sandbox_id)
        key = check_public_key(public_key)
        with self._count(row.id), self._lifecycle.connections.hold(caller.user_id):
            stream = await self._lifecycle.call(row, self._open_stream)
            channel = SshChannel(stream, key)
            running = asyncio.get_running_loop().create_task(channel.run())
            try:
                try:
                    async with asyncio.timeout(OPEN_TIMEOUT_S):
                        host_key = await channel.wait_for_host_key()
                except TimeoutError:
                    raise SshError("The sandbox's sshd did not start in time. Try again.") from None
                log.info("ssh_opened", sandbox=row.id, user=caller.user_id)
                yield SshConnection(self._lifecycle, row, channel, host_key)
            finally:
                await end_tasks(running)
                await stream.close()
                log.info("ssh_closed", sandbox=row.id, user=caller.user_id)

    @contextlib.contextmanager
    def _count(self, sandbox_id: str) -> Iterator[None]:
        if self.open_connections[sandbox_id] >= MAX_CONNECTIONS:
            raise TooManyConnectionsError
        self.open_connections[sandbox_id] += 1
        try:
            yield
        finally:
            self.open_connections[sandbox_id] -= 1
            if not self.open_connections[sandbox_id]:
                del self.open_connections[sandbox_id]

    async def _open_stream(self, engine_id: str) -> LineStream:
        name = hashlib.sha256(engine_id.encode()).hexdigest()[:16]
        return await self._lifecycle.engine.streams.open(engine_id, PROGRAM, name)


def check_public_key(text: str) -> str:
    """Return an OpenSSH public key without its comment. It becomes a line that sshd reads, so it must contain nothing else."""
    key = " ".join(text.split()[:2])
    match = _KEY.fullmatch(key)
    if match is not None and len(key) <= _MAX_KEY_LENGTH:
        with contextlib.suppress(binascii.Error):
            blob = base64.b64decode(match[2], validate=True)
            size = int.from_bytes(blob[:4], "big")
            if blob[4 : 4 + size] == match[1].encode():
                return key
    raise InvalidInputError("`key` is not an OpenSSH public key. Example: `ssh-ed25519 AAAA…`.")
