"""Bytes over lines: windows in both directions, and a sandbox that violates the protocol."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandyard.kit.errors import SandyardError
from sandyard.platform.domain.remote.ssh_channel import (
    ACK_EVERY,
    CHUNK,
    MAX_UNREAD,
    WINDOW,
    NoSshdError,
    SshChannel,
    SshError,
)
from sandyard.platform.domain.sandboxes.e2b import SandboxUnreachableError

HOST = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA=="
HELLO = json.dumps({"t": "hello", "key": HOST})


class Script:
    """A sandbox whose output the test writes."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.received: list[str] = []

    async def read_lines(self) -> AsyncIterator[str]:
        while (line := await self.coming.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line

    def send_line(self, line: str) -> None:
        self.received.append(line)

    def hear(self, *lines: str | Exception | None) -> None:
        for line in lines:
            self.coming.put_nowait(line)

    def frames(self, kind: str) -> list[Any]:
        return [json.loads(line) for line in self.received if line[0] == "{" and json.loads(line)["t"] == kind]

    @property
    def sent(self) -> bytes:
        return b"".join(base64.b64decode(line[1:]) for line in self.received if line[0] == "=")


def data(text: bytes) -> str:
    return "=" + base64.b64encode(text).decode()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Script, SshChannel]]:
    script = Script()
    line = SshChannel(script, "ssh-ed25519 AAAA")
    running = asyncio.create_task(line.run())
    yield script, line
    running.cancel()
    await asyncio.wait([running])


async def test_transfers_bytes_in_both_directions(pair: tuple[Script, SshChannel]) -> None:
    script, line = pair
    assert script.frames("begin") == [{"t": "begin", "key": "ssh-ed25519 AAAA"}]
    script.hear(HELLO, '{"t":"ping"}', data(b"SSH-2.0-"), data(b"\x00\xff"))
    assert await line.wait_for_host_key() == HOST
    got = b""
    while len(got) < 10:
        got += await line.receive() or b""
    assert got == b"SSH-2.0-\x00\xff"
    everything = bytes(range(256)) * 1000
    await line.send(everything)
    line.finish()
    assert script.sent == everything
    assert len(script.frames("eof")) == 1
    script.hear('{"t":"end","text":"fatal: no"}', None)
    assert await line.receive() is None
    assert line.reason == "fatal: no"
    await line.send(b"to nobody")


async def test_limits_unacknowledged_bytes_to_window(pair: tuple[Script, SshChannel]) -> None:
    script, line = pair
    script.hear(HELLO)
    sending = asyncio.create_task(line.send(b"x" * (WINDOW * 2)))
    await asyncio.sleep(0.05)
    assert not sending.done()
    assert WINDOW <= len(script.sent) < WINDOW + CHUNK
    while not sending.done():
        script.hear(json.dumps({"t": "ack", "n": CHUNK}))
        await asyncio.sleep(0)
    assert len(script.sent) == WINDOW * 2
    # in the other direction, consumed bytes are acknowledged now and then
    script.hear(data(b"x" * (ACK_EVERY - 1)))
    await line.receive()
    assert not script.frames("ack")
    script.hear(data(b"x"))
    await line.receive()
    assert script.frames("ack") == [{"t": "ack", "n": ACK_EVERY}]


@pytest.mark.parametrize(
    "lines",
    [
        ["hello"],
        ["[]"],
        ['{"t":"hello","key":"ssh-rsa AAAA"}'],
        ['{"t":"hello","key":"ssh-ed25519 \\nevil"}'],
        ["=AAAA"],
        [HELLO, "=not base64"],
        [HELLO, "="],
        [HELLO, '{"t":"ack","n":-1}'],
        [HELLO, '{"t":"ack","n":1}'],
        [HELLO, '{"t":"ack","n":"1"}'],
        [HELLO, *[data(b"x" * 65536)] * (MAX_UNREAD // 65536 + 1)],
        ["[" * 100_000],
    ],
)
async def test_protocol_violation_ends_line(pair: tuple[Script, SshChannel], lines: list[str]) -> None:
    script, line = pair
    script.hear(*lines)
    with pytest.raises(SshError):
        async with asyncio.timeout(10):
            await line.wait_for_host_key()
            await asyncio.sleep(0.05)
            while await line.receive() is not None:
                pass


@pytest.mark.parametrize(
    ("line_or_error", "kind"),
    [
        ('{"t":"error","code":"no_sshd","text":"x"}', NoSshdError),
        ('{"t":"error","code":"failed","text":"disk full"}', SshError),
        (SandboxUnreachableError(), SandboxUnreachableError),
        (None, SshError),
    ],
)
async def test_reports_why_connection_failed(
    pair: tuple[Script, SshChannel], line_or_error: str | Exception | None, kind: type[SandyardError]
) -> None:
    script, line = pair
    script.hear(line_or_error)
    with pytest.raises(kind):
        await line.wait_for_host_key()
