"""The nftables table of one instance with all its rules. Sandboxes are elements of its sets and maps, never rules.

- `guard` sees each packet a sandbox sends before anything on the host can change it (raw priority, so before other
  DNATs): packets with a foreign source, IPv6, IP options, or to the host itself or to what is never reachable end here.
- `out` and `back` see each forwarded packet in both directions, including those of established connections: a changed
  policy applies to existing connections. The policy is checked for the connection's original addresses.
- A sandbox with the default policy is in no map, and costs nothing.
- Connections to the engine's public names (see `hairpin`) go to the gateway, at one port, and are redirected to the
  engine; `hairpin` checks for them what `out` checks for others.
- Web connections of a sandbox with rules for its requests are redirected to the proxy; `proxied` checks for them what
  `out` checks for others, with the original destination. What the proxy opens leaves through the sandbox's interface
  again, with a mark.

Refused TCP gets a reset and the rest an ICMP error, so that programs inside fail at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from sandyard.engine.drivers.machine.net import ranges
from sandyard.engine.drivers.machine.net.names import INTERFACE_PREFIX, Names
from sandyard.engine.drivers.machine.net.policy import NEVER
from sandyard.engine.drivers.machine.net.proxy.dialler import MARK
from sandyard.engine.drivers.machine.net.proxy.listener import HTTP, HTTPS
from sandyard.engine.drivers.machine.net.ranges import Ranges
from sandyard.engine.drivers.machine.net.settings import CONNECTIONS_PER_SECOND

_LIVELY_SECONDS = 600  # seconds a connection may be idle after its resolved address has expired

# DNS packets per second from one sandbox; more are dropped before they cost the engine anything.
_QUERIES_PER_SECOND = 500

_PROXIED_PER_SECOND = 50  # web connections per second that one sandbox may open through the proxy

_MAX_HAIRPINS, _HAIRPINS_PER_SECOND = 256, 20
"""Connections to the engine's public names that one sandbox may have, and open per second: each costs the engine a
handshake."""

_DENIED_MINUTES, _DENIED_PER_MINUTE, _DENIED_BURST = 15, 10, 256
"""How long a blocked connection is remembered, and how many of one sandbox are: the burst, then as many per minute.
Together they limit the share of a sandbox in the set that all of them use."""

_SOURCE_AND_DESTINATION = "ct original ip saddr . ct original ip daddr"

# A pair of addresses is a sandbox and a destination; a single one is a sandbox, except in `never` and `private`.
_SETS = {
    "never": "typeof ip saddr; flags interval;",
    "private": "typeof ip saddr; flags interval;",
    "allow": "typeof ip saddr . ip daddr; flags interval;",
    "deny": "typeof ip saddr . ip daddr; flags interval;",
    "names": "typeof ip saddr . ip daddr; flags timeout; size 262144;",  # addresses of allowed names
    "lively": "typeof ip saddr . ip daddr; flags dynamic, timeout; size 262144;",  # those in use
    "connections": "typeof ip saddr; flags dynamic; size 65536;",  # how many are open
    "begun": "typeof ip saddr; flags dynamic, timeout; timeout 1m; size 65536;",  # how many are opened per second
    "crowded": "typeof ip saddr; flags interval;",  # all sandboxes while the host's connection table is nearly full
    "ruled": "typeof ip saddr;",  # those with rules for their requests
    "denied": "typeof ip saddr . ip daddr . meta l4proto . th dport; flags dynamic, timeout; timeout 1h; size 16384;",
    "noted": "typeof ip saddr; flags dynamic, timeout; timeout 30m; size 65536;",  # how many were remembered
    "dials": "typeof ip saddr; flags dynamic, timeout; timeout 1m; size 65536;",
    "hairpins": "typeof ip saddr; flags dynamic; size 65536;",
    "hairpin_dials": "typeof ip saddr; flags dynamic, timeout; timeout 1m; size 65536;",
    "questions": "typeof ip saddr; flags dynamic, timeout; timeout 1m; size 65536;",
}
"""`typeof` instead of `type`: if a program with nftables 1.1 (Debian 13) creates a set with `type`, version 1.0 (Debian 12)
crashes when it reads that set. So engines of both can share a network namespace, for example one in a container.
"""
_CHAINS = {
    "refuse": "",
    "note": "",  # remember a blocked connection, for users
    "closed": "",  # only what the policy allows
    "listed": "",  # everything except what the policy denies
    "guard": "",
    "out": "",
    "back": "",
    "asking": "",  # packets to the host itself, of which only those to the name server are accepted
    "resolving": "",  # packets to the name server
    "proxied": "",
    "hairpin": "",
    "early": "type filter hook prerouting priority raw; policy accept;",
    "redirected": "type nat hook prerouting priority dstnat; policy accept;",
    "incoming": "type filter hook input priority filter; policy accept;",
    "passing": "type filter hook forward priority filter; policy accept;",
    "leaving": "type nat hook postrouting priority srcnat; policy accept;",
}


@dataclass(frozen=True, slots=True)
class HairpinPorts:
    """The port of the public names, and the port on the gateway where the engine serves them."""

    public: int
    served: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The parameters of the rules. `dns_port` is 53 unless another server of the host uses it. `proxy_port` 0: no
    proxy."""

    names: Names
    subnet: IPv4Network
    gateway: IPv4Address
    dns_port: int
    connections: int  # 0: no limit
    proxy_port: int = 0
    hairpin: HairpinPorts | None = None


