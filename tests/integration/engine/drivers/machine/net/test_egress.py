"""The addresses that a sandbox can reach, with real traffic: first the default policy, then what policies and the operator change."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

import dns.message
import pytest

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.machine.net import NetSlot, Network, NetworkSettings, links, uplink
from sandyard.engine.drivers.machine.net.conntrack import is_crowded
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.nft import Nft
from sandyard.kit.errors import InvalidInputError, NotFoundError
from tests.integration.engine.drivers.machine.net.topology import (
    CLOUD,
    HOST,
    LAN,
    METADATA,
    MIRROR,
    NEIGHBOUR,
    STREAM,
    WEB,
    Internet,
    Topology,
    addresses_in,
    dial,
    dial_udp,
    inside,
    ping,
    resolve,
    within,
)

REFUSED = "ECONNREFUSED"
ALL = "0.0.0.0/0"


async def tcp(slot: NetSlot, address: str, port: int = 80) -> str:
    return await inside(slot.netns_path, lambda: dial(address, port))


async def udp(slot: NetSlot, address: str) -> str:
    return await inside(slot.netns_path, lambda: dial_udp(address))


async def test_the_internet_is_reached_through_the_hosts_address(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    assert await tcp(slot, WEB) == "ok"
    assert await udp(slot, MIRROR) == "ok"
    assert await inside(slot.netns_path, lambda: ping(WEB)) == "ok"
    assert set(topology.internet.seen) == {("tcp", WEB, HOST), ("udp", MIRROR, HOST)}


async def test_the_host_is_unreachable_on_every_address(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    assert slot.gateway
    services = Internet(topology.host, ("127.0.0.1", HOST, slot.gateway), names=False)
    try:
        for address in ("127.0.0.1", HOST, slot.gateway):
            assert (dial(address), dial_udp(address)) == ("ok", "ok"), (
                "the service must run, or its denial would prove nothing"
            )
        services.seen.clear()
        for address in (HOST, slot.gateway):
            assert await tcp(slot, address) == REFUSED
            assert await udp(slot, address) != "ok"
            assert await inside(slot.netns_path, partial(ping, address)) != "ok"
        # The sandbox's own loopback is not the host's.
        assert await tcp(slot, "127.0.0.1") == REFUSED
        assert services.seen == []
    finally:
        services.close()


async def test_ports_that_the_host_redirects_are_unreachable(topology: Topology, network: Network) -> None:
    """For example, a port that Docker publishes on the host's address and redirects."""
    slot = await network.acquire(0)
    nft = Nft()
    nft.run(
        "add table ip nat\n"
        "add chain ip nat PREROUTING { type nat hook prerouting priority dstnat; }\n"
        f"add rule ip nat PREROUTING fib daddr type local tcp dport 8088 dnat to {WEB}:80\n"
    )
    nft.close()
    await network.set_policy(0, NetworkPolicy(allow_out=("198.18.0.0/16", ALL)))
    assert await tcp(slot, HOST, 8088) == REFUSED
    assert await tcp(slot, WEB) == "ok"
    assert topology.internet.seen == [("tcp", WEB, HOST)]


async def test_other_sandboxes_are_unreachable(topology: Topology, network: Network) -> None:
    one, two = await network.acquire(0), await network.acquire(1)
    assert two.address
    namespace = two.netns_path.open()
    services = Internet(namespace.fileno(), (two.address,), names=False)
    try:
        with within(namespace.fileno()):
            assert dial(two.address) == "ok"
        services.seen.clear()
        await network.set_policy(0, NetworkPolicy(allow_out=(two.address, "100.64.0.0/10", ALL)))
        assert await tcp(one, two.address) == REFUSED
        assert await udp(one, two.address) != "ok"
        assert services.seen == []
        assert dial(two.address, timeout=0.3) != "ok", "the host cannot connect either"
    finally:
        services.close()
        namespace.close()


@pytest.mark.parametrize("lan", ["deny", "allow"])
async def test_a_sandbox_is_unreachable_from_outside(
    topology: Topology, tmp_path: Path, lan: Literal["deny", "allow"]
) -> None:
    network = Network("in", tmp_path / "net", NetworkSettings(lan=lan, pool=1, resolv_conf=topology.resolv_conf))
    await network.open(())
    slot = await network.acquire(0)
    assert slot.address
    namespace = slot.netns_path.open()
    services = Internet(namespace.fileno(), (slot.address,), names=False)
    try:
        with within(topology.outside), Netlink() as netlink:
            netlink.request(links.add_default_route(IPv4Address(HOST), 10))  # the neighbour routes through the host
        with within(topology.outside):
            assert dial(slot.address, timeout=0.5) != "ok"
            assert dial_udp(slot.address, timeout=0.5) != "ok"
        assert services.seen == []
    finally:
        services.close()
        namespace.close()
        await network.close(remove=True)


