"""The contents of the nftables sets and maps for each sandbox: read from the kernel, and changed with nft commands.

`ruleset.py` declares the sets and says what each of them holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from sandyard.engine.drivers.machine.net import ranges
from sandyard.engine.drivers.machine.net.denied_reader import DeniedConnection
from sandyard.engine.drivers.machine.net.nft import Nft
from sandyard.engine.drivers.machine.net.ranges import Range, Ranges


@dataclass(frozen=True, slots=True)
class WrittenPolicy:
    """One sandbox's policy as the kernel has it. Nothing is written for the default policy."""

    verdict: str = ""
    names_hash: str = ""  # of the names that it allows; stored as a comment
    allow: Ranges = ()
    deny: Ranges = ()
    uses_proxy: bool = False  # its web connections go through the proxy; the set is called `ruled`


@dataclass(frozen=True, slots=True)
class ResolvedAddress:
    """A resolved address that one sandbox may reach; `comment` is the name."""

    owner: IPv4Address
    to: IPv4Address
    comment: str
    expires: float


class KernelSets:
    """Reads the sets and maps of one table and makes commands that change them."""

    def __init__(self, nft: Nft, table: str) -> None:
        self._nft = nft
        self._name = table
        self._table = f"inet {table}"

    def table_exists(self) -> bool:
        return self._nft.has_table(self._name)

    def make_add_command(self, name: str, content: str) -> str:
        return f"add element {self._table} {name} {{ {content} }}"

    def make_delete_command(self, name: str, content: str) -> str:
        return f"delete element {self._table} {name} {{ {content} }}"

    def make_change_commands(self, address: IPv4Address, before: WrittenPolicy, after: WrittenPolicy) -> list[str]:
        """Return the commands that change one policy into the other."""
        lines = []
        for name, old, new in (("allow", before.allow, after.allow), ("deny", before.deny, after.deny)):
            for make_command, items in (
                (self.make_delete_command, set(old) - set(new)),
                (self.make_add_command, set(new) - set(old)),
            ):
                if items:
                    lines.append(
                        make_command(
                            name, ", ".join(f"{address} . {ranges.format_range(item)}" for item in sorted(items))
                        )
                    )
        if (before.verdict, before.names_hash) != (after.verdict, after.names_hash):
            if before.verdict:
                lines.append(self.make_delete_command("verdicts", str(address)))
            if after.verdict:
                comment = f' comment "{after.names_hash}"' if after.names_hash else ""
                lines.append(self.make_add_command("verdicts", f"{address}{comment} : {after.verdict}"))
        if before.uses_proxy != after.uses_proxy:
            make_command = self.make_add_command if after.uses_proxy else self.make_delete_command
            lines.append(make_command("ruled", str(address)))
        return lines

    def make_open_commands(self, address: IPv4Address, to: IPv4Address, seconds: int, name: str) -> list[str]:
        """Return the commands that open one resolved address for that many seconds from now."""
        pair = f"{address} . {to}"
        return [
            # Kernels before 6.12 do not extend an element; adding it first lets the deletion succeed in any case.
            self.make_add_command("names", f"{pair} timeout {seconds}s"),
            self.make_delete_command("names", pair),
            self.make_add_command("names", f'{pair} timeout {seconds}s comment "{name[:120]}"'),
        ]

    def make_close_commands(self, address: IPv4Address, addresses: Collection[IPv4Address]) -> list[str]:
        """Return the commands that close resolved addresses, whether they exist or have expired."""
        pairs = [f"{address} . {to}" for to in addresses]
        return [line for name in ("names", "lively") for line in self._make_forced_delete_commands(name, pairs)]

    def read_policies(self) -> dict[IPv4Address, WrittenPolicy]:
        """Return the policies that differ from the default, by the sandbox's address."""
        verdicts: dict[IPv4Address, tuple[str, str]] = {}
        for key, verdict in self._read_elements("map", "verdicts"):
            value, attributes = _split_element(key)
            kind, target = next(iter(verdict.items()))
            verdicts[IPv4Address(value)] = (f"{kind} {target['target']}", attributes.get("comment", ""))
        allow, deny = (self._read_ranges(name) for name in ("allow", "deny"))
        proxied = {IPv4Address(item) for item in self._read_elements("set", "ruled")}
        return {
            address: WrittenPolicy(
                *verdicts.get(address, ("", "")),
                allow=tuple(sorted(allow.get(address, ()))),
                deny=tuple(sorted(deny.get(address, ()))),
                uses_proxy=address in proxied,
            )
            for address in {*verdicts, *allow, *deny, *proxied}
        }

    def read_resolved(self) -> Iterator[ResolvedAddress]:
        """Yield the elements of `names`: the addresses that may be connected to."""
        for item in self._read_elements("set", "names"):
            value, attributes = _split_element(item)
            owner, to = value["concat"]
            comment, expires = str(attributes.get("comment", "")), float(attributes.get("expires", 0))
            yield ResolvedAddress(IPv4Address(owner), IPv4Address(to), comment, expires)

    def read_lively(self) -> Iterator[tuple[IPv4Address, IPv4Address]]:
        """Yield the elements of `lively`: each sandbox, and an address that it uses."""
        for key in self._nft.read_keys(self._name, "lively"):
            yield IPv4Address(key[:4]), IPv4Address(key[4:8])

    def make_discard_commands(self, address: IPv4Address, found: Collection[DeniedConnection]) -> list[str]:
        """Return the commands that remove these blocked connections of one sandbox."""
        attempts = [f"{address} . {item.to} . {item.protocol} . {item.port}" for item in found]
        return self._make_forced_delete_commands("denied", attempts)

    def make_reset_commands(self, address: IPv4Address) -> list[str]:
        """Return the commands after which blocked connections of this address are recorded again, however many there
        were."""
        return self._make_forced_delete_commands("noted", [str(address)])

    def _make_forced_delete_commands(self, name: str, elements: Collection[str]) -> list[str]:
        """Return the commands that remove elements which may have expired: adding them first lets the deletion succeed
        in any case."""
        if not elements:
            return []
        content = ", ".join(elements)
        return [self.make_add_command(name, content), self.make_delete_command(name, content)]

    def _read_ranges(self, name: str) -> dict[IPv4Address, list[Range]]:
        owned: dict[IPv4Address, list[Range]] = {}
        for element in self._read_elements("set", name):
            owner, target = element["concat"]
            owned.setdefault(IPv4Address(owner), []).append(_parse_interval(target))
        return owned

    def _read_elements(self, kind: str, name: str) -> list[Any]:
        found: list[Any] = []
        for item in self._nft.query(f"list {kind} {self._table} {name}"):
            found += item.get(kind, {}).get("elem", ())
        return found


def _split_element(item: Any) -> tuple[Any, dict[str, Any]]:
    """Return the value and the attributes of an element. nft wraps the value only if the element has attributes."""
    if isinstance(item, dict) and "elem" in item:
        return item["elem"]["val"], item["elem"]
    return item, {}


def _parse_interval(target: Any) -> Range:
    if isinstance(target, str):
        return int(IPv4Address(target)), int(IPv4Address(target))
    if "range" in target:
        low, high = target["range"]
        return int(IPv4Address(low)), int(IPv4Address(high))
    return ranges.make_ranges([f"{target['prefix']['addr']}/{target['prefix']['len']}"])[0]
