"""The network of a gVisor sandbox: a namespace of its own, behind the sandbox's regular one.

gVisor takes the addresses of its network namespace away from the host's kernel. But the engine's proxy makes connections
from the sandbox's namespace, and the engine must reach the agent. So gVisor gets another namespace, connected to the
regular one, which forwards packets and translates their source to its own address. The addresses of this link are the
same for all sandboxes, because nobody else sees them.

The second namespace is held by the processes of the sandbox only, and ends with them.
"""

from __future__ import annotations

import os
from ipaddress import IPv4Address
from pathlib import Path

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.nft import Nft

INNER = IPv4Address("192.0.0.2")
"""The address of the sandbox, seen from its regular namespace."""
_OUTER, _PREFIX = IPv4Address("192.0.0.1"), 29  # a network that is reserved for such links
_OUTER_INDEX, _INNER_INDEX = 65, 64
_OUTER_MAC, _INNER_MAC = bytes.fromhex("025359000002"), bytes.fromhex("025359000003")
_UPLINK = "eth0"  # of the regular namespace
_DEFAULT_MTU = 1500
_TABLE = "sandyard_gvisor"
_RULES = f"""
add table ip {_TABLE}
add chain ip {_TABLE} source {{ type nat hook postrouting priority srcnat; }}
add rule ip {_TABLE} source ip saddr {INNER} oifname "{_UPLINK}" masquerade
"""


def enter_new_namespace(regular: str) -> None:
    """Move this process to a new network namespace that is connected to the one at the path `regular`. Blocks."""
    kernel.unshare(kernel.CLONE_NEWNET)
    inner = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    outer = os.open(regular, os.O_RDONLY | os.O_CLOEXEC)
    with Netlink() as inside:
        kernel.setns(outer, kernel.CLONE_NEWNET)
        with Netlink() as outside:
            mtu = next((link.mtu for link in links.list_links(outside) if link.name == _UPLINK), _DEFAULT_MTU)
            outside.request(
                links.create_veth(
                    links.Peer("gvisor", _OUTER_MAC, index=_OUTER_INDEX),
                    links.Peer("eth0", _INNER_MAC, index=_INNER_INDEX, namespace=inner),
                    mtu,
                ),
                links.disable_ipv6(_OUTER_INDEX),
                links.bring_up(_OUTER_INDEX),
                links.add_address(_OUTER_INDEX, _OUTER, _PREFIX),
            )
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        rules = Nft()
        rules.run(_RULES)
        rules.close()
        kernel.setns(inner, kernel.CLONE_NEWNET)
        inside.request(
            links.bring_up(links.LOOPBACK),
            links.disable_ipv6(_INNER_INDEX),
            links.bring_up(_INNER_INDEX),
            links.add_address(_INNER_INDEX, INNER, _PREFIX),
            links.add_default_route(_OUTER, _INNER_INDEX),
        )
    os.close(inner)
    os.close(outer)
