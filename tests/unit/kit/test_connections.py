"""Limits on the number of connections, in total and per address."""

from __future__ import annotations

import resource

import pytest

from sandyard.kit.connections import LOOPBACK, Connections, get_address_group


class Peer:
    def __init__(self, address: str = "127.0.0.1") -> None:
        self.client: tuple[str, int] | None = (address, 1)
        self.authenticated = self.dropped = False

    def can_be_dropped(self) -> bool:
        return True

    def drop(self) -> None:
        self.dropped = True


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("127.0.0.1", LOOPBACK),
        ("127.0.1.77", LOOPBACK),
        ("::1", LOOPBACK),
        ("::ffff:127.0.0.1", LOOPBACK),
        ("", LOOPBACK),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_addresses_are_grouped_for_limits(address: str, group: str) -> None:
    assert get_address_group(address) == group


def test_the_file_limit_bounds_the_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the setting allows, all connections together leave two thirds of the file descriptors free."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (120, 120))
    connections = Connections(10_000)
    peers = [Peer(f"192.0.2.{number}") for number in range(50)]
    for peer in peers:
        assert connections.add(peer)
    assert len(connections) == 40
    assert [peer.dropped for peer in peers] == [True] * 10 + [False] * 40


def test_loopback_connections_leave_room_for_others() -> None:
    connections = Connections(100)
    for number in range(200):
        connections.add(Peer(f"127.0.1.{number}"))
    assert len(connections) == 75


def test_a_setting_limits_the_connections_of_an_address() -> None:
    connections = Connections(100, 60)
    for _ in range(200):
        connections.add(Peer("192.0.2.1"))
    assert len(connections) == 60


def test_leaving_twice_counts_once() -> None:
    connections = Connections(100)
    first, second = Peer(), Peer()
    connections.add(first)
    connections.add(second)
    connections.remove(first)
    connections.remove(first)
    connections.mark_idle(first)
    assert len(connections) == 1
