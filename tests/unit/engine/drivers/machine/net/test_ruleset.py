"""The rules of an instance, as text. The integration tests load them into a kernel."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

import pytest

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.machine.net import firewall
from sandyard.engine.drivers.machine.net.firewall import Firewall
from sandyard.engine.drivers.machine.net.names import Names
from sandyard.engine.drivers.machine.net.policy import parse_policy
from sandyard.engine.drivers.machine.net.ruleset import Layout, make_transaction

LAYOUT = Layout(Names.for_instance("x"), IPv4Network("10.9.0.0/16"), IPv4Address("10.9.0.1"), 53, 100)
SANDBOX = IPv4Address("10.9.0.2")


class Nft:
    """Takes all commands."""

    def run(self, commands: str) -> str:
        return ""


def test_sets_can_be_read_by_earlier_versions_of_nftables() -> None:
    created = re.findall(r"^add (?:set|map) .*\{ (\w+) ", make_transaction(LAYOUT), re.MULTILINE)
    assert set(created) == {"typeof"} and len(created) > 10


def test_names_of_an_address_are_limited_and_addresses_without_room_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(firewall, "_MAX_RESOLVED", 2)
    rules = Firewall(Nft(), LAYOUT)  # type: ignore[arg-type]
    rules.apply(SANDBOX, parse_policy(NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=("*.web.test",))))
    addresses = [IPv4Address(f"198.51.100.{number}") for number in range(5)]
    for number in range(100):
        rules.admit(SANDBOX, f"{number}.web.test", dict.fromkeys(addresses[:2], 60))
    assert {len(item.names) for item in rules._resolved[SANDBOX].values()} == {8}
    assert not caplog.records, "addresses that are open already need no room"
    for address in addresses[2:]:
        rules.admit(SANDBOX, "0.web.test", {address: 60})
    assert [record.getMessage() for record in caplog.records] == [f"network_names_full address={SANDBOX}"]
