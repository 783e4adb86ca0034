"""The server's own bounds."""

from __future__ import annotations

import json

import pytest

from tests.unit.engine.e2b.support import Bench


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000, 431),
        (b"GET /" + b"a" * 200_000, 431),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400),
    ],
    ids=lambda value: str(value[:30]) if isinstance(value, bytes) else str(value),
)
async def test_what_is_refused(gate: Bench, raw: bytes, status: int) -> None:
    got, _, body = await gate.ask(raw)
    assert got == status
    assert json.loads(body)["code"] == status
    assert json.loads(body)["message"]


async def test_one_bad_client_harms_no_other(gate: Bench) -> None:
    good = await gate.connect()
    await gate.ask(b"nonsense\r\n\r\n")
    good[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"299" in await good[0].readuntil(b"\r\n")
