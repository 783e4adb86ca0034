"""Connections to ports inside a sandbox."""

from __future__ import annotations

import asyncio

import pytest

from sandyard.kit.errors import UnreachableError
from tests.conformance import tiny
from tests.conformance.agent import Agent, exchange
from tests.conformance.yard import Yard

_SERVER = """
import socket, sys
server = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
while True:
    connection, _ = server.accept()
    connection.sendall(sys.argv[3].encode() + connection.recv(100))
    connection.close()
"""


async def _serve(agent: Agent, address: str, port: int, greeting: str) -> None:
    await agent.run(f"cat > server.py <<'EOF'\n{_SERVER}\nEOF")
    await agent.begin(f"{tiny.PYTHON} -I -S server.py {address} {port} {greeting}")


async def _ask(yard: Yard, agent: Agent, port: int) -> bytes:
    async with asyncio.timeout(20):
        while True:
            try:
                sock = await yard.driver.connect(agent.handle, port)
            except UnreachableError:
                await asyncio.sleep(0.02)
            else:
                assert not sock.getblocking()
                return await exchange(sock, b"?")


async def test_a_port_is_reached_by_its_number(yard: Yard) -> None:
    if not yard.real:
        pytest.skip("its sandboxes have the host's ports")
    one, other = (await yard.create())[1], (await yard.create())[1]
    await _serve(one, "127.0.0.1", 8080, "one")
    await _serve(other, "127.0.0.1", 8080, "other")
    assert await _ask(yard, one, 8080) == b"one?"
    assert await _ask(yard, other, 8080) == b"other?"


async def test_any_address_and_low_ports_work(yard: Yard) -> None:
    if not yard.real:
        pytest.skip("its sandboxes have the host's ports")
    _, agent = await yard.create()
    await _serve(agent, "0.0.0.0", 80, "low")
    assert await _ask(yard, agent, 80) == b"low?"
    await _serve(agent, "::1", 8081, "six")
    assert await _ask(yard, agent, 8081) == b"six?"


async def test_nobody_listens(yard: Yard) -> None:
    handle, agent = await yard.create()
    with pytest.raises(UnreachableError):
        await yard.driver.connect(handle, 9)
    assert await agent.health() == 204
