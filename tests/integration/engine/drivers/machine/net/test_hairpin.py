"""The hairpin to the engine by its public names: it leads to one port of one address, and only where the policy allows the name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

import dns.rcode
import pytest

from sandyard.engine.contract import Hairpin, NetworkPolicy, PublicNames
from sandyard.engine.drivers.machine.net import NetSlot, Network, NetworkSettings
from tests.integration.engine.drivers.machine.net.topology import (
    HOST,
    NEIGHBOUR,
    WEB,
    Topology,
    addresses_in,
    dial,
    dial_udp,
    inside,
    ping,
    resolve,
)

NAMES = PublicNames("yard.test", 443)
API, PREVIEW, OTHER = "api.yard.test", "3000-iabc.yard.test", "3000-iother.yard.test"
REFUSED = "ECONNREFUSED"
ALL = "0.0.0.0/0"


@dataclass
class Engine:
    """A network whose hairpin is served: the server echoes, and records the addresses of its clients."""

    network: Network
    seen: list[str] = field(default_factory=list)
    serving: asyncio.Server | None = None

    @property
    def hairpin(self) -> Hairpin:
        assert self.network.hairpin is not None
        return self.network.hairpin

    async def open(self, keep: tuple[int, ...] = ()) -> None:
        await self.network.open(keep)
        assert dict(self.network.missing) == {}
        self.serving = await asyncio.start_server(self._echo, sock=self.hairpin.listener)

    async def close(self, *, remove: bool = True) -> None:
        assert self.serving is not None
        self.serving.close()
        await self.network.close(remove=remove)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append(writer.get_extra_info("peername")[0])
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.close()

    async def dial(self, slot: NetSlot, port: int = 443, address: str | None = None) -> str:
        return await inside(slot.netns_path, partial(dial, address or str(slot.gateway), port))

    async def resolve(self, slot: NetSlot, name: str, kind: str = "A", *, stream: bool = False) -> dns.message.Message:
        return await inside(slot.netns_path, partial(resolve, str(slot.dns), name, kind, stream))


def make_engine(topology: Topology, instance: str = "test") -> Engine:
    settings = NetworkSettings(pool=1, resolv_conf=topology.resolv_conf, public_names=NAMES)
    return Engine(Network(instance, topology.state / instance, settings))


@pytest.fixture
async def engine(topology: Topology) -> AsyncIterator[Engine]:
    opened = make_engine(topology)
    await opened.open()
    yield opened
    await opened.close()


async def test_public_names_lead_to_the_engine(topology: Topology, engine: Engine) -> None:
    slot = await engine.network.acquire(0)
    for name in (API, PREVIEW, "yard.test", "API.Yard.Test"):
        for stream in (False, True):
            answer = await engine.resolve(slot, name, stream=stream)
            assert (answer.rcode(), addresses_in(answer)) == (dns.rcode.NOERROR, {slot.gateway}), name
    no_address = await engine.resolve(slot, API, "AAAA")
    assert (no_address.rcode(), no_address.answer) == (dns.rcode.NOERROR, [])
    assert await engine.dial(slot) == "ok"
    assert engine.seen == [slot.address], "the connection has the address of the sandbox, by which its policy is found"
    assert engine.hairpin.is_allowed(str(slot.address), API)
    assert topology.internet.queries == [], "queries for our own names are not forwarded"
    assert addresses_in(await engine.resolve(slot, "notyard.test")) == set()
    assert addresses_in(await engine.resolve(slot, "web.test")) == {WEB}


async def test_nothing_else_of_the_host_is_reachable(topology: Topology, engine: Engine) -> None:
    slot, other = await engine.network.acquire(0), await engine.network.acquire(1)
    assert slot.gateway
    second = make_engine(topology, "second")
    await second.open()
    foreign_slot = await second.network.acquire(0)
    served = engine.hairpin.listener.getsockname()[1]
    with contextlib.ExitStack() as stack:
        for address, port in ((HOST, 443), (HOST, 80), (slot.gateway, 80), (slot.gateway, 443), (slot.gateway, 8443)):
            listener = stack.enter_context(socket.create_server((address, port)))
            assert listener.getsockname()[1] == port, "a server must listen, or its denial would prove nothing"
        for address in (HOST, NEIGHBOUR, str(foreign_slot.gateway), str(other.address), "127.0.0.1"):
            for port in (443, served):
                assert await engine.dial(slot, port, address) == REFUSED, (address, port)
        for port in (1, 22, 80, 8443, served, 442, 444):
            assert await engine.dial(slot, port) == REFUSED, port
        assert await inside(slot.netns_path, partial(dial_udp, slot.gateway, 443, 0.5)) != "ok"
        assert await inside(slot.netns_path, partial(ping, slot.gateway, 0.5)) != "ok"
        assert await engine.dial(slot) == "ok", "the hairpin must not lead to other servers on that port"
    assert second.seen == []
    assert engine.seen == [slot.address]
    await second.close()


async def test_only_sandboxes_are_allowed_to_use_the_hairpin(topology: Topology, engine: Engine) -> None:
    slot = await engine.network.acquire(0)
    port = engine.hairpin.listener.getsockname()[1]
    topology.route_back(str(slot.gateway))
    assert await asyncio.to_thread(dial, str(slot.gateway), port) == "ok", "a process of the host can connect"
    assert not engine.hairpin.is_allowed(engine.seen[-1], API), "but no policy allows it anything"
    assert not engine.hairpin.is_allowed("127.0.0.1", API)


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(allow_internet=False),
        NetworkPolicy(deny_out=(ALL,)),
        NetworkPolicy(deny_out=(ALL,), allow_out=("web.test",)),
        NetworkPolicy(deny_out=(ALL,), allow_out=(WEB, ALL)),
    ],
)
async def test_a_closed_policy_blocks_the_hairpin(engine: Engine, policy: NetworkPolicy) -> None:
    slot = await engine.network.acquire(0)
    await engine.network.set_policy(0, policy)
    assert (await engine.resolve(slot, API)).rcode() == dns.rcode.REFUSED
    assert await engine.dial(slot) == REFUSED
    assert engine.seen == []


async def test_an_allowed_address_allows_no_name(engine: Engine) -> None:
    slot = await engine.network.acquire(0)
    await engine.network.set_policy(0, NetworkPolicy(deny_out=(ALL,), allow_out=(str(slot.gateway), "100.64.0.0/10")))
    assert (await engine.resolve(slot, API)).rcode() == dns.rcode.REFUSED
    assert not engine.hairpin.is_allowed(str(slot.address), API)


async def test_public_names_can_be_allowed_individually(engine: Engine) -> None:
    slot = await engine.network.acquire(0)
    address = str(slot.address)
    await engine.network.set_policy(0, NetworkPolicy(deny_out=(ALL,), allow_out=(PREVIEW, "web.test")))
    assert await engine.dial(slot) == REFUSED, "an address opens only after its name was resolved"
    assert (await engine.resolve(slot, OTHER)).rcode() == dns.rcode.REFUSED
    assert addresses_in(await engine.resolve(slot, PREVIEW)) == {slot.gateway}
    assert await engine.dial(slot) == "ok"
    assert await engine.dial(slot, 80) == REFUSED
    assert engine.hairpin.is_allowed(address, PREVIEW)
    assert not engine.hairpin.is_allowed(address, API), "the engine checks the name of each request"
    assert not engine.hairpin.is_allowed(address, OTHER)
    await engine.network.set_policy(0, NetworkPolicy(deny_out=(ALL,), allow_out=("*.yard.test",)))
    assert addresses_in(await engine.resolve(slot, OTHER)) == {slot.gateway}
    assert engine.hairpin.is_allowed(address, OTHER)


async def test_closing_the_policy_cuts_open_connections(engine: Engine) -> None:
    slot = await engine.network.acquire(0)

    def open_connection() -> socket.socket:
        connection = socket.create_connection((str(slot.gateway), 443), timeout=10)
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"
        return connection

    def send_more() -> bytes:
        connection.sendall(b"more")
        return connection.recv(100)

    connection = await inside(slot.netns_path, open_connection)
    await engine.network.set_policy(0, NetworkPolicy(allow_internet=False))
    assert not engine.hairpin.is_allowed(str(slot.address), API)
    with pytest.raises(ConnectionResetError):
        await inside(slot.netns_path, send_more)
    connection.close()


async def test_a_restarted_engine_serves_the_slots_that_it_kept(topology: Topology) -> None:
    first = make_engine(topology)
    await first.open()
    slot = await first.network.acquire(0)
    await first.network.acquire(1)
    await first.network.set_policy(1, NetworkPolicy(allow_internet=False))
    await first.close(remove=False)
    assert await first.dial(slot) == REFUSED
    restarted = make_engine(topology)
    await restarted.open((0, 1))
    await restarted.network.set_policy(0, NetworkPolicy())
    await restarted.network.set_policy(1, NetworkPolicy(allow_internet=False))
    closed_slot = await restarted.network.acquire(1)
    assert await restarted.dial(slot) == "ok"
    assert await restarted.dial(closed_slot) == REFUSED
    await restarted.network.release(0)
    assert not restarted.hairpin.is_allowed(str(slot.address), API), "a released slot is not allowed anything"
    await restarted.close()


async def test_denying_other_addresses_does_not_block_the_hairpin(engine: Engine) -> None:
    slot = await engine.network.acquire(0)
    await engine.network.set_policy(0, NetworkPolicy(deny_out=(f"{WEB}/24",)))
    assert await engine.dial(slot) == "ok"
    assert await engine.dial(slot, 80, WEB) == REFUSED