@pytest.mark.parametrize("address", [METADATA, CLOUD, "224.0.0.251", "255.255.255.255", "0.0.0.0", "240.0.0.1"])
@pytest.mark.parametrize("policy", [NetworkPolicy(), NetworkPolicy(allow_out=("169.254.0.0/16", "100.64.0.0/10", ALL))])
async def test_special_addresses_are_unreachable_under_every_policy(
    topology: Topology, network: Network, address: str, policy: NetworkPolicy
) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, policy)
    assert await tcp(slot, address) != "ok"
    assert await inside(slot.netns_path, lambda: dial_udp(address, timeout=0.5)) != "ok"
    assert topology.internet.seen == []


async def test_private_networks_must_be_allowed_explicitly(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    for address in (LAN, NEIGHBOUR):
        assert await tcp(slot, address) == REFUSED
        assert await udp(slot, address) != "ok"
    await network.set_policy(0, NetworkPolicy(allow_out=(ALL,)))
    assert await tcp(slot, LAN) == REFUSED, "allowing everything does not allow private networks"
    await network.set_policy(0, NetworkPolicy(allow_out=("10.1.0.0/16",)))
    assert await tcp(slot, LAN) == "ok"
    assert await tcp(slot, NEIGHBOUR) == REFUSED
    assert await tcp(slot, WEB) == "ok"
    await network.set_policy(0, NetworkPolicy(allow_out=(NEIGHBOUR,)))
    assert await tcp(slot, LAN) == REFUSED
    assert await tcp(slot, NEIGHBOUR) == "ok"
    assert await tcp(slot, HOST) == REFUSED


async def test_the_operator_can_allow_the_lan(topology: Topology, tmp_path: Path) -> None:
    settings = NetworkSettings(lan="allow", pool=1, resolv_conf=topology.resolv_conf)
    network = Network("lan", tmp_path / "net", settings)
    await network.open(())
    try:
        slot = await network.acquire(0)
        services = Internet(topology.host, (HOST,), names=False)
        try:
            assert await tcp(slot, LAN) == await tcp(slot, NEIGHBOUR) == "ok"
            assert await tcp(slot, HOST) == await tcp(slot, METADATA) == REFUSED
            assert services.seen == []
        finally:
            services.close()
    finally:
        await network.close(remove=True)


async def test_a_network_the_host_joins_later_is_private_too(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    assert await tcp(slot, WEB) == "ok"
    with Netlink() as netlink:
        netlink.request(links.add_address(10, IPv4Address("198.51.100.1"), 24))
    with within(topology.outside), Netlink() as netlink:
        netlink.request(links.add_route(IPv4Address("198.51.100.1"), 10))
    for _ in range(1000):
        if await tcp(slot, WEB) == REFUSED:
            break
        await asyncio.sleep(0.02)
    assert dial(WEB) == "ok"
    assert await tcp(slot, WEB) == REFUSED


async def test_ipv6_exists_only_on_the_loopback(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)

    def inspect_ipv6() -> tuple[list[str], list[str]]:
        devices = [line.split()[-1] for line in Path("/proc/thread-self/net/if_inet6").read_text().splitlines()]
        outcomes = []
        for address in (("2001:db8::1", 80), ("fe80::1%eth0", 80)):
            with socket.socket(socket.AF_INET6) as sock:
                try:
                    sock.settimeout(1)
                    sock.connect(socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][4])
                    outcomes.append("ok")
                except OSError as error:
                    outcomes.append(type(error).__name__)
        with socket.socket(socket.AF_INET6) as listener:
            listener.bind(("::1", 0))
            listener.listen()
            socket.create_connection(listener.getsockname()[:2], timeout=1).close()
        return devices, outcomes

    devices, outcomes = await inside(slot.netns_path, inspect_ipv6)
    assert devices == ["lo"]
    assert len(outcomes) == 2
    assert "ok" not in outcomes
    names = {line.split()[-1] for line in Path("/proc/net/if_inet6").read_text().splitlines()}
    assert not names & topology.interfaces()


async def test_allow_internet_false_denies_all(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, NetworkPolicy(allow_internet=False))
    assert await tcp(slot, WEB) == REFUSED
    assert await udp(slot, WEB) == "EHOSTUNREACH"
    assert await inside(slot.netns_path, lambda: ping(WEB)) == "EHOSTUNREACH"
    assert topology.internet.seen == []
    await network.set_policy(0, NetworkPolicy())
    assert await tcp(slot, WEB) == "ok"


@pytest.mark.parametrize("closing", [{"allow_internet": False}, {"deny_out": (ALL,)}])
async def test_allow_out_is_an_exception_from_denying_all(
    topology: Topology, network: Network, closing: dict[str, object]
) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, NetworkPolicy(allow_out=(WEB,), **closing))  # type: ignore[arg-type]
    assert await tcp(slot, WEB) == await udp(slot, WEB) == "ok"
    assert await tcp(slot, MIRROR) == REFUSED
    await network.set_policy(0, NetworkPolicy(allow_out=("198.51.100.16/28",), **closing))  # type: ignore[arg-type]
    assert await tcp(slot, WEB) == REFUSED
    assert await tcp(slot, MIRROR) == "ok"


