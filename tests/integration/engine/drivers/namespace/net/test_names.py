"""Names: what resolves in a sandbox, and what an allowed name opens."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import dns.rcode
import pytest

from sandyard.engine.contract import Denied, NetworkPolicy
from sandyard.engine.drivers.namespace.net import NetSlot, Network, NetworkSettings
from sandyard.engine.drivers.namespace.net.forwarder import Forwarder
from sandyard.engine.drivers.namespace.net.nft import Nft
from tests.integration.engine.drivers.namespace.net.topology import (
    HOST,
    LAN,
    METADATA,
    MIRROR,
    RESOLVER,
    WEB,
    ZONE,
    Topology,
    dial,
    found,
    inside,
    resolve,
    within,
)

REFUSED = "ECONNREFUSED"


async def ask(slot: NetSlot, name: str, stream: bool = False) -> set[str] | str:
    """The addresses, or the name of the response code."""
    answer = await inside(slot.netns_path, lambda: resolve(slot.dns or "", name, stream=stream))
    return found(answer) or dns.rcode.to_text(answer.rcode())


async def tcp(slot: NetSlot, address: str) -> str:
    return await inside(slot.netns_path, lambda: dial(address))


def only(*names: str) -> NetworkPolicy:
    return NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=names)


@pytest.mark.parametrize("stream", [False, True])
async def test_names_resolve(network: Network, stream: bool) -> None:
    slot = await network.acquire(0)
    assert await ask(slot, "web.test", stream) == {WEB}
    assert await ask(slot, "WEB.test", stream) == {WEB}
    assert await ask(slot, "nowhere.test", stream) == "NXDOMAIN"


async def test_an_answer_too_big_for_a_datagram_is_had_by_stream(network: Network) -> None:
    slot = await network.acquire(0)
    short = await inside(slot.netns_path, lambda: resolve(slot.dns or "", "big.test"))
    assert short.flags & dns.flags.TC
    assert await ask(slot, "big.test", stream=True) == {value for _, value in ZONE["big.test"]}


async def test_many_questions_on_one_stream(network: Network) -> None:
    slot = await network.acquire(0)

    def converse() -> None:
        query = dns.message.make_query("web.test", "A").to_wire()
        with socket.create_connection((slot.dns or "", 53), timeout=3) as connection:
            file = connection.makefile("rb")
            for _ in range(10):
                connection.sendall(len(query).to_bytes(2, "big") + query)
                assert found(dns.message.from_wire(file.read(int.from_bytes(file.read(2), "big")))) == {WEB}

    await inside(slot.netns_path, converse)


async def test_without_egress_no_question_leaves(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    for policy in (NetworkPolicy(allow_internet=False), only(WEB)):
        await network.set_policy(0, policy)
        assert await ask(slot, "web.test") == await ask(slot, "web.test", stream=True) == "REFUSED"
        assert await tcp(slot, RESOLVER) == REFUSED
    assert topology.internet.asked == []
    await network.set_policy(0, NetworkPolicy(deny_out=(WEB,)))
    assert await ask(slot, "web.test") == {WEB}


async def test_an_allowed_name_opens_its_addresses_and_nothing_else(topology: Topology, network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)
    for number in (0, 1):
        await network.set_policy(number, only("web.test"))
    assert await tcp(slot, WEB) == REFUSED, "nobody has asked for its name yet"
    assert await ask(slot, "mirror.test") == "REFUSED"
    assert await ask(slot, "api.web.test") == "REFUSED"
    assert topology.internet.asked == [], "questions for other names go nowhere"
    assert await ask(slot, "web.test") == {WEB}
    assert await tcp(slot, WEB) == "ok"
    assert await tcp(slot, MIRROR) == REFUSED
    assert await tcp(other, WEB) == REFUSED, "it was not the other one that asked"


async def test_wildcards_aliases_and_addresses_together(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, only("*.web.test", "Alias.Test", "198.51.100.53"))
    assert await ask(slot, "web.test") == "REFUSED", "a wildcard is for what is below it"
    assert await ask(slot, "api.web.test") == {MIRROR}
    assert await tcp(slot, MIRROR) == await tcp(slot, RESOLVER) == "ok"
    assert await tcp(slot, WEB) == REFUSED
    assert await ask(slot, "alias.test") == {WEB}
    assert await tcp(slot, WEB) == "ok"
    await network.set_policy(0, only("*"))
    assert await ask(slot, "mirror.test") == {MIRROR}


async def test_an_answer_opens_neither_private_nor_metadata_addresses(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, only("rebind.test", "meta.test"))
    assert await ask(slot, "rebind.test") == {LAN}
    assert await ask(slot, "meta.test") == {METADATA}
    assert await tcp(slot, LAN) == await tcp(slot, METADATA) == REFUSED
    await network.set_policy(0, only("rebind.test", "10.0.0.0/8"))
    assert await tcp(slot, LAN) == "ok"


async def test_a_name_taken_off_the_list_is_cut_and_the_others_are_not(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, only("web.test", "mirror.test"))
    assert await ask(slot, "web.test") == {WEB}
    assert await ask(slot, "mirror.test") == {MIRROR}

    def connect() -> list[socket.socket]:
        return [socket.create_connection((address, 80), timeout=3) for address in (WEB, MIRROR)]

    web, mirror = await inside(slot.netns_path, connect)
    with web, mirror:
        for connection in (web, mirror):
            connection.sendall(b"one")
            assert connection.recv(10) == b"one"
        await network.set_policy(0, only("mirror.test"))
        mirror.sendall(b"two")
        assert mirror.recv(10) == b"two"
        assert await tcp(slot, MIRROR) == "ok", "without asking again"
        web.sendall(b"two")
        with pytest.raises(ConnectionResetError):
            web.recv(10)
        assert await tcp(slot, WEB) == REFUSED
    await network.set_policy(0, NetworkPolicy(allow_internet=False))
    assert await tcp(slot, MIRROR) == REFUSED
    await network.set_policy(0, only("mirror.test"))
    assert await tcp(slot, MIRROR) == REFUSED, "what was forgotten must be asked for again"


async def test_a_connection_outlives_the_time_of_the_answer(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, only("web.test"))
    assert await ask(slot, "web.test") == {WEB}
    connection = await inside(slot.netns_path, lambda: socket.create_connection((WEB, 80), timeout=3))
    with connection:
        connection.sendall(b"one")
        assert connection.recv(10) == b"one"
        nft = Nft()
        table = nft.query("list tables inet")[0]["table"]["name"]
        nft.run(f"flush set inet {table} names")  # as when all have expired
        nft.close()
        assert await tcp(slot, WEB) == REFUSED
        connection.sendall(b"two")
        assert connection.recv(10) == b"two"


async def test_asking_again_prolongs_the_time(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, only("web.test"))
    nft = Nft()
    table = nft.query("list tables inet")[0]["table"]["name"]
    for _ in range(3):
        assert await ask(slot, "web.test") == {WEB}
    elements = nft.query(f"list set inet {table} names")[0]["set"]["elem"]
    nft.close()
    assert len(elements) == 1
    assert elements[0]["elem"]["comment"] == "web.test"
    assert 590 < elements[0]["elem"]["expires"] <= 600


async def test_a_name_cannot_smuggle_commands_into_the_firewall(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, only("*.web.test"))
    evil = b'\x1ex" }; flush ruleset; add table'
    wire = bytes.fromhex("000701000001000000000000") + evil + b"\x03web\x04test\x00\x00\x01\x00\x01"
    answer = bytes.fromhex("0000818000010001000000 00") + wire[12:] + bytes.fromhex("c00c00010001000000300004c6336414")
    assert len(evil) == 1 + evil[0]

    def attack() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(3)
            asking.connect((slot.dns or "", 53))
            asking.send(wire)
            return asking.recv(512)

    with within(topology.outside):
        topology.internet.answer_with = answer
    assert (await inside(slot.netns_path, attack))[-4:] == bytes([198, 51, 100, 20])
    assert await tcp(slot, MIRROR) == REFUSED
    nft = Nft()
    assert nft.query("list tables")
    nft.close()


async def test_one_sandboxes_questions_do_not_hold_up_anothers(topology: Topology, network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((slot.dns or "", 53))
            for number in range(200):
                asking.send(dns.message.make_query(f"{number}.silent.test", "A").to_wire())

    await inside(slot.netns_path, flood)
    assert await ask(other, "web.test") == {WEB}
    asked = {name for name in topology.internet.asked if name.endswith("silent.test")}
    assert 0 < len(asked) <= 64


async def test_a_flood_of_questions_ends_in_the_kernel(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = await network.acquire(0)
    received = 0

    def count(self: Forwarder, data: bytes, sender: tuple[str, int]) -> None:
        nonlocal received
        received += 1

    monkeypatch.setattr(Forwarder, "datagram_received", count)

    def flood() -> float:
        start = time.monotonic()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((slot.dns or "", 53))
            for _ in range(4000):
                asking.send(bytes(12))
        return time.monotonic() - start

    elapsed = await inside(slot.netns_path, flood)
    await asyncio.sleep(0.1)
    assert 0 < received <= 510 + 500 * elapsed
    assert received < 4000


async def test_what_is_refused_is_told_once(network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)
    await network.set_policy(0, only("web.test"))
    assert await network.take_denied(0) == []
    await ask(slot, "web.test")
    assert await tcp(slot, WEB) == "ok"
    assert await ask(slot, "mirror.test") == "REFUSED"
    assert await tcp(slot, MIRROR) == REFUSED
    assert await tcp(other, MIRROR) == "ok"
    assert await network.take_denied(0) == [Denied("mirror.test", "dns"), Denied(MIRROR, "tcp", 80)]
    assert await network.take_denied(0) == []
    assert await network.take_denied(1) == []
    await network.set_policy(0, NetworkPolicy(deny_out=(f"{MIRROR}/32",)))
    assert await tcp(slot, MIRROR) == REFUSED
    assert await network.take_denied(0) == [Denied(MIRROR, "tcp", 80)]


async def test_an_address_of_two_names_stays_open_for_the_other(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, only("mirror.test", "api.web.test"))
    assert await ask(slot, "mirror.test") == await ask(slot, "api.web.test") == {MIRROR}
    await network.set_policy(0, only("api.web.test"))
    assert await tcp(slot, MIRROR) == "ok"
    await network.set_policy(0, only("web.test"))
    assert await tcp(slot, MIRROR) == REFUSED


async def test_a_dead_server_is_reported_and_the_next_one_asked(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    topology.resolv_conf.write_text("nameserver 127.0.0.9\n")
    await asyncio.sleep(1.1)  # the file is looked at once a second
    assert await ask(slot, "web.test") == "SERVFAIL"
    topology.resolv_conf.write_text(f"nameserver 127.0.0.9\noptions edns0\nnameserver {RESOLVER}\n")
    await asyncio.sleep(1.1)
    assert await ask(slot, "web.test") == {WEB}


async def test_rubbish_is_survived(network: Network) -> None:
    slot = await network.acquire(0)

    def throw() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((slot.dns or "", 53))
            for rubbish in (b"", b"x", bytes(12), bytes(600), b"\xff" * 40, bytes.fromhex("00010100000100000000") * 4):
                asking.send(rubbish)
        for rubbish in (b"\x00", b"\xff\xff" + bytes(100), b"\x00\x00", b"\x00\x0c" + bytes(12)):
            with socket.create_connection((slot.dns or "", 53), timeout=3) as connection:
                connection.sendall(rubbish)

    await inside(slot.netns_path, throw)
    assert await ask(slot, "web.test") == {WEB}


async def test_only_sandboxes_are_answered(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    for ask_from in (topology.host, topology.outside):
        with within(ask_from), pytest.raises(OSError):
            if ask_from == topology.outside:
                topology.route_back(slot.gateway or "")
            resolve(slot.gateway or "", "web.test", timeout=0.3)
    with within(topology.outside):
        assert dial(slot.gateway or "", 53, timeout=0.3) == "timeout", "the firewall does not even let them knock"
    assert topology.internet.asked == []


async def test_the_hosts_own_stub_resolver_is_used_from_its_side(topology: Topology, tmp_path: Path) -> None:
    """As with systemd-resolved, whose 127.0.0.53 means nothing inside a sandbox."""
    resolv_conf = tmp_path / "stub.conf"
    resolv_conf.write_text("nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n")
    topology.serve_names(topology.host, "127.0.0.53")
    network = Network("stub", tmp_path / "net", NetworkSettings(pool=1, resolv_conf=resolv_conf))
    await network.open(())
    try:
        slot = await network.acquire(0)
        assert await ask(slot, "web.test") == await ask(slot, "web.test", stream=True) == {WEB}
        assert await tcp(slot, "127.0.0.53") == REFUSED
    finally:
        await network.close(remove=True)


async def test_a_server_of_the_host_on_every_address_is_no_obstacle(topology: Topology, tmp_path: Path) -> None:
    """dnsmasq or bind on 0.0.0.0:53, which sandboxes must not reach, and which leaves no port 53 to us."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("0.0.0.0", 53))
    listener = socket.create_server(("0.0.0.0", 53))
    network = Network("busy", tmp_path / "net", NetworkSettings(pool=1, resolv_conf=topology.resolv_conf))
    await network.open(())
    try:
        assert dict(network.missing) == {}
        slot = await network.acquire(0)
        assert await ask(slot, "web.test") == await ask(slot, "web.test", stream=True) == {WEB}
        assert await inside(slot.netns_path, lambda: dial(HOST, 53)) == REFUSED
        taken.setblocking(False)
        with pytest.raises(BlockingIOError):
            taken.recv(100)
    finally:
        await network.close(remove=True)
        taken.close()
        listener.close()
