"""The network of a gVisor sandbox: a namespace of its own, behind the sandbox's regular one.

gVisor takes the addresses of its network namespace away from the host's kernel. But the engine's proxy makes connections
from the sandbox's namespace, and the engine must reach the agent. So gVisor gets another namespace, connected to the
regular one, which forwards packets and translates their source to its own address. The addresses of this link are the
same for all sandboxes, because they are visible only there.

Only the processes of the sandbox hold the second namespace, so it ends with them.
"""

from __future__ import annotations

import os
from ipaddress import IPv4Address
from pathlib import Path

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.nft import Nft
from sandyard.engine.drivers.machine.net.settings import CONNECTIONS_PER_SECOND, MAX_CONNECTIONS

INNER = IPv4Address("192.0.0.2")
"""The address of the sandbox, seen from its regular namespace."""
OUTER = IPv4Address("192.0.0.1")
"""The address from which the engine connects to the sandbox."""
_PREFIX = 29  # the network is reserved for such links
_OUTER_INDEX, _INNER_INDEX = 65, 64
_OUTER_MAC, _INNER_MAC = bytes.fromhex("025359000002"), bytes.fromhex("025359000003")
_UPLINK, _OUTER_NAME = "eth0", "gvisor"  # of the regular namespace
_DEFAULT_MTU = 1500
_TABLE = "sandyard_gvisor"
_TOO_FAST = f"limit rate over {CONNECTIONS_PER_SECOND}/second burst {MAX_CONNECTIONS} packets"
_RULES = f"""
add table ip {_TABLE}
add chain ip {_TABLE} source {{ type nat hook postrouting priority srcnat; }}
add rule ip {_TABLE} source ip saddr {INNER} oifname "{_UPLINK}" masquerade
add chain ip {_TABLE} forwarded {{ type filter hook forward priority filter; }}
add rule ip {_TABLE} forwarded iifname "{_OUTER_NAME}" ip saddr != {INNER} drop
add rule ip {_TABLE} forwarded iifname "{_OUTER_NAME}" ct state new {_TOO_FAST} drop
add rule ip {_TABLE} forwarded iifname "{_OUTER_NAME}" ct state new ct count over {MAX_CONNECTIONS} drop
add chain ip {_TABLE} local {{ type filter hook input priority filter; }}
add rule ip {_TABLE} local iifname "{_OUTER_NAME}" ct state != {{ established, related }} drop
add table netdev {_TABLE}
add chain netdev {_TABLE} received {{ type filter hook ingress device "{_OUTER_NAME}" priority filter; }}
add rule netdev {_TABLE} received ether type != ip drop
add rule netdev {_TABLE} received ip saddr != {INNER} drop
"""
"""The sandbox's packets have its own address and go outside only. The egress policy is applied by the host's rules, which
see them after that. Connections have the same limits as there, because the memory of their entries belongs to no cgroup.

Programs in the sandbox can send any Ethernet frame. Only IPv4 packets from the sandbox's address get to the host's network
code: ARP requests would fill its neighbour table, which is one for the whole machine. So both ends have permanent entries
for each other, and need no ARP.
"""
_CLAMP_RULE = (
    'add rule ip {table} forwarded iifname "{name}" tcp flags syn / syn,rst tcp option maxseg size set {size}\n'
)
"""Limits the packet size of TCP connections of containers, whose interfaces do not have the MTU of this link."""
_HEADER_BYTES = 40


def enter_new_namespace(regular: str, *, containers: bool) -> None:
    """Move this process to a new network namespace that is connected to the one at the path `regular`. `containers`: the
    sandbox may run containers. Blocks."""
    kernel.unshare(kernel.CLONE_NEWNET)
    inner = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    outer = os.open(regular, os.O_RDONLY | os.O_CLOEXEC)
    with Netlink() as inside:
        kernel.setns(outer, kernel.CLONE_NEWNET)
        with Netlink() as outside:
            mtu = next((link.mtu for link in links.list_links(outside) if link.name == _UPLINK), _DEFAULT_MTU)
            outside.request(
                links.create_veth(
                    links.Peer(_OUTER_NAME, _OUTER_MAC, index=_OUTER_INDEX),
                    links.Peer("eth0", _INNER_MAC, index=_INNER_INDEX, namespace=inner),
                    mtu,
                ),
                links.disable_ipv6(_OUTER_INDEX),
                links.bring_up(_OUTER_INDEX),
                links.add_address(_OUTER_INDEX, OUTER, _PREFIX),
                links.add_neighbour(INNER, _INNER_MAC, _OUTER_INDEX),
            )
            if containers:  # gVisor's kernel would drop larger packets for containers
                outside.request(links.disable_segmentation_offload(_OUTER_INDEX))
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        rules = Nft()
        rules.run(_RULES)
        if containers:
            rules.run(_CLAMP_RULE.format(table=_TABLE, name=_OUTER_NAME, size=mtu - _HEADER_BYTES))
        rules.close()
        kernel.setns(inner, kernel.CLONE_NEWNET)
        inside.request(
            links.bring_up(links.LOOPBACK),
            links.disable_ipv6(_INNER_INDEX),
            links.bring_up(_INNER_INDEX),
            links.add_address(_INNER_INDEX, INNER, _PREFIX),
            links.add_default_route(OUTER, _INNER_INDEX),
            links.add_neighbour(OUTER, _OUTER_MAC, _INNER_INDEX),  # gVisor copies it
        )
    os.close(inner)
    os.close(outer)
