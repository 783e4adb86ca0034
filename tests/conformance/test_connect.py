"""Connections to ports inside a sandbox."""

from __future__ import annotations

import asyncio

import pytest

from sandyard.kit.errors import UnreachableError
from tests.conformance import tiny
from tests.conformance.guest_agent import GuestAgent, exchange
from tests.conformance.harness import DriverHarness

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


async def _start_server(agent: GuestAgent, address: str, port: int, greeting: str) -> None:
    await agent.run(f"cat > server.py <<'EOF'\n{_SERVER}\nEOF")
    await agent.start(f"{tiny.PYTHON} -I -S server.py {address} {port} {greeting}")


async def _exchange(harness: DriverHarness, agent: GuestAgent, port: int) -> bytes:
    async with asyncio.timeout(20):
        while True:
            try:
                sock = await harness.driver.connect(agent.handle, port)
            except UnreachableError:
                await asyncio.sleep(0.02)
            else:
                assert not sock.getblocking()
                return await exchange(sock, b"?")


async def test_the_same_port_of_two_sandboxes_leads_to_different_servers(harness: DriverHarness) -> None:
    if not harness.real:
        pytest.skip("sandboxes of the fake driver share the host's ports")
    one, other = (await harness.create())[1], (await harness.create())[1]
    await _start_server(one, "127.0.0.1", 8080, "one")
    await _start_server(other, "127.0.0.1", 8080, "other")
    assert await _exchange(harness, one, 8080) == b"one?"
    assert await _exchange(harness, other, 8080) == b"other?"


async def test_servers_on_any_address_and_on_low_ports_are_reachable(harness: DriverHarness) -> None:
    if not harness.real:
        pytest.skip("sandboxes of the fake driver share the host's ports")
    _, agent = await harness.create()
    await _start_server(agent, "0.0.0.0", 80, "low")
    assert await _exchange(harness, agent, 80) == b"low?"
    await _start_server(agent, "::1", 8081, "six")
    assert await _exchange(harness, agent, 8081) == b"six?"


async def test_connecting_to_a_port_without_a_server_fails(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    with pytest.raises(UnreachableError):
        await harness.driver.connect(handle, 9)
    assert await agent.health() == 204
