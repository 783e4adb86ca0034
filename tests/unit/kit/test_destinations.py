from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from sandyard.kit import dns_lookup
from sandyard.kit.destinations import Destinations, PrivateAddressError, is_proxied
from sandyard.kit.errors import InvalidInputError
from sandyard.platform.settings import PlatformSettings

PRIVATE = (
    "127.0.0.1", "10.2.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1", "[::1]",
    "fe80::1", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "192.0.0.8",
    "fec0::1", "::7f00:1", "::ffff:0:7f00:1", "localhost", "api.localhost",
)  # fmt: skip


@pytest.mark.parametrize("host", PRIVATE)
async def test_private_addresses_are_refused(host: str) -> None:
    destinations = Destinations()
    with pytest.raises(PrivateAddressError, match="SANDYARD_PRIVATE_HOSTS"):
        destinations.check_name(host)
    if "localhost" not in host:
        with pytest.raises(PrivateAddressError):
            await destinations.resolve(host)


def test_entries_in_private_networks_are_refused() -> None:
    destinations = Destinations(["10.1.0.0/16"])
    for private in (
        "10.0.0.0/8",
        "10.2.0.0/16",
        "10.1.0.0/15",
        "192.168.1.0/24",
        "128.0.0.0/1",
        "fd00::/8",
        "10.2.3.4",
        "localhost",
    ):
        with pytest.raises(PrivateAddressError):
            destinations.check_entry(private)
    for fine in ("10.1.2.0/24", "10.1.2.3", "8.8.8.0/24", "8.8.8.8", "*.example.org", "example.org"):
        destinations.check_entry(fine)


async def test_networks_of_this_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes, addresses = tmp_path / "fib_trie", tmp_path / "if_inet6"
    routes.write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 8.8.4.0\n        /24 link UNICAST\n"
        "     |-- 9.9.9.0\n        /24 universe UNICAST\nLocal:\n     |-- 8.8.4.7\n        /32 host LOCAL\n     |-- 1.1.1.1\n"
        "        /32 host LOCAL\n"
    )
    addresses.write_text("2a010000000000000000000000000005 02 40 00 80     eth0\n")
    monkeypatch.setattr("sandyard.kit.destinations.ROUTES_FILE", routes)
    monkeypatch.setattr("sandyard.kit.destinations.IPV6_ADDRESSES_FILE", addresses)
    destinations = Destinations(["8.8.4.64/28"])
    for attached in ("8.8.4.0/24", "8.8.0.0/16", "8.8.4.9", "1.1.1.1", "1.1.0.0/16", "2a01::9", "2a01::/32"):
        with pytest.raises(PrivateAddressError, match="network of this machine"):
            destinations.check_entry(attached)
    with pytest.raises(PrivateAddressError):
        await destinations.resolve("8.8.4.9")
    for fine in ("9.9.9.9", "1.1.1.2", "8.8.5.0/24", "8.8.4.65", "2a02::1"):
        destinations.check_entry(fine)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1"])
async def test_other_notations_of_private_addresses_are_refused(host: str) -> None:
    with pytest.raises(PrivateAddressError):
        await Destinations().resolve(host)


async def test_a_name_is_refused_if_any_of_its_addresses_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve_name(host: str) -> list[dns_lookup.Address]:
        return [ipaddress.ip_address(address) for address in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(dns_lookup, "query_name_servers", resolve_name)
    with pytest.raises(PrivateAddressError, match=r"git\.example\.org"):
        await Destinations().resolve("git.example.org")
    assert await Destinations(["10.0.0.0/24"]).resolve("git.example.org") == ["8.8.8.8", "10.0.0.1"]
    for listed in ("git.example.org", "*.example.org", "*.org"):
        assert await Destinations([listed]).resolve("Git.example.org") == ["8.8.8.8", "10.0.0.1"]
    for other in ("example.org", "*.git.example.org", "it.example.org"):
        with pytest.raises(PrivateAddressError):
            await Destinations([other]).resolve("git.example.org")


def test_private_hosts_are_read_from_the_settings() -> None:
    settings = PlatformSettings.load({"SANDYARD_PRIVATE_HOSTS": "git.corp.example, 10.1.0.0/16,[::1],*.lan"})
    assert settings.private_hosts == ("git.corp.example", "10.1.0.0/16", "[::1]", "*.lan")
    Destinations(settings.private_hosts).check_name("::1")
    for wrong in ("https://git.example", "10.0.0.0/99", "a*b.example", "git.example:443"):
        with pytest.raises(InvalidInputError, match="private_hosts"):
            PlatformSettings.load({"SANDYARD_PRIVATE_HOSTS": wrong})


def test_the_proxy_variables_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert not is_proxied("https", "git.example.org")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert is_proxied("https", "git.example.org")
    assert not is_proxied("http", "git.example.org")
    assert not is_proxied("https", "git.inside.example")
