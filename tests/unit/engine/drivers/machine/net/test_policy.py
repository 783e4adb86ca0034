from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from sandyard.engine.contract import HostRule, NetworkPolicy
from sandyard.engine.drivers.machine.net import ranges
from sandyard.engine.drivers.machine.net.policy import (
    NAMES_NEED_DENY_ALL,
    PRIVATE,
    Domains,
    Egress,
    parse_policy,
)
from sandyard.kit.errors import InvalidInputError


def is_reachable(egress: Egress, address: str) -> bool:
    return ranges.contains(egress.list_allowed_ranges(PRIVATE), int(IPv4Address(address)))


def test_the_default_policy_allows_everything() -> None:
    assert parse_policy(NetworkPolicy()) == Egress()
    assert parse_policy(NetworkPolicy()).resolves_names


@pytest.mark.parametrize("deny", [("0.0.0.0/0",), ("0.0.0.0/1", "128.0.0.0/1"), ("1.2.3.4/0",)])
def test_denying_every_address_closes_the_network(deny: tuple[str, ...]) -> None:
    assert parse_policy(NetworkPolicy(deny_out=deny)).closed
    assert not parse_policy(NetworkPolicy(deny_out=deny)).resolves_names


def test_private_ranges_are_reachable_only_when_listed_explicitly() -> None:
    everything = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("0.0.0.0/0",)))
    assert is_reachable(everything, "8.8.8.8")
    assert not is_reachable(everything, "10.1.2.3")
    assert not is_reachable(everything, "169.254.169.254")
    named = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("0.0.0.0/0", "10.0.0.0/8")))
    assert is_reachable(named, "10.1.2.3")
    assert not is_reachable(named, "192.168.0.1")
    across = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("8.0.0.0/6",)))
    assert is_reachable(across, "11.0.0.1")
    assert not is_reachable(across, "10.0.0.1"), "a range that only overlaps a private range does not open it"
    metadata = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("169.254.169.254", "100.64.0.0/10")))
    assert not is_reachable(metadata, "169.254.169.254")
    assert not is_reachable(metadata, "100.100.100.200")


def test_names_are_matched_completely_and_case_insensitively() -> None:
    names = parse_policy(
        NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=("API.Example.com.", "*.pypi.org", "bücher.example"))
    ).domains
    for name in ("api.example.com", "a.pypi.org", "a.b.pypi.org", "xn--bcher-kva.example"):
        assert names.match(name)
    for name in ("example.com", "x.api.example.com", "pypi.org", "evilpypi.org", "pypi.org.evil.example", "", "org"):
        assert not names.match(name)
    assert parse_policy(NetworkPolicy(allow_internet=False, allow_out=("*",))).domains.match("any.thing")
    assert not Domains().match("any.thing")


def test_ipv6_entries_are_accepted_and_have_no_effect() -> None:
    assert parse_policy(NetworkPolicy(deny_out=("::/0", "2001:db8::1"), allow_out=("2001:db8::/32",))) == Egress()


@pytest.mark.parametrize(
    ("policy", "part"),
    [
        (NetworkPolicy(deny_out=("example.com",)), "invalid denied CIDR example.com"),
        (NetworkPolicy(deny_out=("10.0.0.0/33",)), "invalid denied CIDR 10.0.0.0/33"),
        (NetworkPolicy(deny_out=("",)), "invalid denied CIDR"),
        (NetworkPolicy(allow_out=("example.com",)), NAMES_NEED_DENY_ALL),
        (NetworkPolicy(deny_out=("10.0.0.0/8",), allow_out=("example.com",)), NAMES_NEED_DENY_ALL),
        *(
            (NetworkPolicy(allow_internet=False, allow_out=(entry,)), f"invalid allowed address {entry}")
            for entry in (
                *("", "a b", "exa$mple.com", "https://example.com", "example.com:443", "10.0.0.0/33", "999.1.1.1"),
                *(
                    "a..b",
                    "-a.com",
                    "foo.*.com",
                    "*foo.com",
                    "*.",
                    "a" * 64 + ".com",
                    '"; flush ruleset',
                    "a\\034b.com",
                ),
            )
        ),
        (NetworkPolicy(deny_out=("10.0.0.1",) * 1001), "at most 1000"),
        *(
            (NetworkPolicy(rules=(HostRule(host, ()),)), f"invalid host {host} in network rules")
            for host in ("a b", "*.*.example.com", "*")
        ),
    ],
)
def test_invalid_entries_are_named_in_the_error(policy: NetworkPolicy, part: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_policy(policy)
    assert part in caught.value.message


def test_ranges_are_merged_subtracted_and_formatted() -> None:
    assert ranges.make_ranges(("10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16")) == ranges.make_ranges(("10.0.0.0/8",))
    assert ranges.subtract(ranges.EVERYTHING, ()) == ranges.EVERYTHING
    assert ranges.subtract(ranges.EVERYTHING, ranges.EVERYTHING) == ()
    assert ranges.subtract(((0, 10), (20, 30)), ((5, 5), (8, 22), (30, 40))) == ((0, 4), (6, 7), (23, 29))
    assert ranges.format_range((1, 1)) == "0.0.0.1"
    assert ranges.format_range((1, 2)) == "0.0.0.1-0.0.0.2"