async def test_allow_out_takes_precedence_over_deny_out(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, NetworkPolicy(deny_out=("198.51.100.0/24",), allow_out=(MIRROR,)))
    assert await tcp(slot, WEB) == REFUSED
    assert await tcp(slot, MIRROR) == "ok"
    await network.set_policy(0, NetworkPolicy(deny_out=(MIRROR,)))
    assert await tcp(slot, WEB) == "ok"
    assert await tcp(slot, MIRROR) == REFUSED


async def test_a_policy_applies_to_one_sandbox_only(topology: Topology, network: Network) -> None:
    one, two = await network.acquire(0), await network.acquire(1)
    await network.set_policy(0, NetworkPolicy(allow_internet=False, allow_out=(MIRROR,)))
    await network.set_policy(1, NetworkPolicy(deny_out=(MIRROR,)))
    assert (await tcp(one, WEB), await tcp(one, MIRROR)) == (REFUSED, "ok")
    assert (await tcp(two, WEB), await tcp(two, MIRROR)) == ("ok", REFUSED)


async def test_a_new_policy_cuts_only_the_connections_that_it_denies(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)

    def connect() -> tuple[socket.socket, socket.socket]:
        return socket.create_connection((WEB, 80), timeout=3), socket.create_connection((MIRROR, 80), timeout=3)

    def exchange(connection: socket.socket) -> str:
        try:
            connection.sendall(b"ping")
            return connection.recv(10).decode()
        except OSError as error:
            return type(error).__name__

    web, mirror = await inside(slot.netns_path, connect)
    try:
        assert exchange(web) == exchange(mirror) == "ping"
        await network.set_policy(0, NetworkPolicy(deny_out=(WEB,)))
        assert exchange(web) == "ConnectionResetError"
        assert exchange(mirror) == "ping"
        await network.set_policy(0, NetworkPolicy(allow_internet=False, allow_out=(MIRROR,)))
        assert exchange(mirror) == "ping"
        await network.set_policy(0, NetworkPolicy(allow_internet=False))
        assert exchange(mirror) == "ConnectionResetError"
    finally:
        web.close()
        mirror.close()


async def test_a_new_policy_also_cuts_incoming_streams(topology: Topology, network: Network) -> None:
    """A server keeps sending to a client that sends nothing more."""
    slot = await network.acquire(0)

    def subscribe() -> socket.socket:
        listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listening.settimeout(2)
        listening.connect((WEB, STREAM))
        listening.send(b"start")
        for _ in range(3):
            assert listening.recv(100) == b"stream"
        return listening

    with await inside(slot.netns_path, subscribe) as listening:
        await network.set_policy(0, NetworkPolicy(deny_out=(WEB,)))
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                listening.recv(100)  # what had already arrived
        sent = topology.internet.streamed
        while topology.internet.streamed < sent + 20:
            await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            listening.recv(100)


async def test_one_sandbox_cannot_fill_the_hosts_connection_table(topology: Topology, tmp_path: Path) -> None:
    # One more than below: the network itself sends a query from its first namespace.
    network = Network("few", tmp_path / "net", NetworkSettings(pool=1, connections=6, resolv_conf=topology.resolv_conf))
    await network.open(())
    try:
        slot, other = await network.acquire(0), await network.acquire(1)

        def open_many() -> tuple[list[socket.socket], str]:
            held = [socket.create_connection((WEB, 80), timeout=3) for _ in range(5)]
            return held, dial(WEB)

        held, sixth = await inside(slot.netns_path, open_many)
        assert sixth == REFUSED
        assert await tcp(other, WEB) == "ok"
        for connection in held:
            connection.close()
    finally:
        await network.close(remove=True)


async def test_thousands_of_connections_can_be_opened_at_once(topology: Topology, network: Network) -> None:
    if not Path("/proc/net/nf_conntrack").exists():
        pytest.skip("this kernel does not list its connections")
    slot = await network.acquire(0)

    def send_to_many_ports() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            for port in range(3000):
                one.sendto(b"x", (WEB, 10_000 + port))

    await inside(slot.netns_path, send_to_many_ports)
    assert topology.connections(slot.address or "") >= 3000


