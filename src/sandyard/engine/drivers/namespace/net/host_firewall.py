"""What else filters packets on this host. An accept in our table is not the last word: every other table is asked too.

Docker, ufw and firewalls of one's own often drop what is forwarded, or what comes in, unless a rule of theirs says
otherwise. For Docker there is a chain made for this, DOCKER-USER, and two rules in it are ours. For the rest: say so.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.namespace.net.naming import ANY_CABLE, Names
from sandyard.engine.drivers.namespace.net.nft import Nft, NftError

log = logging.getLogger(__name__)

_DOCKER = "ip filter DOCKER-USER"
_OWN_TABLES = "sandyard_"
_LEGACY = Path("/proc/net/ip_tables_names")

LET_ASK = (
    f"iptables -I INPUT -i {ANY_CABLE}+ -p udp --dport 53 -j ACCEPT; "
    f"iptables -I INPUT -i {ANY_CABLE}+ -p tcp --dport 53 -j ACCEPT"
)
"""The commands that let sandboxes reach their name server."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A base chain that drops what none of its rules accepts."""

    family: str
    table: str
    chain: str
    hook: str  # "input" or "forward"

    def __str__(self) -> str:
        return f"{self.family} {self.table} {self.chain}"


def blockers(nft: Nft) -> list[Blocker]:
    """The chains of others that drop by policy, without those that rules for our interfaces get past."""
    chains = [item["chain"] for item in nft.query("list chains") if "chain" in item]
    docker = any(_name(chain) == _DOCKER for chain in chains)
    found = []
    for chain in chains:
        if chain.get("policy") != "drop" or chain.get("hook") not in {"input", "forward"}:
            continue
        if chain["family"] not in {"ip", "inet"} or chain["table"].startswith(_OWN_TABLES):
            continue
        if docker and _name(chain) == "ip filter FORWARD":
            continue
        if f'"{ANY_CABLE}' in json.dumps(nft.query(f"list table {chain['family']} {chain['table']}")):
            continue  # somebody has made a rule for our interfaces already
        found.append(Blocker(chain["family"], chain["table"], chain["name"], chain["hook"]))
    return found


def pass_docker(nft: Nft, names: Names) -> None:
    """Let our packets through Docker's forward chain, where there is one. Idempotent.

    Only the plainest rules, such as the `iptables` command writes itself: it must still be able to read its table. That
    replies alone come back is the affair of our own table."""
    if _find_chain(nft) is None:
        return
    present = {key for key, _ in _docker_rules(nft, names)}
    for key in ("iifname", "oifname"):
        if key not in present:
            nft.run(f'insert rule {_DOCKER} {key} "{names.prefix}*" counter accept')
            log.info("network_docker_rule_added chain=%s %s=%s*", _DOCKER, key, names.prefix)


def unpass_docker(nft: Nft, names: Names) -> None:
    """Take these rules away again. Idempotent."""
    if _find_chain(nft) is None:
        return
    for _, handle in _docker_rules(nft, names):
        nft.run(f"delete rule {_DOCKER} handle {handle}")


def complaints(nft: Nft) -> dict[str, str]:
    """What of the host's own firewall stands in the way, by what does not work, with what to do about it."""
    result = {}
    found = blockers(nft)
    forward = [str(item) for item in found if item.hook == "forward"]
    if forward:
        result["forward"] = (
            f"the host's firewall drops forwarded packets ({', '.join(forward)}), so that sandboxes may not reach the "
            f"internet. Allow them: {_let_forward('iptables')}"
        )
    incoming = [str(item) for item in found if item.hook == "input"]
    if incoming:
        result["dns"] = (
            f"the host's firewall drops incoming packets ({', '.join(incoming)}), so that names may not resolve in "
            f"sandboxes. Allow them: {LET_ASK}"
        )
    if _legacy() and "forward" not in result:
        result["legacy"] = (
            "rules of iptables-legacy are loaded, which cannot be seen from here. If sandboxes do not reach the "
            f"internet: {_let_forward('iptables-legacy')}"
        )
    return result


def _let_forward(command: str) -> str:
    return (
        f"{command} -I FORWARD -i {ANY_CABLE}+ -j ACCEPT; "
        f"{command} -I FORWARD -o {ANY_CABLE}+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    )


def _legacy() -> bool:
    try:
        return "filter" in _LEGACY.read_text().split()
    except OSError:
        return False


def _name(chain: dict[str, Any]) -> str:
    return f"{chain['family']} {chain['table']} {chain['name']}"


def _find_chain(nft: Nft) -> dict[str, Any] | None:
    for item in nft.query("list chains ip"):
        if "chain" in item and _name(item["chain"]) == _DOCKER:
            return dict(item["chain"])
    return None


def _docker_rules(nft: Nft, names: Names) -> list[tuple[str, int]]:
    """Our rules in Docker's chain: which side they match, and their handle."""
    found = []
    try:
        items = nft.query(f"list chain {_DOCKER}")
    except NftError:
        return []
    for item in items:
        for expression in item.get("rule", {}).get("expr", ()):
            match = expression.get("match", {}) if isinstance(expression, dict) else {}
            if match.get("right") == f"{names.prefix}*":
                found.append((str(match["left"]["meta"]["key"]), int(item["rule"]["handle"])))
    return found
