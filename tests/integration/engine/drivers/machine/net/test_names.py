"""DNS: which names resolve in a sandbox, and which addresses an allowed name opens."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import dns.rcode
import pytest

from sandyard.engine.contract import DeniedAttempt, NetworkPolicy
from sandyard.engine.drivers.machine.net import NetSlot, Network, NetworkSettings
from sandyard.engine.drivers.machine.net.forwarder import Forwarder
from sandyard.engine.drivers.machine.net.nft import Nft
from tests.integration.engine.drivers.machine.net.topology import (
    HOST,
    LAN,
    METADATA,
    MIRROR,
    RESOLVER,
    WEB,
    ZONE,
    Topology,
    addresses_in,
    dial,
    inside,
    resolve,
    within,
)

REFUSED = "ECONNREFUSED"


async def look_up(slot: NetSlot, name: str, stream: bool = False) -> set[str] | str:
    """Return the addresses, or the name of the response code."""
    answer = await inside(slot.netns_path, lambda: resolve(slot.dns or "", name, stream=stream))
    return addresses_in(answer) or dns.rcode.to_text(answer.rcode())


async def tcp(slot: NetSlot, address: str) -> str:
    return await inside(slot.netns_path, lambda: dial(address))


def allow_only(*names: str) -> NetworkPolicy:
    return NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=names)


@pytest.mark.parametrize("stream", [False, True])
async def test_names_resolve(network: Network, stream: bool) -> None:
    slot = await network.acquire(0)
    assert await look_up(slot, "web.test", stream) == {WEB}
    assert await look_up(slot, "WEB.test", stream) == {WEB}
    assert await look_up(slot, "nowhere.test", stream) == "NXDOMAIN"


async def test_an_answer_too_big_for_a_datagram_is_available_over_tcp(network: Network) -> None:
    slot = await network.acquire(0)
    short = await inside(slot.netns_path, lambda: resolve(slot.dns or "", "big.test"))
    assert short.flags & dns.flags.TC
    assert await look_up(slot, "big.test", stream=True) == {value for _, value in ZONE["big.test"]}


async def test_many_queries_on_one_tcp_connection_are_answered(network: Network) -> None:
    slot = await network.acquire(0)

    def send_queries() -> None:
        query = dns.message.make_query("web.test", "A").to_wire()
        with socket.create_connection((slot.dns or "", 53), timeout=3) as connection:
            file = connection.makefile("rb")
            for _ in range(10):
                connection.sendall(len(query).to_bytes(2, "big") + query)
                assert addresses_in(dns.message.from_wire(file.read(int.from_bytes(file.read(2), "big")))) == {WEB}

    await inside(slot.netns_path, send_queries)


async def test_queries_are_refused_and_not_forwarded_without_egress(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    for policy in (NetworkPolicy(allow_internet=False), allow_only(WEB)):
        await network.set_policy(0, policy)
        assert await look_up(slot, "web.test") == await look_up(slot, "web.test", stream=True) == "REFUSED"
        assert await tcp(slot, RESOLVER) == REFUSED
    assert topology.internet.queries == []
    await network.set_policy(0, NetworkPolicy(deny_out=(WEB,)))
    assert await look_up(slot, "web.test") == {WEB}


async def test_an_allowed_name_opens_its_addresses_and_nothing_else(topology: Topology, network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)
    for number in (0, 1):
        await network.set_policy(number, allow_only("web.test"))
    assert await tcp(slot, WEB) == REFUSED, "its name has not been looked up yet"
    assert await look_up(slot, "mirror.test") == "REFUSED"
    assert await look_up(slot, "api.web.test") == "REFUSED"
    assert topology.internet.queries == [], "queries for other names are not forwarded"
    assert await look_up(slot, "web.test") == {WEB}
    assert await tcp(slot, WEB) == "ok"
    assert await tcp(slot, MIRROR) == REFUSED
    assert await tcp(other, WEB) == REFUSED, "the other sandbox has not looked the name up"


async def test_wildcards_aliases_and_addresses_can_be_combined(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("*.web.test", "Alias.Test", "198.51.100.53"))
    assert await look_up(slot, "web.test") == "REFUSED", "a wildcard matches only subdomains"
    assert await look_up(slot, "api.web.test") == {MIRROR}
    assert await tcp(slot, MIRROR) == await tcp(slot, RESOLVER) == "ok"
    assert await tcp(slot, WEB) == REFUSED
    assert await look_up(slot, "alias.test") == {WEB}
    assert await tcp(slot, WEB) == "ok"
    await network.set_policy(0, allow_only("*"))
    assert await look_up(slot, "mirror.test") == {MIRROR}


async def test_an_answer_opens_neither_private_nor_metadata_addresses(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("rebind.test", "meta.test"))
    assert await look_up(slot, "rebind.test") == {LAN}
    assert await look_up(slot, "meta.test") == {METADATA}
    assert await tcp(slot, LAN) == await tcp(slot, METADATA) == REFUSED
    await network.set_policy(0, allow_only("rebind.test", "10.0.0.0/8"))
    assert await tcp(slot, LAN) == "ok"


async def test_removing_a_name_from_the_policy_cuts_only_its_connections(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("web.test", "mirror.test"))
    assert await look_up(slot, "web.test") == {WEB}
    assert await look_up(slot, "mirror.test") == {MIRROR}

    def connect() -> list[socket.socket]:
        return [socket.create_connection((address, 80), timeout=3) for address in (WEB, MIRROR)]

    web, mirror = await inside(slot.netns_path, connect)
    with web, mirror:
        for connection in (web, mirror):
            connection.sendall(b"one")
            assert connection.recv(10) == b"one"
        await network.set_policy(0, allow_only("mirror.test"))
        mirror.sendall(b"two")
        assert mirror.recv(10) == b"two"
        assert await tcp(slot, MIRROR) == "ok", "without another query"
        web.sendall(b"two")
        with pytest.raises(ConnectionResetError):
            web.recv(10)
        assert await tcp(slot, WEB) == REFUSED
    await network.set_policy(0, NetworkPolicy(allow_internet=False))
    assert await tcp(slot, MIRROR) == REFUSED
    await network.set_policy(0, allow_only("mirror.test"))
    assert await tcp(slot, MIRROR) == REFUSED, "the name must be looked up again"


async def test_a_connection_survives_the_expiry_of_the_dns_answer(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("web.test"))
    assert await look_up(slot, "web.test") == {WEB}
    connection = await inside(slot.netns_path, lambda: socket.create_connection((WEB, 80), timeout=3))
    with connection:
        connection.sendall(b"one")
        assert connection.recv(10) == b"one"
        nft = Nft()
        table = nft.query("list tables inet")[0]["table"]["name"]
        nft.run(f"flush set inet {table} names")  # as if all had expired
        nft.close()
        assert await tcp(slot, WEB) == REFUSED
        connection.sendall(b"two")
        assert connection.recv(10) == b"two"


async def test_another_query_extends_the_expiry(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("web.test"))
    nft = Nft()
    table = nft.query("list tables inet")[0]["table"]["name"]
    for _ in range(3):
        assert await look_up(slot, "web.test") == {WEB}
    elements = nft.query(f"list set inet {table} names")[0]["set"]["elem"]
    nft.close()
    assert len(elements) == 1
    assert elements[0]["elem"]["comment"] == "web.test"
    assert 590 < elements[0]["elem"]["expires"] <= 600


async def test_a_name_cannot_inject_commands_into_the_firewall(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("*.web.test"))
    evil = b'\x1ex" }; flush ruleset; add table'
    wire = bytes.fromhex("000701000001000000000000") + evil + b"\x03web\x04test\x00\x00\x01\x00\x01"
    answer = bytes.fromhex("0000818000010001000000 00") + wire[12:] + bytes.fromhex("c00c00010001000000300004c6336414")
    assert len(evil) == 1 + evil[0]

    def attack() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(3)
            sock.connect((slot.dns or "", 53))
            sock.send(wire)
            return sock.recv(512)

    with within(topology.outside):
        topology.internet.fixed_response = answer
    assert (await inside(slot.netns_path, attack))[-4:] == bytes([198, 51, 100, 20])
    assert await tcp(slot, MIRROR) == REFUSED
    nft = Nft()
    assert nft.query("list tables")
    nft.close()


async def test_queries_of_one_sandbox_do_not_block_another(topology: Topology, network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((slot.dns or "", 53))
            for number in range(200):
                sock.send(dns.message.make_query(f"{number}.silent.test", "A").to_wire())

    await inside(slot.netns_path, flood)
    assert await look_up(other, "web.test") == {WEB}
    queries = {name for name in topology.internet.queries if name.endswith("silent.test")}
    assert 0 < len(queries) <= 64


async def test_a_flood_of_queries_is_limited_in_the_kernel(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = await network.acquire(0)
    received = 0

    def count(self: Forwarder, data: bytes, sender: tuple[str, int]) -> None:
        nonlocal received
        received += 1

    monkeypatch.setattr(Forwarder, "datagram_received", count)

    def flood() -> float:
        start = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((slot.dns or "", 53))
            for _ in range(4000):
                sock.send(bytes(12))
        return time.monotonic() - start

    elapsed = await inside(slot.netns_path, flood)
    await asyncio.sleep(0.1)
    assert 0 < received <= 510 + 500 * elapsed
    assert received < 4000


async def test_denied_traffic_is_reported_once(network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)
    await network.set_policy(0, allow_only("web.test"))
    assert await network.take_denied(0) == []
    await look_up(slot, "web.test")
    assert await tcp(slot, WEB) == "ok"
    assert await look_up(slot, "mirror.test") == "REFUSED"
    assert await tcp(slot, MIRROR) == REFUSED
    assert await tcp(other, MIRROR) == "ok"
    assert await network.take_denied(0) == [DeniedAttempt("mirror.test", "dns"), DeniedAttempt(MIRROR, "tcp", 80)]
    assert await network.take_denied(0) == []
    assert await network.take_denied(1) == []
    await network.set_policy(0, NetworkPolicy(deny_out=(f"{MIRROR}/32",)))
    assert await tcp(slot, MIRROR) == REFUSED
    assert await network.take_denied(0) == [DeniedAttempt(MIRROR, "tcp", 80)]


async def test_an_address_of_two_names_stays_open_while_one_is_allowed(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("mirror.test", "api.web.test"))
    assert await look_up(slot, "mirror.test") == await look_up(slot, "api.web.test") == {MIRROR}
    await network.set_policy(0, allow_only("api.web.test"))
    assert await tcp(slot, MIRROR) == "ok"
    await network.set_policy(0, allow_only("web.test"))
    assert await tcp(slot, MIRROR) == REFUSED


async def test_a_dead_name_server_is_reported_and_the_next_one_is_used(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    topology.resolv_conf.write_text("nameserver 127.0.0.9\n")
    await asyncio.sleep(1.1)  # the file is checked once a second
    assert await look_up(slot, "web.test") == "SERVFAIL"
    topology.resolv_conf.write_text(f"nameserver 127.0.0.9\noptions edns0\nnameserver {RESOLVER}\n")
    await asyncio.sleep(1.1)
    assert await look_up(slot, "web.test") == {WEB}


async def test_malformed_queries_are_harmless(network: Network) -> None:
    slot = await network.acquire(0)

    def send_garbage() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((slot.dns or "", 53))
            for garbage in (b"", b"x", bytes(12), bytes(600), b"\xff" * 40, bytes.fromhex("00010100000100000000") * 4):
                sock.send(garbage)
        for garbage in (b"\x00", b"\xff\xff" + bytes(100), b"\x00\x00", b"\x00\x0c" + bytes(12)):
            with socket.create_connection((slot.dns or "", 53), timeout=3) as connection:
                connection.sendall(garbage)

    await inside(slot.netns_path, send_garbage)
    assert await look_up(slot, "web.test") == {WEB}


async def test_only_sandboxes_get_dns_answers(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    for namespace in (topology.host, topology.outside):
        with within(namespace), pytest.raises(OSError):
            if namespace == topology.outside:
                topology.route_back(slot.gateway or "")
            resolve(slot.gateway or "", "web.test", timeout=0.3)
    with within(topology.outside):
        assert dial(slot.gateway or "", 53, timeout=0.3) == "timeout", "the firewall drops the connection"
    assert topology.internet.queries == []


async def test_a_stub_resolver_of_the_host_is_queried_from_the_host(topology: Topology, tmp_path: Path) -> None:
    """As with systemd-resolved, whose 127.0.0.53 cannot be reached from inside a sandbox."""
    resolv_conf = tmp_path / "stub.conf"
    resolv_conf.write_text("nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n")
    topology.serve_names(topology.host, "127.0.0.53")
    network = Network("stub", tmp_path / "net", NetworkSettings(pool=1, resolv_conf=resolv_conf))
    await network.open(())
    try:
        slot = await network.acquire(0)
        assert await look_up(slot, "web.test") == await look_up(slot, "web.test", stream=True) == {WEB}
        assert await tcp(slot, "127.0.0.53") == REFUSED
    finally:
        await network.close(remove=True)


async def test_a_name_server_of_the_host_on_all_addresses_does_not_interfere(
    topology: Topology, tmp_path: Path
) -> None:
    """dnsmasq or bind on 0.0.0.0:53: sandboxes must not reach it, and it leaves no port 53 for us."""
    server_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server_socket.bind(("0.0.0.0", 53))
    listener = socket.create_server(("0.0.0.0", 53))
    network = Network("busy", tmp_path / "net", NetworkSettings(pool=1, resolv_conf=topology.resolv_conf))
    await network.open(())
    try:
        assert dict(network.missing) == {}
        slot = await network.acquire(0)
        assert await look_up(slot, "web.test") == await look_up(slot, "web.test", stream=True) == {WEB}
        assert await inside(slot.netns_path, lambda: dial(HOST, 53)) == REFUSED
        server_socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            server_socket.recv(100)
    finally:
        await network.close(remove=True)
        server_socket.close()
        listener.close()
