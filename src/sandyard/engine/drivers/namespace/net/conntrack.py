"""The kernel's connection table: entries of a sandbox that ended stay for days, because nobody closes the connections."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address
from pathlib import Path

from sandyard.engine.drivers.namespace.net.netlink import Message, Netlink, attribute, nest_attributes, u32

_NETFILTER = 12
_DELETE = 1 << 8 | 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
_TUPLE_ORIG, _TUPLE_IP, _IP_V4_SRC = 1, 1, 1
_FILTER, _FILTER_ORIG_FLAGS, _BY_SOURCE = 25, 1, 1 << 0
_TABLE = Path("/proc/sys/net/netfilter")
_CROWDED, _ROOMY = 1 / 2, 3 / 8
"""Fractions of the host's table at which sandboxes may no longer open connections, and may again: a full table drops
the host's own."""


def is_crowded(before: bool, table: Path = _TABLE) -> bool:
    """Return whether the table is too full for more connections of sandboxes; `before` is the previous result."""
    try:
        count, most = (int((table / f"nf_conntrack_{name}").read_text()) for name in ("count", "max"))
    except FileNotFoundError:
        return False  # this kernel does not report it
    return count > most * (_ROOMY if before else _CROWDED)


class Conntrack:
    """Blocking; bound to the network namespace of the thread that creates it."""

    def __init__(self) -> None:
        self._netlink = Netlink(_NETFILTER)

    def close(self) -> None:
        self._netlink.close()

    def forget(self, source: IPv4Address) -> None:
        """Delete every connection that was opened from that address."""
        header = struct.pack("=BBH", socket.AF_INET, 0, 0)
        tuple_ = nest_attributes(_TUPLE_ORIG, nest_attributes(_TUPLE_IP, attribute(_IP_V4_SRC, source.packed)))
        filter_ = nest_attributes(_FILTER, u32(_FILTER_ORIG_FLAGS, _BY_SOURCE))
        self._netlink.request(Message(_DELETE, header + tuple_ + filter_))