@pytest.mark.parametrize("name_server", ["own port", "other port"])
async def test_one_sandbox_cannot_fill_the_hosts_connection_table_with_queries(
    topology: Topology, tmp_path: Path, name_server: str
) -> None:
    if not Path("/proc/net/nf_conntrack").exists():
        pytest.skip("this kernel does not list its connections")
    other_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if name_server == "other port":
        other_server.bind(("0.0.0.0", 53))
    network = Network(
        "asked", tmp_path / "net", NetworkSettings(pool=2, connections=20, resolv_conf=topology.resolv_conf)
    )
    await network.open(())
    try:
        slot, other = await network.acquire(0), await network.acquire(1)
        gateway = slot.gateway or ""

        query = dns.message.make_query("web.test", "A").to_wire()

        def send_from_many_ports() -> list[socket.socket]:
            held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(60)]
            for client in held:
                client.connect((gateway, 53))
                client.send(query)
            return held

        def connect_many() -> list[socket.socket]:
            held = []
            with contextlib.suppress(ConnectionRefusedError):
                for _ in range(60):
                    held.append(socket.create_connection((gateway, 53), timeout=3))
            return held

        async def count_until_stable() -> int:
            before, count = -1, topology.connections(slot.address or "")
            while count != before:
                await asyncio.sleep(0.2)
                before, count = count, topology.connections(slot.address or "")
            return count

        held = await inside(slot.netns_path, send_from_many_ports)
        assert 0 < await count_until_stable() <= 20
        held += await inside(slot.netns_path, connect_many)
        assert len(held) < 120, "connections by TCP count too"
        assert await count_until_stable() <= 20
        answer = await inside(other.netns_path, lambda: resolve(gateway, "web.test"))
        assert addresses_in(answer) == {WEB}
        for client in held:
            client.close()
    finally:
        await network.close(remove=True)
        other_server.close()


async def test_all_sandboxes_together_leave_the_host_half_of_its_connection_table(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nf_conntrack_max").write_text("1000")

    def fill(count: int) -> None:
        (tmp_path / "nf_conntrack_count").write_text(str(count))

    fill(500)
    monkeypatch.setattr(uplink, "is_crowded", lambda before: is_crowded(before, tmp_path))
    monkeypatch.setattr(uplink, "CROWDING_INTERVAL_S", 0.01)
    network = Network("crowd", tmp_path / "net", NetworkSettings(pool=1, resolv_conf=topology.resolv_conf))
    await network.open(())
    try:
        slot = await network.acquire(0)
        held = await inside(slot.netns_path, lambda: socket.create_connection((WEB, 80), timeout=3))
        fill(501)
        await until(lambda: tcp(slot, WEB), REFUSED)
        held.sendall(b"ping")
        assert held.recv(10) == b"ping", "existing connections keep working"
        fill(376)
        assert await tcp(slot, WEB) == REFUSED
        fill(375)
        await until(lambda: tcp(slot, WEB), "ok")
        held.close()
    finally:
        await network.close(remove=True)


async def until(probe: Callable[[], Awaitable[str]], expected: str) -> None:
    async with asyncio.timeout(20):
        while await probe() != expected:
            await asyncio.sleep(0.01)


async def test_an_invalid_policy_changes_nothing(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, NetworkPolicy(deny_out=(WEB,)))
    for bad in (
        NetworkPolicy(deny_out=("web.test",)),
        NetworkPolicy(allow_out=("web.test",)),
        NetworkPolicy(allow_internet=False, allow_out=("not a name",)),
    ):
        with pytest.raises(InvalidInputError):
            await network.set_policy(0, bad)
    with pytest.raises(NotFoundError):
        await network.set_policy(7, NetworkPolicy())
    assert await tcp(slot, WEB) == REFUSED
    assert await tcp(slot, MIRROR) == "ok"


async def test_a_flushed_firewall_is_restored(topology: Topology, network: Network) -> None:
    """`systemctl restart nftables` removes all rules on most hosts."""
    one, two = await network.acquire(0), await network.acquire(1)
    await network.set_policy(1, NetworkPolicy(deny_out=(WEB,)))
    nft = Nft()
    nft.run("flush ruleset")
    for _ in range(2000):
        if nft.query("list tables"):
            break
        await asyncio.sleep(0.01)
    nft.close()
    assert await tcp(one, WEB) == "ok"
    assert (await tcp(two, WEB), await tcp(two, MIRROR)) == (REFUSED, "ok")