def make_transaction(layout: Layout) -> str:
    """Return the commands that create the table, or update its rules without touching the elements that belong to
    sandboxes."""
    table = f"inet {layout.names.table}"
    lines = [f"add table {table}"]
    lines += [f"add set {table} {name} {{ {definition} }}" for name, definition in _SETS.items()]
    for name, definition in _CHAINS.items():
        lines.append(f"add chain {table} {name} {{ {definition} }}" if definition else f"add chain {table} {name}")
    lines.append(f"add map {table} verdicts {{ typeof ip saddr : verdict; }}")
    lines += [f"flush chain {table} {name}" for name in _CHAINS]
    never = (*NEVER, (int(layout.subnet.network_address), int(layout.subnet.broadcast_address)))
    lines += make_replace_commands(layout.names, "never", ranges.merge(never))
    lines += [f"add rule {table} {chain} {rule}" for chain, rule in _list_rules(layout)]
    return "\n".join(lines)


def make_replace_commands(names: Names, name: str, content: Ranges) -> list[str]:
    """Return the commands that replace the contents of a set."""
    lines = [f"flush set inet {names.table} {name}"]
    if content:
        lines.append(f"add element inet {names.table} {name} {{ {', '.join(map(ranges.format_range, content))} }}")
    return lines


def _list_rules(layout: Layout) -> Iterable[tuple[str, str]]:
    ours, gateway, port = f'"{layout.names.prefix}*"', layout.gateway, layout.dns_port

    yield "early", f"iifname {ours} goto guard"
    yield "guard", "meta nfproto != ipv4 drop"
    yield "guard", "ip hdrlength != 5 drop"
    yield "guard", "fib saddr . iif oif missing drop"
    yield "guard", f"ip daddr {gateway} udp dport 53 accept"
    yield "guard", f"ip daddr {gateway} tcp dport 53 accept"
    if layout.hairpin is not None:
        yield "guard", f"ip daddr {gateway} tcp dport {layout.hairpin.public} accept"
    yield "guard", "fib daddr type != unicast goto refuse"
    yield "guard", "ip daddr @never goto refuse"

    if port != 53:
        for protocol in ("udp", "tcp"):
            yield "redirected", f"iifname {ours} ip daddr {gateway} {protocol} dport 53 dnat ip to {gateway}:{port}"
    if layout.hairpin is not None:
        yield from _list_hairpin_rules(layout, layout.hairpin)
    if layout.proxy_port:
        proxy = f"{gateway}:{layout.proxy_port}"
        web = f"ip saddr @ruled ip dscp != {MARK} tcp dport {{ {HTTP}, {HTTPS} }}"
        yield "redirected", f"iifname {ours} {web} dnat ip to {proxy}"
        yield "incoming", f"iifname {ours} ct status dnat tcp dport {layout.proxy_port} goto proxied"
        yield from _list_proxied_rules(layout)
    yield "incoming", f"iifname {ours} goto asking"
    # Not for interfaces of other instances: after a reset of the routes, one of them may have taken over the subnet.
    yield "incoming", f'ip daddr {gateway} iifname != "lo" iifname != "{INTERFACE_PREFIX}*" drop'
    yield (
        "asking",
        f"update @questions {{ ip saddr limit rate over {_QUERIES_PER_SECOND}/second burst {_QUERIES_PER_SECOND} packets }} drop",
    )
    yield "asking", f"ip daddr {gateway} udp dport {port} goto resolving"
    yield "asking", f"ip daddr {gateway} tcp dport {port} goto resolving"
    yield "asking", "drop"
    # A query from a port of its own is a connection. Packets that the host does not track use no place in its table.
    if layout.connections:
        yield from _list_connection_limits("resolving", layout)
    yield "resolving", "accept"

    yield "passing", f"iifname {ours} goto out"
    yield "passing", f"oifname {ours} goto back"
    yield "out", "ct state invalid,untracked drop"
    yield "out", f'oifname "{INTERFACE_PREFIX}*" goto refuse'
    yield "out", "ip daddr @never goto refuse"
    yield "out", f"ip dscp {MARK} ip dscp set cs0"
    if layout.connections:
        yield from _list_connection_limits("out", layout)
    yield "out", "ip saddr vmap @verdicts"
    yield "out", "ct original ip daddr @private goto refuse"
    yield "out", "accept"
    yield "back", "ct state != { established, related } drop"
    yield "back", "ip daddr vmap @verdicts"
    yield "back", "ct original ip daddr @private goto refuse"
    yield "back", "accept"

    yield from _list_policy_rules()

    yield "refuse", "meta l4proto tcp reject with tcp reset"
    yield "refuse", f"oifname {ours} drop"
    yield "refuse", "reject with icmpx type admin-prohibited"

    yield "leaving", f'ip saddr {layout.subnet} oifname != "{INTERFACE_PREFIX}*" masquerade'


