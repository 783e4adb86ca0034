"""Network rules and DNS servers of the control API: how they are validated and stored."""

from __future__ import annotations

from typing import Any

import pytest

from sandyard.engine.contract import HostRule, NetworkPolicy
from sandyard.engine.e2b.control import network
from sandyard.engine.e2b.control.wire import NetworkConfig, NetworkUpdate
from sandyard.kit.errors import InvalidInputError


def rules(host: str, **headers: str) -> dict[str, Any]:
    return {host: [{"transform": {"headers": {name.replace("_", "-"): value for name, value in headers.items()}}}]}


def test_rules_become_headers_and_are_returned_unchanged() -> None:
    given = {
        "API.example.com": [
            {"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.key}", "X-A": "1"}}},
            {"transform": {"headers": {"x-a": "2"}}},
            {},
        ],
        "quiet.example.com": [],
    }
    built = network.make_network(NetworkConfig.model_validate({"rules": given}), None)
    headers = (("Authorization", "Bearer ${e2b.secrets.key}"), ("x-a", "2"))
    assert built.policy.rules == (HostRule("api.example.com", headers),)
    assert built.config is not None
    assert built.config["rules"] == {host.lower(): rules for host, rules in given.items()}
    assert NetworkPolicy.from_dict(built.policy.to_dict()) == built.policy


def test_an_update_without_rules_clears_them() -> None:
    before = network.make_network(NetworkConfig.model_validate({"rules": rules("a.example.com", X="1")}), None)
    kept = network.update_network(NetworkUpdate.model_validate({"rules": rules("b.example.com", X="1")}), before)
    assert [rule.host for rule in kept.policy.rules] == ["b.example.com"]
    cleared = network.update_network(NetworkUpdate(), kept)
    assert (cleared.policy.rules, cleared.config) == ((), None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (rules("*", X="1"), "invalid host"),
        (rules("10.0.0.1", X="1"), "without an address"),
        (rules("10.0.0.0/8", X="1"), "without an address"),
        (rules("example.com:8443", X="1"), "or port"),
        (rules("", X="1"), "invalid host"),
        ({**rules("a.example.com", X="1"), **rules("A.example.com", X="1")}, "twice"),
        (rules("a.example.com", Host="b.example.com"), "cannot set the header Host"),
        (rules("a.example.com", Transfer_Encoding="chunked"), "cannot set"),
        (rules("a.example.com", Proxy_Authorization="x"), "cannot set"),
        (rules("a.example.com", X="two\r\nlines"), "invalid value"),
        (rules("a.example.com", X="x" * 8193), "invalid value"),
        ({"a.example.com": [{"transform": {"headers": {"a b": "1"}}}]}, "invalid header name"),
        (rules("a.example.com", X="${e2b.identity.tokens.aws}"), "does not issue identity tokens"),
        (rules("a.example.com", X="${e2b.other}"), "Unknown placeholder"),
        (rules("a.example.com", X="${e2b.secrets.}"), "Unknown placeholder"),
        ({f"h{n}.example.com": [] for n in range(101)}, "at most 100 hosts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_rules_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        network.make_network(NetworkConfig.model_validate({"rules": given}), None)


def test_dns_servers_are_reachable_when_names_are_allowed() -> None:
    def policy(**config: Any) -> NetworkPolicy:
        return network.make_network(NetworkConfig.model_validate({"dnsServers": ["192.0.2.53"], **config}), None).policy

    closed = policy(allowOut=["example.com"], denyOut=["0.0.0.0/0"])
    assert closed.allow_out == ("example.com", "192.0.2.53")
    assert policy(allowOut=["192.0.2.1"]).allow_out == ("192.0.2.1",)
    assert policy() == NetworkPolicy()
    built = network.make_network(NetworkConfig(dnsServers=[]), None)
    assert built.config == {"dnsServers": []}
    for wrong in (["dns.example.com"], ["::1"], ["0.0.0.0"]):
        with pytest.raises(InvalidInputError, match="invalid DNS server"):
            network.make_network(NetworkConfig(dnsServers=wrong), None)
