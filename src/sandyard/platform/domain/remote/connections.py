"""SSH connections into sandboxes: opened for one public key, counted, and use of the sandbox only while bytes move."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from sandyard.kit.errors import InvalidInputError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.remote.line import Line, SshError
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

PROGRAM = GuestProgram("ssh", (Path(__file__).parent / "guest_ssh.py").read_bytes())
AT_ONCE = 20
"""Connections into one sandbox. An editor has two or three."""
OPEN_S = 60.0
_KEY = re.compile(
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com) "
    r"([A-Za-z0-9+/]+={0,2})"
)
_KEY_LIMIT = 4000


class TooManyConnectionsError(SandyardError):
    """The sandbox has as many SSH connections as it may have. Close one."""

    code, status = "too_many_connections", 429


class AsleepError(SandyardError):
    """The sandbox was paused, which ends its SSH connections. A new one wakes it."""

    code, status = "sandbox_paused", 409


class Connection:
    """One that is open. `host_key` is how its sshd proves who it is."""

    def __init__(self, lifecycle: Lifecycle, row: Sandbox, line: Line, host_key: str) -> None:
        self._lifecycle = lifecycle
        self._line = line
        self.sandbox_id = row.id
        self.host_key = host_key

    @property
    def reason(self) -> str | None:
        """What sshd complained about before it ended."""
        return self._line.reason

    async def receive(self) -> bytes | None:
        """None: sshd has ended. Raises what broke the line. For one reader; not reading makes sshd wait."""
        try:
            data = await self._line.receive()
        except (SandboxNotRunningError, SandboxNotFoundError):
            check_usable(await self._lifecycle.rows.get(self.sandbox_id))
            raise AsleepError from None
        if data is not None:
            self._lifecycle.activity.touch(self.sandbox_id)
        return data

    async def send(self, data: bytes) -> None:
        self._lifecycle.activity.touch(self.sandbox_id)
        await self._line.send(data)

    def finish(self) -> None:
        self._line.finish()

    async def check(self, caller: Principal) -> None:
        """NotFoundError when it is no longer theirs. One into a sandbox that sleeps or is gone ends."""
        row = await self._lifecycle.rows.get_for(caller, self.sandbox_id)
        try:
            check_usable(row)
        except SandyardError as error:
            await self._line.end(error)
        if row.status == Status.PAUSED:
            await self._line.end(AsleepError())


class SshConnections:
    """One per process."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._open: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def open(self, caller: Principal, sandbox_id: str, public_key: str) -> AsyncIterator[Connection]:
        """An sshd in the sandbox, woken for this if need be, into which this key and no other logs in. It ends with this.
        NotFoundError, InvalidInputError for what is no key, NoSshdError, TooManyConnectionsError."""
        row = await self._lifecycle.rows.get_for(caller, sandbox_id)
        key = checked_key(public_key)
        if self._open[row.id] >= AT_ONCE:
            raise TooManyConnectionsError
        self._open[row.id] += 1
        try:
            stream = await self._lifecycle.call(row, self._begin)
            line = Line(stream, key)
            running = asyncio.get_running_loop().create_task(line.run())
            try:
                try:
                    async with asyncio.timeout(OPEN_S):
                        host_key = await line.host_key()
                except TimeoutError:
                    raise SshError("The sandbox's sshd did not start in time. Try again.") from None
                log.info("ssh_opened", sandbox=row.id, user=caller.user_id)
                yield Connection(self._lifecycle, row, line, host_key)
            finally:
                await end_tasks(running)
                await stream.close()
                log.info("ssh_closed", sandbox=row.id, user=caller.user_id)
        finally:
            self._open[row.id] -= 1
            if not self._open[row.id]:
                del self._open[row.id]

    async def _begin(self, engine_id: str) -> LineStream:
        name = hashlib.sha256(engine_id.encode()).hexdigest()[:16]
        return await self._lifecycle.engine.streams.open(engine_id, PROGRAM, name)


def checked_key(text: str) -> str:
    """A public key as OpenSSH writes it, without its comment: a line that sshd reads, so nothing else may be in it."""
    words = " ".join(text.split()[:2])
    found = _KEY.fullmatch(words)
    if found is not None and len(words) <= _KEY_LIMIT:
        with contextlib.suppress(binascii.Error):
            blob = base64.b64decode(found[2], validate=True)
            size = int.from_bytes(blob[:4], "big")
            if blob[4 : 4 + size] == found[1].encode():
                return words
    raise InvalidInputError("`key` is not a public key of OpenSSH: it looks like `ssh-ed25519 AAAA…`.")
