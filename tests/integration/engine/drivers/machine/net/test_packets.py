"""Packets that no ordinary program sends, made with more privileges than a sandbox ever has."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
from functools import partial
from ipaddress import IPv4Address

import pytest

from sandyard.engine.drivers.machine.net import NetSlot, Network
from sandyard.engine.drivers.machine.net.nft import Nft
from tests.integration.engine.drivers.machine.net.topology import (
    HOST,
    MIRROR,
    NEIGHBOUR,
    UDP,
    WEB,
    Topology,
    dial_udp,
    inside,
    within,
)


async def udp(slot: NetSlot, address: str) -> str:
    return await inside(slot.netns_path, lambda: dial_udp(address))


def send_raw(source: str, target: str, options: bytes = b"") -> None:
    """Send a UDP datagram with a hand-made IP header."""
    words = 5 + len(options) // 4
    body = struct.pack("!HHHH", 4000, UDP, 8 + 5, 0) + b"knock"
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x40 | words, 0, 0, 0, 0, 64, 17, 0, IPv4Address(source).packed, IPv4Address(target).packed
    )
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        raw.sendto(header + options + body, (target, 0))


async def test_packets_with_a_foreign_source_address_are_dropped(topology: Topology, network: Network) -> None:
    slot, other = await network.acquire(0), await network.acquire(1)
    assert slot.address and slot.gateway and other.address
    for source in (other.address, slot.gateway, HOST, NEIGHBOUR, WEB, "127.0.0.1", "203.0.113.9", "100.64.0.200"):
        await inside(slot.netns_path, partial(send_raw, source, MIRROR))
    await inside(slot.netns_path, lambda: send_raw(slot.address or "", MIRROR, options=bytes([7, 7, 4, 0, 0, 0, 0, 1])))
    # The same packet with the slot's own address arrives, and nothing that was sent before it.
    await inside(slot.netns_path, lambda: send_raw(slot.address or "", WEB))
    for _ in range(200):
        if topology.internet.seen:
            break
        await asyncio.sleep(0.01)
    assert topology.internet.seen == [("udp", WEB, HOST)]


async def test_no_packet_leaves_with_the_internal_address_of_a_sandbox(topology: Topology, network: Network) -> None:
    """The source of a packet that belongs to no connection is not translated, so it must not leave at all."""
    slot = await network.acquire(0)
    with within(topology.outside):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    with tap:
        tap.bind(("up0", 0x0800))
        tap.settimeout(3)

        def send() -> None:
            source, target = IPv4Address(slot.address or "").packed, IPv4Address(WEB).packed
            for flags in (0x03, 0x00, 0x29):  # SYN and FIN, none, FIN and PSH and URG
                segment = struct.pack("!HHLLBBHHH", 4000, 80, 1, 0, 0x50, flags, 100, 0, 0)
                header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, 64, 6, 0, source, target)
                with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
                    raw.sendto(header + segment, (WEB, 0))

        await inside(slot.netns_path, send)
        assert await udp(slot, WEB) == "ok"
        while True:
            packet = await asyncio.to_thread(tap.recv, 2000)
            assert packet[26:30] != IPv4Address(slot.address or "").packed
            if packet[23] == 17:
                break


async def test_ipv6_packets_are_dropped_at_the_interface(topology: Topology, network: Network) -> None:
    """This includes hand-made packets."""
    slot = await network.acquire(0)
    host = socket.inet_pton(socket.AF_INET6, "fd00::1")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as service:
        fcntl.ioctl(service, 0x8916, host + struct.pack("=Ii", 64, 10))  # SIOCSIFADDR: the host's own IPv6 address
        service.settimeout(3)
        service.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND: the kernel may still be checking for duplicates
        service.bind(("fd00::1", 4000))

        def send() -> None:
            source = socket.inet_pton(socket.AF_INET6, "fd00::2")
            body = struct.pack("!HHHH", 4000, 4000, 13, 0) + b"knock"
            pseudo = source + host + struct.pack("!LL", len(body), 17) + body + b"\0"
            total = sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo))
            while total > 0xFFFF:
                total = (total & 0xFFFF) + (total >> 16)
            body = body[:6] + struct.pack("!H", ~total & 0xFFFF) + body[8:]
            packet = struct.pack("!LHBB", 0x60000000, len(body), 17, 64) + source + host + body
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
                raw.bind(("eth0", 0))
                raw.send(bytes.fromhex("025359000001") + bytes(6) + b"\x86\xdd" + packet)

        await inside(slot.netns_path, send)
        assert await udp(slot, WEB) == "ok"  # everything that was sent before has been processed
        service.setblocking(False)
        with pytest.raises(BlockingIOError):
            service.recv(100)

        # Without the firewall the same packet arrives, so it was the firewall that dropped it.
        await network.close()
        nft = Nft()
        nft.run("flush ruleset")
        nft.close()
        service.settimeout(0.2)
        for _ in range(25):  # until the kernel has finished its check for duplicate addresses
            await inside(slot.netns_path, send)
            try:
                assert service.recv(100) == b"knock"
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("the packet must arrive without the firewall")
        await network.open(())