def _list_policy_rules() -> Iterable[tuple[str, str]]:
    yield "closed", f"{_SOURCE_AND_DESTINATION} @allow accept"
    # A resolved address may be used as long as the response said; connections opened by then continue while they are used.
    lively = f"update @lively {{ {_SOURCE_AND_DESTINATION} timeout {_LIVELY_SECONDS}s }} accept"
    yield "closed", f"{_SOURCE_AND_DESTINATION} @names {lively}"
    yield "closed", f"ct state established {_SOURCE_AND_DESTINATION} @lively {lively}"
    yield "closed", "jump note"
    yield "closed", "goto refuse"
    yield "listed", f"{_SOURCE_AND_DESTINATION} @allow accept"
    yield "listed", f"{_SOURCE_AND_DESTINATION} @deny jump note"
    yield "listed", f"{_SOURCE_AND_DESTINATION} @deny goto refuse"
    # Shown to users; if the set is full the packet is refused all the same.
    attempt = f"{_SOURCE_AND_DESTINATION} . meta l4proto . ct original proto-dst"
    limit = f"limit rate {_DENIED_PER_MINUTE}/minute burst {_DENIED_BURST} packets"
    yield (
        "note",
        f"ct direction original meta l4proto {{ tcp, udp }} {attempt} != @denied update @noted {{ ip saddr {limit} }} "
        f"update @denied {{ {attempt} timeout {_DENIED_MINUTES}m }}",
    )


def _list_proxied_rules(layout: Layout) -> Iterable[tuple[str, str]]:
    yield "proxied", "ct state invalid,untracked drop"
    limit = f"limit rate over {_PROXIED_PER_SECOND}/second burst {4 * _PROXIED_PER_SECOND} packets"
    yield "proxied", f"ct state new update @dials {{ ip saddr {limit} }} goto refuse"
    if layout.connections:
        yield from _list_connection_limits("proxied", layout)
    yield "proxied", "ip saddr vmap @verdicts"
    yield "proxied", "ct original ip daddr @private goto refuse"
    yield "proxied", "accept"


def _list_hairpin_rules(layout: Layout, ports: HairpinPorts) -> Iterable[tuple[str, str]]:
    ours, gateway = f'"{layout.names.prefix}*"', layout.gateway
    to = f"ip daddr {gateway} tcp dport {ports.public}"
    yield "redirected", f"iifname {ours} {to} dnat ip to {gateway}:{ports.served}"
    yield "incoming", f"iifname {ours} ct status dnat tcp dport {ports.served} goto hairpin"
    yield "hairpin", "ct state invalid,untracked drop"
    limit = f"limit rate over {_HAIRPINS_PER_SECOND}/second burst {5 * _HAIRPINS_PER_SECOND} packets"
    yield "hairpin", f"ct state new update @hairpin_dials {{ ip saddr {limit} }} goto refuse"
    yield "hairpin", f"ct state new add @hairpins {{ ip saddr ct count over {_MAX_HAIRPINS} }} goto refuse"
    if layout.connections:
        yield from _list_connection_limits("hairpin", layout)
    yield "hairpin", "ip saddr vmap @verdicts"
    yield "hairpin", "accept"


def _list_connection_limits(chain: str, layout: Layout) -> Iterable[tuple[str, str]]:
    """Return the rules that limit how much of the host's connection table one sandbox uses, and all of them
    together."""
    limit = f"limit rate over {CONNECTIONS_PER_SECOND}/second burst {max(layout.connections, CONNECTIONS_PER_SECOND)} packets"
    yield chain, "ct state new ip saddr @crowded goto refuse"
    yield chain, f"ct state new update @begun {{ ip saddr {limit} }} goto refuse"
    yield chain, f"ct state new add @connections {{ ip saddr ct count over {layout.connections} }} goto refuse"
