"""The firewall of one instance, kept in the kernel: it keeps working while no engine is running, and is found again.

Every call blocks for a fraction of a millisecond to a few, and all must come from one thread. The kernel's state is
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

from sandyard.engine.drivers.machine.net import ranges
from sandyard.engine.drivers.machine.net.denied_reader import DeniedConnection
from sandyard.engine.drivers.machine.net.kernel_sets import KernelSets, WrittenPolicy
from sandyard.engine.drivers.machine.net.nft import Nft, NftError
from sandyard.engine.drivers.machine.net.policy import NEVER, Domains, Egress
from sandyard.engine.drivers.machine.net.ranges import Ranges
from sandyard.engine.drivers.machine.net.ruleset import Layout, make_replace_commands, make_transaction

log = logging.getLogger(__name__)

_CLOSED_VERDICT, _LISTED_VERDICT = "goto closed", "jump listed"
# A resolved address is open for twice its TTL, but at least for the first and at most for twice the second.
_MIN_SECONDS, _MAX_SECONDS = 600, 86400
_MAX_RESOLVED = 4096  # addresses resolved for one sandbox
_MAX_NAMES = 8  # names of one address that are remembered; if none of them stays allowed, the address is closed
_PLAIN_NAME = re.compile(r"[a-z0-9_.-]{1,253}")


@dataclass(frozen=True, slots=True)
class _OpenAddress:
    """An address that is open because one of these names resolves to it."""

    names: frozenset[str]
    until: float  # monotonic; connections opened by then may continue


class Firewall:
    """The rules of one instance and the policies of its sandboxes, each known by its address."""

    def __init__(self, nft: Nft, layout: Layout) -> None:
        self._nft = nft
        self._layout = layout
        self._sets = KernelSets(nft, layout.names.table)
        self._private: Ranges | None = None
        self._crowded = False
        self._written: dict[IPv4Address, WrittenPolicy] = {}
        self._egress: dict[IPv4Address, Egress] = {}
        # Every element of `names` and `lively`, and some that have expired.
        self._resolved: dict[IPv4Address, dict[int, _OpenAddress]] = {}
        self._full: set[IPv4Address] = set()  # sandboxes for which was logged that they have too many addresses

    def open(self, keep: Collection[IPv4Address], private: Ranges) -> None:
        """Update the rules and remove every sandbox except these, whose policies stay in force. Idempotent."""
        # Sandboxes with an unknown policy stay blocked until it is set again.
        blocked = [self._sets.make_add_command("verdicts", f"{address} : {_CLOSED_VERDICT}") for address in keep]
        new_table = [make_transaction(self._layout), *blocked]
        if not self._sets.table_exists():
            self._nft.run("\n".join(new_table))
        else:
            try:
                self._nft.run(make_transaction(self._layout))
            except NftError:  # the table of another version
                log.warning("network_table_rebuilt table=%s", self._layout.names.table)
                self._nft.run("\n".join([f"delete table inet {self._layout.names.table}", *new_table]))
        now = time.monotonic()
        self._written = self._sets.read_policies()
        self._resolved = {}
        for owner, to in self._sets.read_lively():
            self._resolved.setdefault(owner, {})[int(to)] = _OpenAddress(frozenset(), now)
        for pair in self._sets.read_resolved():
            resolved = _OpenAddress(frozenset({pair.comment}), now + pair.expires)
            self._resolved.setdefault(pair.owner, {})[int(pair.to)] = resolved
        self._private = None
        self.set_private(private)
        self.set_crowded(self._crowded)
        for address in {*self._written, *self._resolved} - set(keep):
            self.clear(address)

    def restore(self) -> bool:
        """Restore everything in one transaction if the host's rules were flushed. Return whether that was needed."""
        if self._sets.table_exists():
            return False
        lines = [
            make_transaction(self._layout),
            *make_replace_commands(self._layout.names, "private", self._private or ()),
        ]
        lines += self._make_crowded_commands()
        for address, written in self._written.items():
            lines += self._sets.make_change_commands(address, WrittenPolicy(), written)
        now = time.monotonic()
        for address, answers in self._resolved.items():
            for to, answer in answers.items():
                if answer.until > now + 1:
                    name = min(answer.names)
                    lines += self._sets.make_open_commands(address, IPv4Address(to), int(answer.until - now), name)
        self._nft.run("\n".join(lines))
        return True

    def remove(self) -> None:
        """Remove the table. Idempotent."""
        if self._sets.table_exists():
            self._nft.run(f"delete table inet {self._layout.names.table}")

    def set_private(self, private: Ranges) -> None:
        """Set which addresses count as private from now on."""
        if private == self._private:
            return
        self._nft.run("\n".join(make_replace_commands(self._layout.names, "private", private)))
        self._private = private
        for address, egress in list(self._egress.items()):
            self.apply(address, egress)

    def set_crowded(self, crowded: bool) -> None:
        """Set whether the host's connection table is crowded. While it is, no sandbox can open a connection; existing
        ones continue."""
        self._crowded = crowded
        self._run(self._make_crowded_commands())

    def _make_crowded_commands(self) -> list[str]:
        subnet = self._layout.subnet
        whole_subnet = ((int(subnet.network_address), int(subnet.broadcast_address)),)
        return make_replace_commands(self._layout.names, "crowded", whole_subnet if self._crowded else ())

    def apply(self, address: IPv4Address, egress: Egress) -> None:
        """Apply this policy, also to existing connections. Addresses of names that stay allowed stay open."""
        before, after = self._written.get(address, WrittenPolicy()), self._translate_policy(egress)
        lines = self._sets.make_change_commands(address, before, after)
        known = self._resolved.get(address, {})
        if before.names_hash != after.names_hash:
            stay = {to: answer for to, answer in known.items() if any(map(egress.domains.match, answer.names))}
            lines += self._sets.make_close_commands(address, [IPv4Address(to) for to in known if to not in stay])
            known = stay
        self._run(lines)
        self._resolved[address] = known
        self._written[address] = after
        self._egress[address] = egress

    def clear(self, address: IPv4Address) -> None:
        """Remove a sandbox that is gone. Idempotent."""
        if self._written.get(address, WrittenPolicy()) != WrittenPolicy() or self._resolved.get(address):
            self.apply(address, Egress())
        if address in self._egress or address in self._written:
            self._run(self._sets.make_reset_commands(address))
        for table in (self._written, self._egress, self._resolved):
            table.pop(address, None)
        self._full.discard(address)

    def admit(self, address: IPv4Address, name: str, answers: Mapping[IPv4Address, int]) -> None:
        """Open the addresses that a name resolved to (with their TTLs), if the policy currently allows the name."""
        egress = self._egress.get(address)
        # The name becomes part of a command, so only a plain one is accepted.
        if egress is None or not _PLAIN_NAME.fullmatch(name) or not egress.domains.match(name):
            return
        known = self._resolved.setdefault(address, {})
        now = time.monotonic()
        admitted: dict[int, _OpenAddress] = {}
        lines: list[str] = []
        for answer, ttl in answers.items():
            to, before = int(answer), known.get(int(answer))
            # Answers are untrusted: they open internet addresses, but not private ranges.
            is_gateway = self._layout.hairpin is not None and answer == self._layout.gateway
            if not is_gateway and ranges.contains((*(self._private or ()), *NEVER), to):
                continue
            names = before.names if before else frozenset()
            if len(names) < _MAX_NAMES:
                names |= {name}
            # Open for long enough already.
            if before is not None and before.until - now > max(min(ttl, _MAX_SECONDS), _MIN_SECONDS / 2):
                admitted[to] = _OpenAddress(names, before.until)
                continue
            seconds = min(max(2 * ttl, _MIN_SECONDS), 2 * _MAX_SECONDS)
            lines += self._sets.make_open_commands(address, answer, seconds, name)
            admitted[to] = _OpenAddress(names, now + seconds)
        if len(known.keys() | admitted.keys()) > _MAX_RESOLVED:
            # Expired ones are closed because connections may still use them, which nobody would know after this.
            expired = [IPv4Address(to) for to, item in known.items() if item.until <= now and to not in admitted]
            lines = [*self._sets.make_close_commands(address, expired), *lines]
            known = {to: item for to, item in known.items() if item.until > now}
        if len(known.keys() | admitted.keys()) > _MAX_RESOLVED:
            if address not in self._full:
                self._full.add(address)
                log.warning("network_names_full address=%s", address)
            return
        self._run(lines)
        self._resolved[address] = known | admitted

    def discard_denied(self, address: IPv4Address, found: Collection[DeniedConnection]) -> None:
        """Remove these blocked connections of the sandbox. Raises NftError."""
        self._run(self._sets.make_discard_commands(address, found))

    def _run(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            self._nft.run("\n".join(lines))
        except NftError:
            if not self.restore():  # everything may have been flushed at this moment
                raise
            self._nft.run("\n".join(lines))

    def _translate_policy(self, egress: Egress) -> WrittenPolicy:
        private = self._private or ()
        allow, uses_proxy = egress.list_allowed_ranges(private), bool(egress.rules)
        if egress.closed:
            return WrittenPolicy(_CLOSED_VERDICT, _hash_domains(egress.domains), allow, uses_proxy=uses_proxy)
        if egress.deny or any(ranges.subtract((item,), private) != (item,) for item in allow):
            return WrittenPolicy(_LISTED_VERDICT, "", allow, egress.deny, uses_proxy)
        return WrittenPolicy(uses_proxy=uses_proxy)


def _hash_domains(domains: Domains) -> str:
    """Return a hash from which a later engine sees whether the names of a policy, and so the opened addresses, have
    changed."""
    if not domains:
        return ""
    content = "\n".join([str(domains.everything), *sorted(domains.exact), "*", *sorted(domains.below)])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
