"""The addresses of clients behind reverse proxies."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from sandyard.platform.settings import PlatformSettings
from tests.unit.platform.world import client, open_world

ATTACKER, VISITOR = "203.0.113.7", "198.51.100.1"


async def _try_to_sign_in(
    folder: Path, forwarded: list[str], *, peer: str = "127.0.0.1", proxies: str = "127.0.0.1"
) -> list[int]:
    """Return the status codes of attempts to sign in with these values of X-Forwarded-For, of which two per minute are allowed."""
    async with (
        open_world(folder, logins_per_minute=2, trusted_proxies=proxies) as world,
        client(world.app(), peer=peer) as web,
    ):
        attempts = [
            await web.post("/api/v1/login", json={"token": "sy_x"}, headers={"X-Forwarded-For": value})
            for value in forwarded
        ]
    return [attempt.status_code for attempt in attempts]


async def test_clients_of_a_trusted_proxy_have_their_own_limits(tmp_path: Path) -> None:
    forwarded = [ATTACKER] * 3 + [VISITOR]
    assert await _try_to_sign_in(tmp_path, forwarded) == [401, 401, 429, 401]


async def test_a_client_cannot_choose_its_address(tmp_path: Path) -> None:
    forwarded = [f"192.0.2.{number}, {ATTACKER}" for number in range(3)]
    assert await _try_to_sign_in(tmp_path, forwarded) == [401, 401, 429]


async def test_addresses_of_trusted_proxies_are_skipped(tmp_path: Path) -> None:
    forwarded = [f"{ATTACKER}, 10.0.0.{number}" for number in range(3)] + [f"{VISITOR}, 10.0.0.1"]
    assert await _try_to_sign_in(tmp_path, forwarded, proxies="127.0.0.1, 10.0.0.0/8") == [401, 401, 429, 401]


@pytest.mark.parametrize(("peer", "proxies"), [("127.0.0.1", ""), ("192.0.2.1", "127.0.0.1")])
async def test_others_are_not_believed(tmp_path: Path, peer: str, proxies: str) -> None:
    assert await _try_to_sign_in(tmp_path, [ATTACKER, VISITOR, "192.0.2.9"], peer=peer, proxies=proxies) == [
        401,
        401,
        429,
    ]


async def test_invalid_addresses_are_ignored(tmp_path: Path) -> None:
    assert await _try_to_sign_in(tmp_path, ["x", f"{VISITOR}:80", f"{VISITOR},"]) == [401, 401, 429]


async def test_addresses_of_one_ipv6_network_share_a_limit(tmp_path: Path) -> None:
    forwarded = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"]
    assert await _try_to_sign_in(tmp_path, forwarded) == [401, 401, 429, 401]


async def test_the_audit_log_has_the_client(tmp_path: Path) -> None:
    async with open_world(tmp_path, trusted_proxies="127.0.0.1") as world:
        admin = await world.create_person("root", "admin")
        async with client(world.app(), admin) as web:
            forwarded = {"X-Forwarded-For": VISITOR}
            assert (await web.post("/api/v1/tokens", json={"name": "t"}, headers=forwarded)).status_code == 201
            [row, *_] = (await web.get("/api/v1/audit", params={"action": "token.create"})).json()["items"]
            assert row["address"] == VISITOR
            assert (await web.get("/metrics")).status_code == 200
            del web.headers["Authorization"]
            assert (await web.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"})).status_code == 401


def test_proxies_are_addresses_or_networks() -> None:
    assert PlatformSettings(trusted_proxies="127.0.0.1, fd00::/8").trusted_proxies == ("127.0.0.1", "fd00::/8")  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        PlatformSettings(trusted_proxies="nginx.example.com")  # type: ignore[arg-type]
