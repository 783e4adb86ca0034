"""Other packet filters on this host. An accept in our table is not final, because every other table is evaluated too.

Docker, ufw and custom firewalls often drop forwarded or incoming packets unless one of their rules accepts them. Docker
has a chain for this purpose, DOCKER-USER, to which two rules are added. Other firewalls are only reported.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.machine.net.names import INTERFACE_PREFIX, Names
from sandyard.engine.drivers.machine.net.nft import Nft, NftError

log = logging.getLogger(__name__)

_DOCKER_CHAIN = "ip filter DOCKER-USER"
_OWN_TABLE_PREFIX = "sandyard_"
_LEGACY_TABLES_FILE = Path("/proc/net/ip_tables_names")

ALLOW_DNS_COMMANDS = (
    f"iptables -I INPUT -i {INTERFACE_PREFIX}+ -p udp --dport 53 -j ACCEPT; "
    f"iptables -I INPUT -i {INTERFACE_PREFIX}+ -p tcp --dport 53 -j ACCEPT"
)
"""The commands that let sandboxes reach their name server."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A base chain that drops packets unless one of its rules accepts them."""

    family: str
    table: str
    chain: str
    hook: str  # "input" or "forward"

    def __str__(self) -> str:
        return f"{self.family} {self.table} {self.chain}"


def find_blockers(nft: Nft) -> list[Blocker]:
    """Return the chains of others that drop by policy, except those that have rules for our interfaces."""
    chains = [item["chain"] for item in nft.query("list chains") if "chain" in item]
    has_docker = any(_get_full_name(chain) == _DOCKER_CHAIN for chain in chains)
    found = []
    for chain in chains:
        if chain.get("policy") != "drop" or chain.get("hook") not in {"input", "forward"}:
            continue
        if chain["family"] not in {"ip", "inet"} or chain["table"].startswith(_OWN_TABLE_PREFIX):
            continue
        if has_docker and _get_full_name(chain) == "ip filter FORWARD":
            continue
        if f'"{INTERFACE_PREFIX}' in json.dumps(nft.query(f"list table {chain['family']} {chain['table']}")):
            continue  # there is already a rule for our interfaces
        found.append(Blocker(chain["family"], chain["table"], chain["name"], chain["hook"]))
    return found


def allow_in_docker_chain(nft: Nft, names: Names) -> None:
    """Let our packets pass Docker's forward chain, if there is one. Idempotent.

    Uses only simple rules like those that the `iptables` command writes, so that it can still read its table. Our own
    table ensures that only replies come back.
    """
    if not _has_docker_chain(nft):
        return
    present = {key for key, _ in _list_docker_rules(nft, names)}
    for key in ("iifname", "oifname"):
        if key not in present:
            nft.run(f'insert rule {_DOCKER_CHAIN} {key} "{names.prefix}*" counter accept')
            log.info("network_docker_rule_added chain=%s %s=%s*", _DOCKER_CHAIN, key, names.prefix)


def remove_docker_rules(nft: Nft, names: Names) -> None:
    """Remove the rules of `allow_in_docker_chain`. Idempotent."""
    if not _has_docker_chain(nft):
        return
    for _, handle in _list_docker_rules(nft, names):
        nft.run(f"delete rule {_DOCKER_CHAIN} handle {handle}")


def list_problems(nft: Nft) -> dict[str, str]:
    """Return the problems that the host's own firewall causes, by what does not work, with the remedy."""
    result = {}
    found = find_blockers(nft)
    forward = [str(item) for item in found if item.hook == "forward"]
    if forward:
        result["forward"] = (
            f"the host's firewall drops forwarded packets ({', '.join(forward)}), so that sandboxes may not reach the "
            f"internet. Allow them: {_make_forward_commands('iptables')}"
        )
    incoming = [str(item) for item in found if item.hook == "input"]
    if incoming:
        result["dns"] = (
            f"the host's firewall drops incoming packets ({', '.join(incoming)}), so that names may not resolve in "
            f"sandboxes. Allow them: {ALLOW_DNS_COMMANDS}"
        )
    if _has_legacy_rules() and "forward" not in result:
        result["legacy"] = (
            "rules of iptables-legacy are loaded, which cannot be seen from here. If sandboxes do not reach the "
            f"internet: {_make_forward_commands('iptables-legacy')}"
        )
    return result


def _make_forward_commands(command: str) -> str:
    return (
        f"{command} -I FORWARD -i {INTERFACE_PREFIX}+ -j ACCEPT; "
        f"{command} -I FORWARD -o {INTERFACE_PREFIX}+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    )


def _has_legacy_rules() -> bool:
    try:
        return "filter" in _LEGACY_TABLES_FILE.read_text().split()
    except OSError:
        return False


def _get_full_name(chain: dict[str, Any]) -> str:
    return f"{chain['family']} {chain['table']} {chain['name']}"


def _has_docker_chain(nft: Nft) -> bool:
    items = nft.query("list chains ip")
    return any("chain" in item and _get_full_name(item["chain"]) == _DOCKER_CHAIN for item in items)


def _list_docker_rules(nft: Nft, names: Names) -> list[tuple[str, int]]:
    """Return our rules in Docker's chain: which side they match, and their handle."""
    found = []
    try:
        items = nft.query(f"list chain {_DOCKER_CHAIN}")
    except NftError:
        return []
    for item in items:
        for expression in item.get("rule", {}).get("expr", ()):
            match = expression.get("match", {}) if isinstance(expression, dict) else {}
            if match.get("right") == f"{names.prefix}*":
                found.append((str(match["left"]["meta"]["key"]), int(item["rule"]["handle"])))
    return found
