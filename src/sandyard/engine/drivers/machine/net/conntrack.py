"""The kernel's connection table: entries of a sandbox that ended stay for days, because nobody closes the
connections."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address
from pathlib import Path

from sandyard.engine.drivers.machine.net.netlink import Message, Netlink, pack_attribute, pack_nested, pack_u32

_NETFILTER = 12
_DELETE_MESSAGE = 1 << 8 | 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
_TUPLE_ORIG, _TUPLE_IP, _IP_V4_SRC = 1, 1, 1
_FILTER, _FILTER_ORIG_FLAGS, _BY_SOURCE = 25, 1, 1 << 0
_TABLE_DIR = Path("/proc/sys/net/netfilter")
_BLOCK_ABOVE, _UNBLOCK_BELOW = 1 / 2, 3 / 8
"""Fractions of the host's table at which sandboxes may no longer open connections, and may again: a full table drops
the host's own."""


def is_crowded(was_crowded: bool, table: Path = _TABLE_DIR) -> bool:
    """Return whether the table is too full for more connections of sandboxes; `was_crowded` is the previous result."""
    try:
        count, limit = (int((table / f"nf_conntrack_{name}").read_text()) for name in ("count", "max"))
    except FileNotFoundError:
        return False  # this kernel does not report it
    return count > limit * (_UNBLOCK_BELOW if was_crowded else _BLOCK_ABOVE)


class Conntrack:
    """Access to the connection table. Blocking; bound to the network namespace of the thread that creates it."""

    def __init__(self) -> None:
        self._netlink = Netlink(_NETFILTER)

    def close(self) -> None:
        self._netlink.close()

    def delete_connections(self, source: IPv4Address) -> None:
        """Delete every connection that was opened from that address."""
        header = struct.pack("=BBH", socket.AF_INET, 0, 0)
        tuple_ = pack_nested(_TUPLE_ORIG, pack_nested(_TUPLE_IP, pack_attribute(_IP_V4_SRC, source.packed)))
        filter_ = pack_nested(_FILTER, pack_u32(_FILTER_ORIG_FLAGS, _BY_SOURCE))
        self._netlink.request(Message(_DELETE_MESSAGE, header + tuple_ + filter_))
