"""The sandboxes' name server, with clients on loopback addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any

import dns.message
import dns.rrset
import pytest

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.machine.net import forwarder
from sandyard.engine.drivers.machine.net.dns_wire import Question
from sandyard.engine.drivers.machine.net.forwarder import Forwarder
from sandyard.engine.drivers.machine.net.policy import parse_policy

SERVER, LISTED, OPEN = (IPv4Address(address) for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
ADDRESS = IPv4Address("198.51.100.1")


class Upstream:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def query(self, message: bytes, question: Question, stream: bool) -> bytes:
        self.asked.append(question.name)
        answer = dns.message.make_response(dns.message.from_wire(message))
        answer.answer.append(dns.rrset.from_text(f"{question.name}.", 60, "IN", "A", str(ADDRESS)))
        return answer.to_wire()


class Client(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.answers.put_nowait(data)


async def test_queries_that_open_addresses_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "_QUERIES_PER_S", 0.001)
    monkeypatch.setattr(forwarder, "_BURST", 2)
    admitted: list[tuple[IPv4Address, str, list[IPv4Address]]] = []

    async def admit(client: IPv4Address, name: str, found: Mapping[IPv4Address, int]) -> None:
        admitted.append((client, name, list(found)))

    upstream = Upstream()
    server = Forwarder(upstream, admit)  # type: ignore[arg-type]
    await server.open(SERVER)
    loop = asyncio.get_running_loop()
    transports = []
    try:
        server.set_policy(LISTED, parse_policy(NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=("*.web.test",))))
        server.set_policy(OPEN, parse_policy(NetworkPolicy()))
        clients = {}
        for address in (LISTED, OPEN):
            transport, clients[address] = await loop.create_datagram_endpoint(
                Client, local_addr=(str(address), 0), remote_addr=(str(SERVER), server.port)
            )
            transports.append(transport)
        for number in range(9):
            transports[0].sendto(dns.message.make_query(f"{number}.web.test", "A").to_wire())
        for number in range(9):
            transports[1].sendto(dns.message.make_query(f"{number}.other.test", "A").to_wire())
        for _ in range(9):
            await asyncio.wait_for(clients[OPEN].answers.get(), 30)
        for _ in range(3):
            await asyncio.wait_for(clients[LISTED].answers.get(), 30)
    finally:
        for transport in transports:
            transport.close()
        await server.close()
    assert sorted(name for name in upstream.asked if "web" in name) == [f"{number}.web.test" for number in range(3)]
    assert admitted == [(LISTED, f"{number}.web.test", [ADDRESS]) for number in range(3)]
