"""The rules of an instance, as text. The integration tests load them into a kernel."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

from sandyard.engine.drivers.machine.net.names import Names
from sandyard.engine.drivers.machine.net.ruleset import Layout, make_transaction


def test_sets_can_be_read_by_earlier_versions_of_nftables() -> None:
    layout = Layout(Names.for_instance("x"), IPv4Network("10.9.0.0/16"), IPv4Address("10.9.0.1"), 53, 100)
    created = re.findall(r"^add (?:set|map) .*\{ (\w+) ", make_transaction(layout), re.MULTILINE)
    assert set(created) == {"typeof"} and len(created) > 10
