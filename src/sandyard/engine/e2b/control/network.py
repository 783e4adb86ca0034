"""Validation of a client's `network` object, with E2B's error messages where clients look for them, and conversion to a
policy."""

from __future__ import annotations

import functools
import ipaddress
import re
from typing import Any

from sandyard.engine.contract import AGENT_PORT, NetworkPolicy
from sandyard.engine.e2b.control import rules
from sandyard.engine.e2b.control.wire import Egress, NetworkConfig, NetworkUpdate
from sandyard.engine.sandboxes.model import Network
from sandyard.kit.errors import InvalidInputError

ALL_TRAFFIC = "0.0.0.0/0"
ALL_TRAFFIC_V6 = "::/0"
INGRESS = ("allowPublicTraffic", "maskRequestHost", "httpsPorts")
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DOMAIN = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}")
_HOST = re.compile(rf"((?:{_LABEL}\.)*{_LABEL})(?::(?:\d{{1,5}}|\$\{{PORT\}}))?")


def make_network(config: NetworkConfig | None, allow_internet: bool | None) -> Network:
    """Return the network of a new sandbox. Raises InvalidInputError."""
    if config is None:
        return _make_default(allow_internet)
    if any(not 0 < port < 65536 or port == AGENT_PORT for port in config.httpsPorts or ()):
        raise InvalidInputError(f"HTTPS ports must be numbers from 1 to 65535, except {AGENT_PORT}, which envd uses.")
    if config.maskRequestHost is not None and not _HOST.fullmatch(config.maskRequestHost):
        raise InvalidInputError(f"mask request host is not valid: {config.maskRequestHost}")
    policy = _make_policy(config, allow_internet)
    shown: dict[str, Any] = config.model_dump(exclude_none=True, exclude={"egressProxy", "rules"})
    if config.rules is not None:
        shown["rules"] = rules.render_rules(config.rules)
    return Network(policy, shown, allow_internet)


@functools.cache
def _make_default(allow_internet: bool | None) -> Network:
    """Return the network of most sandboxes, which share the object."""
    return Network(NetworkPolicy(allow_internet=allow_internet is not False), None, allow_internet)


def update_network(update: NetworkUpdate, before: Network) -> Network:
    """Return the updated network. Omitted fields are cleared; settings for incoming traffic are kept. Raises
    InvalidInputError."""
    shown = {key: value for key, value in (before.config or {}).items() if key in INGRESS}
    for key in ("allowOut", "denyOut", "dnsServers"):
        if (entries := getattr(update, key)) is not None:
            shown[key] = entries
    if update.rules is not None:
        shown["rules"] = rules.render_rules(update.rules)
    return Network(_make_policy(update, update.allow_internet_access), shown or None, update.allow_internet_access)


def _make_policy(egress: Egress, allow_internet: bool | None) -> NetworkPolicy:
    _reject_unsupported(egress)
    allow, deny = egress.allowOut or [], egress.denyOut or []
    for entry in deny:
        if not _is_address(entry):
            raise InvalidInputError(f"invalid denied CIDR {entry}")
    domains = [entry for entry in allow if not _is_address(entry)]
    for entry in domains:
        if not _DOMAIN.fullmatch(entry) or len(entry) > 253 or entry.rpartition(".")[2].isdigit():
            raise InvalidInputError(f"invalid allowed address {entry}")
    if domains and ALL_TRAFFIC not in deny:
        raise InvalidInputError(
            "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out "
            "to block all other traffic."
        )
    for entry in egress.dnsServers or ():
        if not _is_ipv4(entry):
            raise InvalidInputError(f"invalid DNS server {entry[:100]}: use IPv4 addresses")
    if domains:  # all traffic to them is allowed; the sandbox's own name server continues to answer
        allow = [*allow, *(egress.dnsServers or ())]
    header_rules = rules.parse_rules(egress.rules or {})
    if allow_internet is False and allow:  # "behaves the same as specifying denyOut to 0.0.0.0/0"
        return NetworkPolicy(allow_out=tuple(allow), deny_out=(*deny, ALL_TRAFFIC, ALL_TRAFFIC_V6), rules=header_rules)
    return NetworkPolicy(allow_internet is not False, tuple(allow), tuple(deny), header_rules)


def _reject_unsupported(egress: Egress) -> None:
    """Reject options that would be a security hole if they were ignored."""
    if egress.egressProxy:
        raise InvalidInputError("Egress proxies are not supported by this engine. Leave out network.egressProxy.")


def _is_ipv4(entry: str) -> bool:
    try:
        return not ipaddress.IPv4Address(entry).is_unspecified
    except ValueError:
        return False


def _is_address(entry: str) -> bool:
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return entry not in ("0.0.0.0", "::")  # noqa: S104 - an address nothing can be sent to, no rule can mean it
