"""The firewall of one instance, kept in the kernel: it goes on working while no engine runs, and is found again.

Every call blocks for a fraction of a millisecond to a few, and all must come from one thread. What the kernel holds is
read once, in `open`; from then on only differences are written, each as one transaction.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import islice

from sandyard.engine.contract import Denied
from sandyard.engine.drivers.namespace.net import ranges
from sandyard.engine.drivers.namespace.net.kernel_sets import KernelSets, Written
from sandyard.engine.drivers.namespace.net.nft import Nft, NftError
from sandyard.engine.drivers.namespace.net.policy import NEVER, Domains, Egress
from sandyard.engine.drivers.namespace.net.ranges import Ranges
from sandyard.engine.drivers.namespace.net.ruleset import Layout, replace_set, transaction

log = logging.getLogger(__name__)

_CLOSED, _LISTED = "goto closed", "jump listed"
_SHORTEST, _LONGEST = 600, 86400  # seconds a resolved address may be dialled, whatever its TTL
_NAMES = 4096  # addresses resolved for one sandbox
_DENIED = 256  # refused addresses that are told at once
_PLAIN_NAME = re.compile(r"[a-z0-9_.-]{1,253}")


@dataclass(frozen=True, slots=True)
class _Resolved:
    """An address that is open because one of these names leads to it."""

    names: frozenset[str]
    until: float  # monotonic


class Firewall:
    def __init__(self, nft: Nft, layout: Layout) -> None:
        self._nft = nft
        self._layout = layout
        self._sets = KernelSets(nft, layout.names.table)
        self._private: Ranges | None = None
        self._crowded = False
        self._written: dict[IPv4Address, Written] = {}
        self._egress: dict[IPv4Address, Egress] = {}
        self._resolved: dict[IPv4Address, dict[int, _Resolved]] = {}

    def open(self, keep: Collection[IPv4Address], private: Ranges) -> None:
        """Bring the rules up to date and forget every sandbox but these, whose policies go on holding. Idempotent."""
        # Where no policy is known it may have been any: such sandboxes stay shut until it is set anew.
        shut = [self._sets.add("verdicts", f"{address} : {_CLOSED}") for address in keep]
        fresh = [transaction(self._layout), *shut]
        if not self._sets.table_exists():
            self._nft.run("\n".join(fresh))
        else:
            try:
                self._nft.run(transaction(self._layout))
            except NftError:  # the table of another version
                log.warning("network_table_rebuilt table=%s", self._layout.names.table)
                self._nft.run("\n".join([f"delete table inet {self._layout.names.table}", *fresh]))
        now = time.monotonic()
        self._written = self._sets.read_written()
        self._resolved = {}
        for pair in self._sets.read_pairs("names"):
            resolved = _Resolved(frozenset({pair.comment}), now + pair.expires)
            self._resolved.setdefault(pair.owner, {})[int(pair.to)] = resolved
        self._private = None
        self.set_private(private)
        self.set_crowded(self._crowded)
        for address in {*self._written, *self._resolved} - set(keep):
            self.clear(address)

    def restore(self) -> bool:
        """Put everything back, at one stroke, if somebody flushed the host's rules. Says if it was needed."""
        if self._sets.table_exists():
            return False
        lines = [transaction(self._layout), *replace_set(self._layout.names, "private", self._private or ())]
        lines += self._crowd()
        for address, written in self._written.items():
            lines += self._sets.difference(address, Written(), written)
        now = time.monotonic()
        for address, answers in self._resolved.items():
            for to, answer in answers.items():
                if answer.until > now + 1:
                    name = min(answer.names)
                    lines += self._sets.set_pair(address, IPv4Address(to), int(answer.until - now), name)
        self._nft.run("\n".join(lines))
        return True

    def remove(self) -> None:
        """Idempotent."""
        if self._sets.table_exists():
            self._nft.run(f"delete table inet {self._layout.names.table}")

    def set_private(self, private: Ranges) -> None:
        """Say which addresses count as private from now on."""
        if private == self._private:
            return
        self._nft.run("\n".join(replace_set(self._layout.names, "private", private)))
        self._private = private
        for address, egress in list(self._egress.items()):
            self.apply(address, egress)

    def set_crowded(self, crowded: bool) -> None:
        """While it is crowded no sandbox begins a connection; those that exist go on."""
        self._crowded = crowded
        self._run(self._crowd())

    def _crowd(self) -> list[str]:
        subnet = self._layout.subnet
        everybody = ((int(subnet.network_address), int(subnet.broadcast_address)),)
        return replace_set(self._layout.names, "crowded", everybody if self._crowded else ())

    def apply(self, address: IPv4Address, egress: Egress) -> None:
        """Make this the policy, for existing connections too. Addresses of names that stay allowed stay open."""
        before, after = self._written.get(address, Written()), self._wanted(egress)
        lines = self._sets.difference(address, before, after)
        known = self._resolved.get(address, {})
        if before.mark != after.mark:
            stay = {to: answer for to, answer in known.items() if any(map(egress.domains.match, answer.names))}
            used = {int(pair.to) for pair in self._sets.read_pairs("lively") if pair.owner == address}
            for to in sorted((used | set(known)) - set(stay)):
                lines += self._sets.discard_pair(address, IPv4Address(to))
            known = stay
        self._run(lines)
        self._resolved[address] = known
        self._written[address] = after
        self._egress[address] = egress

    def clear(self, address: IPv4Address) -> None:
        """The sandbox is gone. Idempotent."""
        if self._written.get(address, Written()) != Written() or self._resolved.get(address):
            self.apply(address, Egress())
        for memory in (self._written, self._egress, self._resolved):
            memory.pop(address, None)

    def admit(self, address: IPv4Address, name: str, answers: Mapping[IPv4Address, int]) -> None:
        """Open what a name was resolved to (with each address's TTL), if the policy allows the name at this moment."""
        egress = self._egress.get(address)
        # The name becomes part of a command: nothing but a plain one may.
        if egress is None or not _PLAIN_NAME.fullmatch(name) or not egress.domains.match(name):
            return
        known = self._resolved.setdefault(address, {})
        now = time.monotonic()
        fresh: dict[int, _Resolved] = {}
        lines: list[str] = []
        for answer, ttl in answers.items():
            to, before = int(answer), known.get(int(answer))
            # An answer is the word of a stranger: it opens the internet, not the private ranges.
            own = self._layout.hairpin is not None and answer == self._layout.gateway
            if not own and ranges.contains((*(self._private or ()), *NEVER), to):
                continue
            names = (before.names if before else frozenset()) | {name}
            if before is not None and before.until - now > max(min(ttl, _LONGEST), _SHORTEST / 2):
                fresh[to] = _Resolved(names, before.until)
                continue
            seconds = min(max(2 * ttl, _SHORTEST), 2 * _LONGEST)
            lines += self._sets.set_pair(address, answer, seconds, name)
            fresh[to] = _Resolved(names, now + seconds)
        if len(known) + len(fresh) > _NAMES:
            known = self._resolved[address] = {to: answer for to, answer in known.items() if answer.until > now}
        if len(known) + len(fresh) > _NAMES:
            log.warning("network_names_full address=%s", address)
        else:
            self._run(lines)
            known.update(fresh)

    def take_denied(self, address: IPv4Address) -> list[Denied]:
        """Where the sandbox wanted to since the last call and was refused. Raises NftError."""
        found = list(islice(self._sets.read_denied(address), _DENIED))
        self._run(self._sets.discard_denied(address, found))
        return [Denied(str(to), protocol, port) for to, protocol, port in found]

    def _run(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            self._nft.run("\n".join(lines))
        except NftError:
            if not self.restore():  # somebody may have flushed everything this very moment
                raise
            self._nft.run("\n".join(lines))

    def _wanted(self, egress: Egress) -> Written:
        private = self._private or ()
        allow, ruled = egress.open_ranges(private), bool(egress.rules)
        if egress.closed:
            return Written(_CLOSED, _mark(egress.domains), allow, ruled=ruled)
        if egress.deny or any(ranges.subtract((item,), private) != (item,) for item in allow):
            return Written(_LISTED, "", allow, egress.deny, ruled)
        return Written(ruled=ruled)


def _mark(domains: Domains) -> str:
    """Tells a later engine whether the names of a policy have changed, and with them the addresses opened for them."""
    if not domains:
        return ""
    content = "\n".join([str(domains.everything), *sorted(domains.exact), "*", *sorted(domains.below)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
