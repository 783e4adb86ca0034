"""Coexistence with everything else on the host: other routes, other firewalls, other engines."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine.net import Network, NetworkSettings, links, probe, subnet
from sandyard.engine.drivers.machine.net.names import Names
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.nft import Nft
from sandyard.engine.drivers.machine.net.uplink import FORWARD_TABLE
from tests.integration.engine.drivers.machine.net.topology import (
    WEB,
    Topology,
    addresses_in,
    dial,
    inside,
    resolve,
    within,
)

DOCKER = """
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority filter; policy drop; }
add chain ip filter DOCKER-USER
add rule ip filter FORWARD jump DOCKER-USER
add rule ip filter DOCKER-USER return
"""
STRICT = """
add table inet strict
add chain inet strict incoming { type filter hook input priority filter; policy drop; }
add chain inet strict passing { type filter hook forward priority filter; policy drop; }
add rule inet strict incoming iifname "lo" accept
add rule inet strict incoming ct state established,related accept
"""


def make_network(topology: Topology, instance: str = "test", **settings: object) -> Network:
    chosen = NetworkSettings(**{"pool": 1, "resolv_conf": topology.resolv_conf, **settings})  # type: ignore[arg-type]
    return Network(instance, topology.state / instance, chosen)


def list_rules(nft: Nft, what: str) -> str:
    return str(nft.query(f"list {what}"))


async def reaches_the_web(network: Network, timeout: float = 15) -> bool:
    slot = await network.acquire(0)
    return await inside(slot.netns_path, lambda: dial(WEB, timeout=timeout)) == "ok"


@pytest.mark.parametrize("first", ["docker", "engine"])
async def test_our_traffic_passes_the_forward_chain_of_docker(topology: Topology, first: str) -> None:
    nft = Nft()
    network = make_network(topology)
    if first == "docker":
        nft.run(DOCKER)
    await network.open(())
    try:
        if first == "engine":
            nft.run(DOCKER)
            for _ in range(200):
                if "sdy" in list_rules(nft, "chain ip filter DOCKER-USER"):
                    break
                await asyncio.sleep(0.01)
        assert dict(network.missing) == {}
        assert await reaches_the_web(network)
        assert all(finding.ok for finding in probe())
    finally:
        await network.close(remove=True)
    assert "sdy" not in list_rules(nft, "ruleset")
    assert "DOCKER-USER" in list_rules(nft, "ruleset")
    nft.close()


async def test_a_strict_firewall_is_reported_until_it_allows_our_traffic(topology: Topology) -> None:
    nft = Nft()
    nft.run(STRICT)
    network = make_network(topology)
    await network.open(())
    try:
        assert set(network.missing) == {"dns", "forward"}
        assert "inet strict passing" in network.missing["forward"]
        assert "iptables -I INPUT" in network.missing["dns"]
        assert not await reaches_the_web(network, timeout=0.7)
    finally:
        await network.close(remove=True)
    findings = {finding.name: finding for finding in probe()}
    assert not findings["host firewall (forward)"].ok
    assert not findings["host firewall (dns)"].ok

    nft.run(
        'add rule inet strict passing iifname "sdy*" accept\n'
        'add rule inet strict passing oifname "sdy*" ct state established,related accept\n'
        'add rule inet strict incoming iifname "sdy*" udp dport 53 accept\n'
    )
    again = make_network(topology)
    await again.open(())
    try:
        assert dict(again.missing) == {}
        assert await reaches_the_web(again)
        slot = await again.acquire(0)
        assert addresses_in(await inside(slot.netns_path, lambda: resolve(slot.dns or "", "web.test"))) == {WEB}
    finally:
        await again.close(remove=True)
        nft.close()


def test_the_probe_reports_the_state_of_the_host(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = {finding.name: finding for finding in probe(NetworkSettings(resolv_conf=topology.resolv_conf))}
    assert all(finding.ok for finding in findings.values())
    assert "will turn" in findings["forwarding"].detail
    assert "198.51.100.53" in findings["resolver"].detail
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "0", "the probe must not change anything"
    monkeypatch.setattr("sandyard.engine.drivers.machine.net.nft.LIBRARY", "libnftables.so.none")
    missing = {finding.name: finding for finding in probe()}["nftables"]
    assert not missing.ok
    assert "apt install libnftables1" in missing.detail


async def test_forwarding_is_turned_on_only_for_sandboxes(topology: Topology, network: Network) -> None:
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text().strip() == "1"
    with within(topology.outside):
        with Netlink() as netlink:
            netlink.request(links.add_route(IPv4Address("203.0.113.9"), 10))
            netlink.request(links.add_neighbour(IPv4Address("203.0.113.9"), bytes.fromhex("020000000001"), 10))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"pass this on", ("203.0.113.9", 9))
    nft = Nft()
    try:
        async with asyncio.timeout(10):
            while not count_dropped(nft):
                await asyncio.sleep(0.01)
    finally:
        nft.close()


def count_dropped(nft: Nft) -> int:
    """Return how many packets between other hosts were not forwarded."""
    rules = [item["rule"] for item in nft.query(f"list table {FORWARD_TABLE}") if "rule" in item]
    return sum(part["counter"]["packets"] for rule in rules for part in rule["expr"] if "counter" in part)


def test_the_gateway_is_not_assigned_to_an_interface(topology: Topology, tmp_path: Path) -> None:
    names = Names.for_instance("quiet")
    with Netlink() as netlink:
        before = links.list_addresses(netlink)
        reserved = subnet.reserve(netlink, names, tmp_path / "quiet", None, in_use=False)
        assert links.list_addresses(netlink) == before, "browsers abort requests when an address is added or removed"
        with socket.socket() as server:
            server.bind((str(reserved.gateway), 0))
        subnet.release(netlink, names)
        with socket.socket() as server, pytest.raises(OSError):
            server.bind((str(reserved.gateway), 0))


def test_a_gateway_of_an_earlier_version_is_migrated(topology: Topology, tmp_path: Path) -> None:
    names = Names.for_instance("old")
    with Netlink() as netlink:
        before = links.list_addresses(netlink)
        reserved = subnet.reserve(netlink, names, tmp_path / "old", None, in_use=False)
        netlink.request(links.delete_local(reserved.gateway, names.group))
        netlink.request(links.add_address(links.LOOPBACK, reserved.gateway, label=names.label))
        assert subnet.reserve(netlink, names, tmp_path / "old", None, in_use=True) == reserved
        assert links.list_addresses(netlink) == before
        assert subnet.find_reserved(netlink, names) == reserved
        subnet.release(netlink, names)


def reserve(tag: str, folder: Path, wanted: str | None = None, in_use: bool = False) -> subnet.Subnet:
    with Netlink() as netlink:
        return subnet.reserve(netlink, Names.for_instance(tag), folder / tag, wanted, in_use)


def test_engines_that_start_together_get_different_subnets(topology: Topology, tmp_path: Path) -> None:
    with ThreadPoolExecutor(12) as threads:
        subnets = list(threads.map(lambda number: reserve(f"engine{number}", tmp_path), range(12)))
    networks = [item.network for item in subnets]
    assert all(not element.overlaps(two) for element in networks for two in networks if element is not two)
    assert all(network.subnet_of(IPv4Network("100.64.0.0/10")) for network in networks)
    assert [reserve(f"engine{number}", tmp_path) for number in range(12)] == subnets
    with Netlink() as netlink:
        for number in range(12):
            subnet.release(netlink, Names.for_instance(f"engine{number}"))
        assert not [route for route in links.list_routes(netlink) if route.blackhole]


def test_a_subnet_in_use_is_not_reserved(topology: Topology, tmp_path: Path) -> None:
    with Netlink() as netlink:
        netlink.request(links.add_blackhole(IPv4Network("100.64.0.0/10")))  # used by some other program
        assert reserve("one", tmp_path).network.subnet_of(IPv4Network("172.16.0.0/12"))
        netlink.request(links.add_address(10, IPv4Address("172.16.1.1"), 12))
        assert reserve("two", tmp_path).network.subnet_of(IPv4Network("10.0.0.0/8"))
        netlink.request(links.add_blackhole(IPv4Network("10.0.0.0/8")))
        with pytest.raises(subnet.NoSubnetError):
            reserve("three", tmp_path)
        assert reserve("one", tmp_path).network.subnet_of(IPv4Network("172.16.0.0/12")), "a reserved subnet is kept"
        for bad in ("10.1.0.0/20", "10.0.0.1/20", "fd00::/64", "10.0.0.0/8", "rubbish"):
            with pytest.raises(subnet.NoSubnetError):
                reserve("three", tmp_path, wanted=bad)


def test_the_address_space_of_tailscale_is_avoided(topology: Topology, tmp_path: Path) -> None:
    with Netlink() as netlink:
        netlink.request(
            links.create_veth(links.Peer("tailscale0", bytes(5) + b"\x02"), links.Peer("ts1", bytes(5) + b"\x04"), 1280)
        )
    assert reserve("one", tmp_path).network.subnet_of(IPv4Network("172.16.0.0/12"))


def test_a_subnet_is_remembered_unless_it_is_in_use(topology: Topology, tmp_path: Path) -> None:
    first = reserve("one", tmp_path)
    with Netlink() as netlink:
        subnet.release(netlink, Names.for_instance("one"))  # a reboot
        assert reserve("one", tmp_path) == first
        subnet.release(netlink, Names.for_instance("one"))
        netlink.request(links.add_address(10, first.network[7], 24))
    assert not reserve("one", tmp_path).network.overlaps(first.network)


def test_a_configured_subnet_is_used_when_the_old_one_is_unused(topology: Topology, tmp_path: Path) -> None:
    first = reserve("one", tmp_path)
    assert reserve("one", tmp_path, wanted="10.9.0.0/24", in_use=True) == first
    assert str(reserve("one", tmp_path, wanted="10.9.0.0/24").network) == "10.9.0.0/24"
    with Netlink() as netlink:
        assert [route.network for route in links.list_routes(netlink) if route.blackhole] == [
            IPv4Network("10.9.0.0/24")
        ]


def test_interface_names_fit_and_are_unique() -> None:
    names = {Names.for_instance(f"/data/{number}") for number in range(500)}
    assert len({item.tag for item in names}) == len({item.group for item in names}) == 500
    assert all(item.group % 2 == 0 and 0 < item.group < 2**31 for item in names)
    assert all(len(item.make_interface_name(99999, 25)) == 15 for item in names)


async def test_rules_of_another_engine_for_the_same_subnet_are_harmless(topology: Topology) -> None:
    """Something on the host removed the first engine's routes while it was not running, so its subnet looks free."""
    first = make_network(topology, "first", subnet="10.88.0.0/24")
    await first.open(())
    await first.close()
    with Netlink() as netlink:
        subnet.release(netlink, Names.for_instance("first"))
    second = make_network(topology, "second", subnet="10.88.0.0/24")
    await second.open(())
    try:
        assert dict(second.missing) == {}
        assert await reaches_the_web(second)
    finally:
        await second.close(remove=True)
        await first.open(())
        await first.close(remove=True)
