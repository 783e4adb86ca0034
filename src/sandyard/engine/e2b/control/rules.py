"""A client's `network.rules`: which headers are added to outgoing requests to which hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sandyard.engine.contract import HostRule
from sandyard.engine.e2b.control.wire import Rule
from sandyard.engine.secrets import placeholders
from sandyard.kit.errors import InvalidInputError

MAX_HOSTS, MAX_HEADERS = 100, 32
MAX_NAME, MAX_VALUE = 256, 8192
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
_FRAMING = frozenset("connection content-length expect host keep-alive te trailer transfer-encoding upgrade".split())


def parse_rules(rules_by_host: Mapping[str, list[Rule]]) -> tuple[HostRule, ...]:
    """Return the headers of each host that has any; the last one of the same name counts. Raises InvalidInputError."""
    if len(rules_by_host) > MAX_HOSTS:
        raise InvalidInputError(f"Network rules can have at most {MAX_HOSTS} hosts.")
    host_rules: dict[str, HostRule] = {}
    for name, rules in rules_by_host.items():
        host = _parse_host(name)
        if host in host_rules:
            raise InvalidInputError(f"The host {host} occurs twice in the network rules.")
        headers: dict[str, tuple[str, str]] = {}
        for rule in rules:
            for header, value in ((rule.transform and rule.transform.headers) or {}).items():
                _check_header(host, header, value)
                headers[header.lower()] = (header, value)
        if len(headers) > MAX_HEADERS:
            raise InvalidInputError(
                f"A network rule can have at most {MAX_HEADERS} headers; the rule for {host} has more."
            )
        host_rules[host] = HostRule(host, tuple(headers.values()))
    return tuple(rule for rule in host_rules.values() if rule.headers)


def render_rules(rules_by_host: Mapping[str, list[Rule]]) -> dict[str, Any]:
    """Return the rules as clients see them: unchanged, with hosts in lower case."""
    return {
        host.lower(): [rule.model_dump(exclude_none=True) for rule in rules] for host, rules in rules_by_host.items()
    }


def _parse_host(name: str) -> str:
    if not _HOST.fullmatch(name) or len(name) > 253 or name.rpartition(".")[2].isdigit():
        raise InvalidInputError(
            f"invalid host {name[:100]!r} in network rules: use a domain or *.domain, without an address or port. "
            "Rules apply to ports 80 and 443."
        )
    return name.lower()


def _check_header(host: str, name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise InvalidInputError(f"invalid header name {name[:100]!r} in the network rule for {host}")
    if name.lower() in _FRAMING or name.lower().startswith("proxy-"):
        raise InvalidInputError(
            f"A network rule cannot set the header {name}, because it controls the connection itself."
        )
    if not _VALUE.fullmatch(value) or value != value.strip() or len(value) > MAX_VALUE:
        raise InvalidInputError(
            f"invalid value of the header {name} in the network rule for {host}: use one line of at most {MAX_VALUE} "
            "characters"
        )
    placeholders.validate(value)
