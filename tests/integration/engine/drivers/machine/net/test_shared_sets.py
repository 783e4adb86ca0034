"""The kernel's sets that all sandboxes share: what one sandbox puts there does not delay the others."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.engine.contract import DeniedAttempt, NetworkPolicy
from sandyard.engine.drivers.machine.net import Network, NetworkSettings, denied_reader, firewall
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.nft import Nft, stream_keys
from tests.integration.engine.drivers.machine.net.topology import (
    MIRROR,
    WEB,
    ZONE,
    Topology,
    addresses_in,
    dial,
    inside,
    resolve,
)

CLOSED = NetworkPolicy(allow_internet=False)


def allow_only(*names: str) -> NetworkPolicy:
    return NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=names)


def read_set(name: str) -> list[Any]:
    nft = Nft()
    try:
        table = nft.query("list tables inet")[0]["table"]["name"]
        found: list[Any] = nft.query(f"list set inet {table} {name}")[0]["set"].get("elem", [])
        return found
    finally:
        nft.close()


def send_to_ports(address: str, ports: range) -> None:
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", (address, port))


async def test_one_sandbox_fills_a_small_part_of_the_set_of_blocked_connections(network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)
    for number in (0, 1):
        await network.set_policy(number, CLOSED)
    await inside(slot.netns_path, lambda: send_to_ports(WEB, range(1000, 4000)))
    await inside(slot.netns_path, lambda: send_to_ports(WEB, range(1000, 4000)))
    elements = read_set("denied")
    assert 256 <= len(elements) < 300
    assert all(element["elem"]["timeout"] <= 900 for element in elements)
    assert len(await network.take_denied(0)) == 256
    await inside(other.netns_path, lambda: send_to_ports(MIRROR, range(9, 10)))
    assert await network.take_denied(1) == [DeniedAttempt(MIRROR, "udp", 9)]


async def test_repeated_attempts_are_recorded_once_and_leave_room_for_others(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, CLOSED)
    for _ in range(500):
        await inside(slot.netns_path, lambda: send_to_ports(WEB, range(9, 10)))
    await inside(slot.netns_path, lambda: send_to_ports(WEB, range(10, 11)))
    denied = sorted(await network.take_denied(0), key=lambda attempt: attempt.port or 0)
    assert denied == [DeniedAttempt(WEB, "udp", 9), DeniedAttempt(WEB, "udp", 10)]


async def test_blocked_connections_of_a_released_slot_are_removed(network: Network) -> None:
    slots = [await network.acquire(number) for number in (0, 1)]
    for number, slot in enumerate(slots):
        await network.set_policy(number, CLOSED)
        await inside(slot.netns_path, lambda: send_to_ports(WEB, range(1000, 2000)))
    await network.release(0)
    assert {element["elem"]["val"]["concat"][0] for element in read_set("denied")} == {slots[1].address}
    assert [element["elem"]["val"] for element in read_set("noted")] == [slots[1].address]


async def test_many_requests_for_blocked_connections_share_a_read_and_do_not_delay_policies(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, ready = 0, threading.Event()

    def read_slowly(netlink: Netlink, table: str, name: str) -> Iterator[bytes]:
        nonlocal reads
        reads += 1
        ready.wait(30)
        return stream_keys(netlink, table, name)

    monkeypatch.setattr(denied_reader, "stream_keys", read_slowly)
    slot, other = await network.acquire(0), await network.acquire(1)
    await network.set_policy(0, CLOSED)
    assert await inside(slot.netns_path, lambda: dial(WEB)) == "ECONNREFUSED"
    try:
        requests = [asyncio.create_task(network.take_denied(number % 2)) for number in range(60)]
        await asyncio.sleep(0)
        for request in requests[20:]:
            request.cancel()  # the client gave up
        await network.set_policy(1, CLOSED)
        assert await inside(other.netns_path, lambda: dial(WEB)) == "ECONNREFUSED"
        assert not any(request.done() for request in requests[:20])
    finally:
        ready.set()
    found = await asyncio.gather(*requests[:20])
    assert [DeniedAttempt(WEB, "tcp", 80)] in found
    assert sum(map(len, found)) <= 2, "each connection is reported once, and the one of slot 1 may be included"
    assert reads == 1


async def test_a_policy_is_set_without_reading_sets(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = await network.acquire(0)
    await network.acquire(1)
    await network.set_policy(0, allow_only("web.test"))
    assert addresses_in(await inside(slot.netns_path, lambda: resolve(slot.dns or "", "web.test"))) == {WEB}
    assert await inside(slot.netns_path, lambda: dial(WEB)) == "ok"

    def refuse(*_: object) -> None:
        raise AssertionError("a set is read")

    monkeypatch.setattr(Nft, "query", refuse)
    monkeypatch.setattr(Nft, "read_keys", refuse, raising=False)
    await network.set_policy(1, allow_only("web.test"))
    await network.set_policy(0, allow_only("mirror.test"))
    assert await inside(slot.netns_path, lambda: dial(WEB)) == "ECONNREFUSED"


async def test_a_later_engine_ends_connections_to_expired_addresses(topology: Topology) -> None:
    settings = NetworkSettings(pool=2, resolv_conf=topology.resolv_conf)
    network = Network("test", topology.state / "net", settings)
    await network.open(())
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("web.test"))
    assert addresses_in(await inside(slot.netns_path, lambda: resolve(slot.dns or "", "web.test"))) == {WEB}
    connection = await inside(slot.netns_path, lambda: socket.create_connection((WEB, 80), timeout=3))
    await network.close()
    nft = Nft()
    nft.run(f"flush set inet {nft.query('list tables inet')[0]['table']['name']} names")  # as if all had expired
    nft.close()
    network = Network("test", topology.state / "net", settings)
    await network.open([0])
    try:
        with connection:
            await network.set_policy(0, allow_only("web.test"))
            connection.sendall(b"one")
            assert connection.recv(10) == b"one"
            await network.set_policy(0, allow_only("mirror.test"))
            connection.sendall(b"two")
            with pytest.raises(ConnectionResetError):
                connection.recv(10)
    finally:
        await network.close(remove=True)


async def test_addresses_that_are_forgotten_for_lack_of_room_are_closed(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(firewall, "_MAX_RESOLVED", 1)
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("web.test", "mirror.test"))
    assert addresses_in(await inside(slot.netns_path, lambda: resolve(slot.dns or "", "web.test"))) == {WEB}
    assert await inside(slot.netns_path, lambda: dial(WEB)) == "ok"
    await inside(slot.netns_path, lambda: resolve(slot.dns or "", "mirror.test"))
    assert await inside(slot.netns_path, lambda: dial(MIRROR)) == "ECONNREFUSED", "there is no room"
    monkeypatch.setattr(firewall, "time", SimpleNamespace(monotonic=lambda: now + 1000))
    await inside(slot.netns_path, lambda: resolve(slot.dns or "", "mirror.test"))
    assert await inside(slot.netns_path, lambda: dial(MIRROR)) == "ok"
    assert [element["elem"]["val"]["concat"] for element in read_set("lively")] == [[slot.address, MIRROR]]


async def test_blocked_connections_can_be_read_after_the_rules_were_flushed(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.drivers.machine.net.uplink.Uplink.restore_rules", lambda _: asyncio.sleep(0))
    await network.acquire(0)
    nft = Nft()
    nft.run("flush ruleset")
    nft.close()
    assert await network.take_denied(0) == []


async def test_many_resolved_addresses_are_closed_at_once(network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, allow_only("big.test"))
    await inside(slot.netns_path, lambda: resolve(slot.dns or "", "big.test", stream=True))
    assert len(read_set("names")) == len(ZONE["big.test"])
    await network.set_policy(0, CLOSED)
    assert read_set("names") == []
