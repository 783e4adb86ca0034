"""The life cycle of slots: taken from the pool, kept when an engine dies, and removed without leftovers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.machine.net import NetSlot, Network, NetworkSettings
from sandyard.engine.drivers.machine.net.nft import Nft
from sandyard.engine.drivers.machine.net.uplink import FORWARD_TABLE
from sandyard.kit.errors import FullError, UnsupportedError
from tests.integration.engine.drivers.machine.net.topology import (
    MIRROR,
    WEB,
    Internet,
    Topology,
    addresses_in,
    dial,
    inside,
    resolve,
    within,
)

REFUSED = "ECONNREFUSED"
DENY_WEB = NetworkPolicy(deny_out=(WEB,))
WEB_BY_NAME = NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=("web.test",))

ENGINE = """
import asyncio, sys
from pathlib import Path
from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.machine.net import Network, NetworkSettings
sys.path.insert(0, {root!r})
from tests.integration.engine.drivers.machine.net.topology import inside, resolve

async def main():
    network = Network("test", Path({state!r}), NetworkSettings(pool=3, resolv_conf=Path({resolv_conf!r})))
    await network.open(())
    slots = [await network.acquire(number) for number in range(3)]
    await network.set_policy(1, {deny_web!r})
    await network.set_policy(2, {by_name!r})
    await inside(slots[2].netns_path, lambda: resolve(slots[2].dns, "web.test"))
    print(*(slot.address for slot in slots), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def make_network(topology: Topology, instance: str = "test", **settings: object) -> Network:
    chosen = NetworkSettings(**{"pool": 2, "resolv_conf": topology.resolv_conf, **settings})  # type: ignore[arg-type]
    return Network(instance, topology.state / instance, chosen)


async def tcp(slot: NetSlot, address: str) -> str:
    return await inside(slot.netns_path, lambda: dial(address))


def tables() -> list[str]:
    nft = Nft()
    try:
        names = [item["table"]["name"] for item in nft.query("list tables")]
        return [name for name in names if name not in FORWARD_TABLE]  # this table stays as long as forwarding is on
    finally:
        nft.close()


def nothing_left(topology: Topology) -> bool:
    return not (
        topology.interfaces() or topology.mounts() or tables() or topology.own_addresses() - {"127.0.0.1", "198.18.0.1"}
    )


async def test_a_slot_is_one_namespace_with_its_own_address(topology: Topology, network: Network) -> None:
    slots = [await network.acquire(number) for number in (4, 7, 2)]
    assert len({slot.address for slot in slots}) == len({slot.netns_path for slot in slots}) == 3
    assert len({slot.netns_path.stat().st_ino for slot in slots}) == 3
    assert all(slot.gateway == slot.dns and slot.gateway for slot in slots)
    assert await network.acquire(7) == slots[1], "acquiring again returns the same slot"
    assert all(len(name) <= 15 for name in topology.interfaces())


async def test_network_settings_are_applied_inside_a_slot(network: Network) -> None:
    slot = await network.acquire(0)

    def read_sysctls() -> list[str]:
        paths = ("ping_group_range", "ip_unprivileged_port_start")
        return [Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[-1] for name in paths]

    assert await inside(slot.netns_path, read_sysctls) == ["2147483647", "0"]


async def test_acquiring_from_the_pool_is_fast_and_the_pool_is_refilled(topology: Topology) -> None:
    network = make_network(topology, pool=20)
    await network.open(())
    try:
        for _ in range(3000):
            if len(topology.interfaces()) == 20:
                break
            await asyncio.sleep(0.01)
        durations = []
        for number in range(20):
            start = time.perf_counter()
            await network.acquire(number)
            durations.append(time.perf_counter() - start)
        assert sorted(durations)[10] < 0.005, "a slot of the pool must be available at once"
        for _ in range(3000):
            if len(topology.interfaces()) == 40:
                break
            await asyncio.sleep(0.01)
        assert len(topology.interfaces()) == 40
    finally:
        await network.close(remove=True)
    assert nothing_left(topology)


async def test_many_slots_can_be_acquired_at_once_with_a_small_pool(topology: Topology) -> None:
    network = make_network(topology, pool=1)
    await network.open(())
    try:
        slots = await asyncio.gather(*(network.acquire(number) for number in range(30)))
        assert len({slot.address for slot in slots}) == 30
        assert {await tcp(slot, WEB) for slot in slots[::10]} == {"ok"}
    finally:
        await network.close(remove=True)


async def test_release_removes_the_slot_and_its_policy(topology: Topology, network: Network) -> None:
    slot = await network.acquire(0)
    await network.set_policy(0, NetworkPolicy(allow_internet=False))
    await network.release(0)
    await network.release(0)
    assert not slot.netns_path.exists()
    again = await network.acquire(0)
    assert again.address != slot.address, "an address is reused as late as possible"
    assert await tcp(again, WEB) == "ok"
    for _ in range(500):  # the kernel removes the interface asynchronously
        if not [name for name in topology.interfaces() if re.search(rf"-{slot.netns_path.name}[a-z]$", name)]:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError(f"the old interface still exists: {topology.interfaces()}")


async def test_tracked_connections_of_released_slots_are_deleted(topology: Topology) -> None:
    if not Path("/proc/net/nf_conntrack").exists():
        pytest.skip("this kernel does not list its connections")
    held: list[socket.socket] = []
    network = make_network(topology)
    await network.open(())
    try:
        one, two = await network.acquire(0), await network.acquire(1)
        assert one.address and two.address
        for slot in (one, two):
            # Left open, as by a process that was killed.
            held.append(await inside(slot.netns_path, lambda: socket.create_connection((WEB, 80), timeout=3)))
            assert topology.connections(slot.address or "") > 0
        await network.release(0)
        assert topology.connections(one.address) == 0
        assert topology.connections(two.address) > 0
    finally:
        await network.close(remove=True)
        for connection in held:
            connection.close()
    assert topology.connections(two.address) == 0


async def test_a_full_subnet_is_reported_and_its_addresses_are_reused(topology: Topology) -> None:
    network = make_network(topology, subnet="10.77.0.0/28", pool=1)
    await network.open(())
    try:
        slots = [await network.acquire(number) for number in range(13)]
        assert {slot.address for slot in slots} == {f"10.77.0.{n}" for n in range(2, 15)}
        with pytest.raises(FullError):
            await network.acquire(13)
        await network.set_policy(5, DENY_WEB)
        await network.release(5)
        again = await network.acquire(13)
        assert again.address == slots[5].address
        assert await tcp(again, WEB) == "ok"
    finally:
        await network.close(remove=True)
    assert nothing_left(topology)


async def start_engine(topology: Topology) -> tuple[subprocess.Popen[str], list[str]]:
    """Start another process with an open network of three slots, in the state that the tests below expect."""
    code = ENGINE.format(
        root=str(Path(__file__).parents[6]),
        state=str(topology.state / "test"),
        resolv_conf=str(topology.resolv_conf),
        deny_web=DENY_WEB,
        by_name=WEB_BY_NAME,
    )
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert engine.stdout
    line = await asyncio.to_thread(engine.stdout.readline)
    assert line, "the engine did not start"
    return engine, line.split()


async def test_slots_keep_working_when_the_engine_is_killed(topology: Topology) -> None:
    engine, addresses = await start_engine(topology)
    slots = [(topology.state / "test" / "netns" / f"slot-{n}").resolve() for n in range(3)]
    connection = await inside(slots[0], lambda: socket.create_connection((WEB, 80), timeout=3))
    by_name = await inside(slots[2], lambda: socket.create_connection((WEB, 80), timeout=3))
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    with connection, by_name:
        # No engine is running, and everything keeps working.
        assert await inside(slots[0], lambda: dial(MIRROR)) == "ok"
        assert await inside(slots[1], lambda: dial(WEB)) == REFUSED
        assert await inside(slots[2], lambda: dial(WEB)) == "ok"
        assert await inside(slots[2], lambda: dial(MIRROR)) == REFUSED

        network = make_network(topology)
        await network.open([0, 1, 2])
        try:
            kept = [await network.acquire(number) for number in range(3)]
            assert [slot.address for slot in kept] == addresses
            assert [slot.netns_path for slot in kept] == slots
            # Policies apply before they are set again, and setting them again drops no connection.
            assert await tcp(kept[1], WEB) == REFUSED
            for number, policy in enumerate((NetworkPolicy(), DENY_WEB, WEB_BY_NAME)):
                await network.set_policy(number, policy)
            assert await tcp(kept[1], WEB) == REFUSED
            assert await tcp(kept[2], WEB) == "ok", "resolved before the engine died"
            for established in (connection, by_name):
                established.sendall(b"still there?")
                assert established.recv(100) == b"still there?"
            assert addresses_in(await inside(kept[0].netns_path, lambda: resolve(kept[0].dns or "", "web.test"))) == {
                WEB
            }
        finally:
            await network.close(remove=True)
    assert nothing_left(topology)


async def test_slots_that_are_not_kept_are_removed(topology: Topology) -> None:
    engine, addresses = await start_engine(topology)
    before = topology.interface_indexes()
    assert len(before) >= 3
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    network = make_network(topology, pool=1)
    await network.open([1])
    try:
        slot = await network.acquire(1)
        assert slot.address == addresses[1]
        assert await tcp(slot, WEB) == REFUSED
        assert len(topology.interface_indexes() & before) == 1
        nft = Nft()
        kinds = (("map", "verdicts"), ("set", "allow"), ("set", "deny"), ("set", "names"))
        listed = str([nft.query(f"list {kind} inet {tables()[0]} {name}") for kind, name in kinds])
        nft.close()
        assert addresses[1] in listed
        assert addresses[2] not in listed
        assert [path.name for path in network.pins.glob("slot-*")] == ["slot-1"]
        with pytest.raises(UnsupportedError):
            await make_network(topology, "other").acquire(0)
    finally:
        await network.close(remove=True)
    assert nothing_left(topology)


async def test_close_keeps_slots_and_open_is_idempotent(topology: Topology) -> None:
    network = make_network(topology)
    await network.open(())
    slot = await network.acquire(0)
    dropped = await network.acquire(1)
    await network.open([0])
    assert not dropped.netns_path.exists()
    await network.close()
    await network.close()
    assert await tcp(slot, WEB) == "ok"
    assert len(topology.interfaces()) <= 2, "the pool is removed on close"
    second = make_network(topology)
    await second.open([0, 99])
    assert await second.acquire(0) == slot
    await second.close(remove=True)
    assert nothing_left(topology)
    assert not (topology.state / "test").exists()


@pytest.mark.parametrize("how", ["flushed", "another version"])
async def test_a_kept_slot_without_a_known_policy_is_blocked_until_one_is_set(topology: Topology, how: str) -> None:
    network = make_network(topology)
    await network.open(())
    slot = await network.acquire(0)
    await network.set_policy(0, DENY_WEB)
    table = tables()[0]
    await network.close()
    nft = Nft()
    nft.run("flush ruleset")
    if how == "another version":
        nft.run(f"add table inet {table}\nadd set inet {table} never {{ type inet_service; }}")
    nft.close()
    again = make_network(topology)
    await again.open([0])
    try:
        assert await tcp(slot, WEB) == await tcp(slot, MIRROR) == REFUSED
        await again.set_policy(0, DENY_WEB)
        assert (await tcp(slot, WEB), await tcp(slot, MIRROR)) == (REFUSED, "ok")
    finally:
        await again.close(remove=True)
    assert nothing_left(topology)


async def test_a_policy_can_be_set_right_after_the_rules_are_flushed(
    topology: Topology, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.drivers.machine.net.uplink.Uplink.restore_rules", lambda _: asyncio.sleep(0))
    one, two = await network.acquire(0), await network.acquire(1)
    await network.set_policy(0, DENY_WEB)
    nft = Nft()
    nft.run("flush ruleset")
    nft.close()
    await network.set_policy(1, DENY_WEB)
    for slot in (one, two):
        assert (await tcp(slot, WEB), await tcp(slot, MIRROR)) == (REFUSED, "ok")


async def test_slots_are_created_again_after_a_reboot(topology: Topology) -> None:
    """The files still exist; the namespaces do not."""
    (topology.state / "test" / "netns").mkdir(parents=True)
    (topology.state / "test" / "subnet").write_text("10.99.0.0/20\n")
    network = make_network(topology)
    await network.open([0])
    try:
        slot = await network.acquire(0)
        assert slot.gateway == "10.99.0.1", "the subnet is remembered"
        assert await tcp(slot, WEB) == "ok"
    finally:
        await network.close(remove=True)


async def test_two_engines_on_one_host_do_not_interfere(topology: Topology) -> None:
    one, two = make_network(topology, "one"), make_network(topology, "two")
    await asyncio.gather(one.open(()), two.open(()))
    services = None
    try:
        left, right = await one.acquire(0), await two.acquire(0)
        assert left.gateway != right.gateway and right.address
        namespace = os.open(right.netns_path, os.O_RDONLY)
        services = Internet(namespace, (right.address,), names=False)
        os.close(namespace)
        assert await tcp(left, WEB) == await tcp(right, WEB) == "ok"
        await one.set_policy(0, NetworkPolicy(allow_out=("100.64.0.0/10", right.address, right.gateway or "")))
        assert await inside(left.netns_path, lambda: dial(right.address or "", timeout=0.5)) != "ok"
        assert services.seen == []
        with pytest.raises(OSError):
            await inside(left.netns_path, lambda: resolve(right.dns or "", "web.test", timeout=0.5))
        await one.close(remove=True)
        assert await tcp(right, WEB) == "ok", "closing one engine must not affect the other"
        assert len(tables()) == 1
    finally:
        if services:
            services.close()
        await one.close(remove=True)
        await two.close(remove=True)
    assert nothing_left(topology)


async def test_there_is_no_egress_without_a_firewall(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(topology)
    with monkeypatch.context() as patch:
        patch.setattr("sandyard.engine.drivers.machine.net.nft.LIBRARY", "libnftables.so.none")
        await network.open(())
    try:
        assert "apt install libnftables1" in network.missing["egress"]
        slot = await network.acquire(0)
        assert slot.address is slot.dns is None
        await network.set_policy(0, NetworkPolicy(allow_internet=False))
        assert await tcp(slot, WEB) == "ENETUNREACH"
        with within(os.open(slot.netns_path, os.O_RDONLY)):
            listener = Internet(os.open("/proc/thread-self/ns/net", os.O_RDONLY), ("127.0.0.1",), names=False)
            assert dial("127.0.0.1") == "ok"
            listener.close()
        await network.release(0)
    finally:
        await network.close(remove=True)
    assert nothing_left(topology)


async def test_the_lack_of_a_free_subnet_is_reported(topology: Topology) -> None:
    network = make_network(topology, subnet="198.18.0.0/24")
    await network.open(())
    try:
        assert "subnet" in network.missing["egress"]
    finally:
        await network.close(remove=True)
