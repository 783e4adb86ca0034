"""Parsing what the kernel reports about network namespaces."""

from __future__ import annotations

import pytest

from sandyard.engine.drivers.namespace import nested_networks

DEV = b"""\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       7    0    0    0     0          0         0      100       7    0    0    0     0       0          0
  eth0:12345678     900    0    0    0     0          0         0       50       3    0    0    0     0       0          0
"""


@pytest.mark.parametrize(
    ("target", "inode"),
    [("net:[4026531840]", 4026531840), ("net:[x]", None), ("mnt:[4026531841]", None), ("/net:[1]", None), ("", None)],
)
def test_links_to_network_namespaces_are_recognized(target: str, inode: int | None) -> None:
    assert nested_networks.parse_network_link(target) == inode


def test_tracked_connections_are_counted_once_and_not_per_processor() -> None:
    table = [b"entries  clashres found", b"00000102  00000000 00000000", b"00000102  00000000 00000000"]
    assert nested_networks.count_connections(table) == 258
    assert nested_networks.count_connections([]) == 0


@pytest.mark.parametrize("name", [b"eth0", b"a\xff", b"a\x1cb", b"a\xe2\x80\xa8b", b"a\x0bb"])
def test_received_packets_of_all_interfaces_are_added(name: bytes) -> None:
    """A sandbox with containers chooses the names of its interfaces."""
    assert nested_networks.sum_packets(DEV.replace(b"eth0", name).splitlines(keepends=True)) == 907


def test_a_process_that_does_not_exist_has_no_nested_networks() -> None:
    found = nested_networks.find_nested_networks({"one": 1 << 30}, 1.0)
    assert found["one"].namespaces == {}
