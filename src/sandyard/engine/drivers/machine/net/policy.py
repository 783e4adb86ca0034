"""A sandbox's egress policy, parsed once for the firewall and the name server.

The semantics are E2B's: everything is open unless denied; `allow_out` takes precedence over `deny_out`; denying all
traffic (`0.0.0.0/0`, or `allow_internet` false) makes `allow_out` the list of what is allowed; names are possible only
in `allow_out`, and only if all traffic is denied. IPv6 entries are accepted and have no effect, because there is no
IPv6.

Three kinds of addresses are distinguished:
- *never*: loopback, link-local with the metadata services, multicast and the like. No policy opens them. The host's own
  addresses and all sandboxes belong here too, but are recognised by the kernel's routes, not by a list.
- *private*: the private ranges and the networks the host is connected to. Open only if the operator allows it, or if an
  entry of `allow_out` is inside one of them. `0.0.0.0/0` does not include any.
- everything else: the internet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Network, IPv6Network, NetmaskValueError, ip_network

import dns.exception
import dns.name

from sandyard.engine.contract import HostRule, NetworkPolicy
from sandyard.engine.drivers.machine.net import ranges
from sandyard.engine.drivers.machine.net.ranges import Ranges
from sandyard.kit.errors import InvalidInputError

NEVER: Ranges = ranges.make_ranges(
    (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, and the metadata service of most clouds
        "100.100.100.200/32",  # metadata at Alibaba
        "168.63.129.16/32",  # the host's agent at Azure
        "192.0.0.192/32",  # metadata at Oracle
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
PRIVATE: Ranges = ranges.make_ranges(("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16"))

_MAX_ENTRIES = 1000
_MAX_RULES = 100
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
NAMES_NEED_DENY_ALL = (
    "When specifying allowed domains in allow out, "
    "you must include 'ALL_TRAFFIC' in deny out to block all other traffic."
)
"""E2B's own message."""


@dataclass(frozen=True, slots=True)
class Domains:
    """Allowed names: those in `exact`, all subdomains of those in `below`, or `everything`."""

    exact: frozenset[str] = frozenset()
    below: frozenset[str] = frozenset()
    everything: bool = False

    def __bool__(self) -> bool:
        return bool(self.exact or self.below or self.everything)

    def match(self, name: str) -> bool:
        """Return whether `name`, in lower case without the final dot, is allowed."""
        if self.everything or name in self.exact:
            return True
        while self.below and "." in name:
            name = name.partition(".")[2]
            if name in self.below:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Egress:
    """A parsed policy. If `closed`, only `allow` and `domains` are reachable; otherwise everything but `deny`. `rules` change
    requests and allow nothing; their hosts are in lower case."""

    closed: bool = False
    allow: tuple[IPv4Network, ...] = ()
    deny: Ranges = ()
    domains: Domains = Domains()
    rules: tuple[HostRule, ...] = ()

    @property
    def resolves_names(self) -> bool:
        """Whether names are resolved at all. False if no name may be reached, because queries can leak data."""
        return not self.closed or bool(self.domains)

    def find_rule(self, name: str) -> HostRule | None:
        """Return the rule for this name, otherwise the one for the nearest name above. `name` as in `Domains.match`."""
        by_host = {rule.host: rule for rule in self.rules}
        found = by_host.get(name)
        while found is None and "." in name:
            name = name.partition(".")[2]
            found = by_host.get(f"*.{name}")
        return found

    def list_allowed_ranges(self, private: Ranges) -> Ranges:
        """Return the allowed addresses: entries inside a private range completely, others without their private parts."""
        other_entries: list[ranges.Range] = []
        private_entries: list[ranges.Range] = []
        for network in self.allow:
            low, high = int(network.network_address), int(network.broadcast_address)
            inside = any(start <= low and high <= end for start, end in private)
            (private_entries if inside else other_entries).append((low, high))
        reachable = ranges.merge([*ranges.subtract(ranges.merge(other_entries), private), *private_entries])
        return ranges.subtract(reachable, NEVER)


def parse_policy(policy: NetworkPolicy) -> Egress:
    """Parse a policy. Raises InvalidInputError, which names the wrong entry."""
    if max(len(policy.allow_out), len(policy.deny_out)) > _MAX_ENTRIES:
        raise InvalidInputError(f"A network policy has at most {_MAX_ENTRIES} entries in each list.")
    deny = []
    for entry in policy.deny_out:
        network = _parse_network(entry)
        if network is None:
            raise InvalidInputError(f"invalid denied CIDR {entry}")
        if isinstance(network, IPv4Network):
            deny.append(network)
    denied = ranges.make_ranges(deny)
    closed = not policy.allow_internet or denied == ranges.EVERYTHING

    allow, exact, below, everything = [], set(), set(), False
    for entry in policy.allow_out:
        network = _parse_network(entry)
        if isinstance(network, IPv4Network):
            allow.append(network)
        elif network is None and entry.strip() == "*":
            everything = True
        elif network is None and entry.strip().startswith("*."):
            below.add(_parse_domain(entry.strip()[2:], f"invalid allowed address {entry}"))
        elif network is None:
            exact.add(_parse_domain(entry.strip(), f"invalid allowed address {entry}"))
    domains = Domains(frozenset(exact), frozenset(below), everything)
    if domains and not closed:
        raise InvalidInputError(NAMES_NEED_DENY_ALL)
    return Egress(closed, tuple(allow), () if closed else denied, domains, _parse_rules(policy))


def _parse_rules(policy: NetworkPolicy) -> tuple[HostRule, ...]:
    if len(policy.rules) > _MAX_RULES:
        raise InvalidInputError(f"A network policy has rules for at most {_MAX_RULES} hosts.")
    parsed = []
    for rule in policy.rules:
        problem = f"invalid host {rule.host} in network rules"
        before, wildcard, name = rule.host.rpartition("*.")
        if before:
            raise InvalidInputError(problem)
        parsed.append(HostRule(f"{wildcard}{_parse_domain(name, problem)}", rule.headers))
    return tuple(parsed)


def _parse_network(entry: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(entry.strip(), strict=False)
    except (ValueError, AddressValueError, NetmaskValueError):
        return None


def _parse_domain(name: str, problem: str) -> str:
    """Return the name in lower case, in ASCII, without the final dot. Raises InvalidInputError with this problem."""
    try:
        # The IDNA 2003 codec maps upper case and accepts plain names; others would need another dependency.
        plain = dns.name.from_text(name, idna_codec=dns.name.IDNA_2003).to_text(omit_final_dot=True).lower()
    except (dns.exception.DNSException, UnicodeError) as error:
        raise InvalidInputError(problem) from error
    labels = plain.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
        raise InvalidInputError(problem)
    return plain
