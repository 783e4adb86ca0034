"""How many connections there may be, and for whom."""

from __future__ import annotations

import resource

import pytest

from sandyard.kit.connections import LOOPBACK, Connections, address_group


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
def test_who_shares_a_limit(address: str, group: str) -> None:
    assert address_group(address) == group


def test_files_bound_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a setting allows: all of them together leave two thirds of the descriptors."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (120, 120))
    made = Connections(10_000)
    peers = [Peer(f"192.0.2.{number}") for number in range(50)]
    for peer in peers:
        assert made.enter(peer)
    assert len(made) == 40
    assert [peer.dropped for peer in peers] == [True] * 10 + [False] * 40


def test_loopback_leaves_room_for_others() -> None:
    made = Connections(100)
    for number in range(200):
        made.enter(Peer(f"127.0.1.{number}"))
    assert len(made) == 75


def test_a_setting_bounds_an_address() -> None:
    made = Connections(100, 60)
    for _ in range(200):
        made.enter(Peer("192.0.2.1"))
    assert len(made) == 60


def test_leaving_twice_counts_once() -> None:
    made = Connections(100)
    first, second = Peer(), Peer()
    made.enter(first)
    made.enter(second)
    made.leave(first)
    made.leave(first)
    made.idle(first)
    assert len(made) == 1
