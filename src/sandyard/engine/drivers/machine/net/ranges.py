"""Sets of IPv4 addresses as sorted, disjoint ranges of integers, like nftables intervals."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

Range = tuple[int, int]  # inclusive
Ranges = tuple[Range, ...]

EVERYTHING: Ranges = ((0, 0xFFFFFFFF),)


def make_ranges(networks: Iterable[IPv4Network | str]) -> Ranges:
    """Return the union of the networks."""
    parsed = (IPv4Network(network) for network in networks)
    return merge((int(network.network_address), int(network.broadcast_address)) for network in parsed)


def merge(ranges: Iterable[Range]) -> Ranges:
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def subtract(ranges: Ranges, hole: Ranges) -> Ranges:
    """Return the addresses in `ranges` that are not in `hole`."""
    remaining: list[Range] = []
    for low, high in ranges:
        start = low
        for hole_low, hole_high in hole:
            if hole_high < start or hole_low > high:
                continue
            if hole_low > start:
                remaining.append((start, hole_low - 1))
            start = hole_high + 1
        if start <= high:
            remaining.append((start, high))
    return tuple(remaining)


def contains(ranges: Ranges, address: int) -> bool:
    return any(low <= address <= high for low, high in ranges)


def format_range(item: Range) -> str:
    """Return the range in nftables notation."""
    low, high = item
    return str(IPv4Address(low)) if low == high else f"{IPv4Address(low)}-{IPv4Address(high)}"
