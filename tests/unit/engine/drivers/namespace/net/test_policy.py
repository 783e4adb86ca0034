from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.namespace.net import ranges
from sandyard.engine.drivers.namespace.net.policy import (
    NAMES_NEED_DENY_ALL,
    PRIVATE,
    Domains,
    Egress,
    parse_policy,
)
from sandyard.kit.errors import InvalidInputError


def reachable(egress: Egress, address: str) -> bool:
    return ranges.contains(egress.list_allowed_ranges(PRIVATE), int(IPv4Address(address)))


def test_the_default_is_open() -> None:
    assert parse_policy(NetworkPolicy()) == Egress()
    assert parse_policy(NetworkPolicy()).resolves_names


@pytest.mark.parametrize("deny", [("0.0.0.0/0",), ("0.0.0.0/1", "128.0.0.0/1"), ("1.2.3.4/0",)])
def test_denying_every_address_is_denying_all(deny: tuple[str, ...]) -> None:
    assert parse_policy(NetworkPolicy(deny_out=deny)).closed
    assert not parse_policy(NetworkPolicy(deny_out=deny)).resolves_names


def test_private_ranges_open_only_when_named() -> None:
    everything = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("0.0.0.0/0",)))
    assert reachable(everything, "8.8.8.8")
    assert not reachable(everything, "10.1.2.3")
    assert not reachable(everything, "169.254.169.254")
    named = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("0.0.0.0/0", "10.0.0.0/8")))
    assert reachable(named, "10.1.2.3")
    assert not reachable(named, "192.168.0.1")
    across = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("8.0.0.0/6",)))
    assert reachable(across, "11.0.0.1")
    assert not reachable(across, "10.0.0.1"), "a range that merely reaches into a private one names nothing in it"
    metadata = parse_policy(NetworkPolicy(allow_internet=False, allow_out=("169.254.169.254", "100.64.0.0/10")))
    assert not reachable(metadata, "169.254.169.254")
    assert not reachable(metadata, "100.100.100.200")


def test_names_are_matched_whole_and_without_regard_to_case() -> None:
    names = parse_policy(
        NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=("API.Example.com.", "*.pypi.org", "bücher.example"))
    ).domains
    for name in ("api.example.com", "a.pypi.org", "a.b.pypi.org", "xn--bcher-kva.example"):
        assert names.match(name)
    for name in ("example.com", "x.api.example.com", "pypi.org", "evilpypi.org", "pypi.org.evil.example", "", "org"):
        assert not names.match(name)
    assert parse_policy(NetworkPolicy(allow_internet=False, allow_out=("*",))).domains.match("any.thing")
    assert not Domains().match("any.thing")


def test_ipv6_is_accepted_and_without_effect() -> None:
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
    ],
)
def test_bad_entries_are_named(policy: NetworkPolicy, part: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_policy(policy)
    assert part in caught.value.message


def test_ranges() -> None:
    assert ranges.make_ranges(("10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16")) == ranges.make_ranges(("10.0.0.0/8",))
    assert ranges.subtract(ranges.EVERYTHING, ()) == ranges.EVERYTHING
    assert ranges.subtract(ranges.EVERYTHING, ranges.EVERYTHING) == ()
    assert ranges.subtract(((0, 10), (20, 30)), ((5, 5), (8, 22), (30, 40))) == ((0, 4), (6, 7), (23, 29))
    assert ranges.show((1, 1)) == "0.0.0.1"
    assert ranges.show((1, 2)) == "0.0.0.1-0.0.0.2"
