"""The image HTTP client: which hosts it contacts, and which credentials it sends."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from sandyard.engine.images import http_client
from sandyard.engine.images.http_client import HttpClient
from sandyard.engine.images.registry_access import RegistryPolicy
from sandyard.kit.errors import BusyError, ForbiddenError, InvalidInputError, UnreachableError
from tests.images.server import ReceivedRequest, Reply, run_server

HERE = RegistryPolicy(registries=frozenset({"127.0.0.1", "localhost"}))
AUTH = {"Authorization": "Basic secret"}


def make_client(policy: RegistryPolicy = HERE) -> HttpClient:
    return HttpClient(policy, pause=0.01)


@pytest.mark.parametrize(
    ("address", "allowed", "on_lan"),
    [
        ("93.184.216.34", True, True),
        ("2606:4700::1", True, True),
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("169.254.169.254", False, False),
        ("fe80::1", False, False),
        ("0.0.0.0", False, False),
        ("224.0.0.1", False, False),
        ("10.1.2.3", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),
        ("fd00::1", False, True),
        ("::ffff:127.0.0.1", False, False),
        ("::ffff:10.0.0.1", False, True),
        ("64:ff9b::7f00:1", False, False),
        ("2002:7f00:1::", False, False),
    ],
)
def test_only_public_addresses_are_allowed_unless_configured(address: str, allowed: bool, on_lan: bool) -> None:
    parsed = ipaddress.ip_address(address)
    assert RegistryPolicy().allows("h", 443, parsed) is allowed
    assert RegistryPolicy(private=True).allows("h", 443, parsed) is on_lan
    assert RegistryPolicy(registries=frozenset({"h"})).allows("h", 443, parsed)
    assert RegistryPolicy(registries=frozenset({"h:443"})).allows("H", 443, parsed)
    assert RegistryPolicy(registries=frozenset({"h:444"})).allows("h", 443, parsed) is allowed


@pytest.mark.parametrize(
    ("address", "allowed", "on_lan"),
    [
        ("8.8.4.7", False, False),  # this machine's
        ("8.8.4.9", False, True),  # in a network that it is attached to
        ("10.0.0.5", False, False),
        ("::ffff:8.8.4.7", False, False),
        ("2a01::5", False, False),
        ("2a01::6", False, True),
        ("8.8.5.1", True, True),
    ],
)
def test_public_addresses_of_this_machine_are_not_public(
    address: str, allowed: bool, on_lan: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes, addresses = tmp_path / "fib_trie", tmp_path / "if_inet6"
    routes.write_text(
        "Local:\n     |-- 8.8.4.0\n        /24 link UNICAST\n     |-- 8.8.4.7\n        /32 host LOCAL\n"
        "     |-- 10.0.0.5\n        /32 host LOCAL\n"
    )
    addresses.write_text("2a010000000000000000000000000005 02 40 00 80     eth0\n")
    monkeypatch.setattr("sandyard.kit.destinations.ROUTES_FILE", routes)
    monkeypatch.setattr("sandyard.kit.destinations.IPV6_ADDRESSES_FILE", addresses)
    parsed = ipaddress.ip_address(address)
    assert RegistryPolicy().allows("h", 443, parsed) is allowed
    assert RegistryPolicy(private=True).allows("h", 443, parsed) is on_lan
    assert RegistryPolicy(registries=frozenset({"h"})).allows("h", 443, parsed)


async def test_the_local_machine_is_contacted_only_if_the_operator_allows_it() -> None:
    with run_server(lambda _: Reply()) as server:
        async with make_client(RegistryPolicy()) as client:
            for host in ("127.0.0.1", "localhost", "127.1", "2130706433"):
                with pytest.raises((ForbiddenError, InvalidInputError), match="SANDYARD_IMAGES_"):
                    await client.request(f"http://{host}:{server.port}/", {}, 100)
        assert not server.requests
        async with make_client(RegistryPolicy(registries=frozenset({server.host}))) as client:
            assert (await client.request(server.url, {}, 100)).status == 200


async def test_a_redirect_to_a_forbidden_address_is_rejected() -> None:
    with (
        run_server(lambda _: Reply()) as inner,
        run_server(lambda _: Reply(307, headers={"Location": inner.url})) as outer,
    ):
        async with make_client(RegistryPolicy(registries=frozenset({outer.host}))) as client:
            with pytest.raises(ForbiddenError, match="SANDYARD_IMAGES_REGISTRIES"):
                await client.request(outer.url, AUTH, 100)
        assert not inner.requests


async def test_credentials_are_sent_only_to_their_own_host() -> None:
    with run_server(lambda _: Reply(body=b"blob")) as storage:

        def redirect(request: ReceivedRequest) -> Reply:
            targets = {"/": f"{storage.url}/x?signature=1", "/own": "/here", "/round": f"{storage.url}/back"}
            return Reply(307, headers={"Location": targets[request.path]}) if request.path in targets else Reply()

        with run_server(redirect) as registry:
            async with make_client() as client:
                assert (await client.request(f"{registry.url}/", AUTH, 100)).body == b"blob"
                assert registry.requests[0].headers["authorization"] == "Basic secret"
                assert (
                    "authorization" not in storage.requests[0].headers and storage.requests[0].path == "/x?signature=1"
                )
                await client.request(f"{registry.url}/own", AUTH, 100)
                assert registry.requests[-1].headers["authorization"] == "Basic secret"


async def test_a_challenge_after_a_redirect_to_another_host_is_not_answered() -> None:
    """It could name any server as the one that issues tokens, and that server would get the login."""
    challenge = {"WWW-Authenticate": 'Bearer realm="http://127.0.0.1:9/"'}
    with run_server(lambda _: Reply(401, headers=challenge)) as storage:

        def refuse(request: ReceivedRequest) -> Reply:
            return (
                Reply(401, headers=challenge) if request.path == "/here" else Reply(307, headers={"Location": "/here"})
            )

        with (
            run_server(lambda _: Reply(307, headers={"Location": storage.url})) as registry,
            run_server(refuse) as same_host,
        ):
            async with make_client() as client:
                with pytest.raises(ForbiddenError, match="redirected"):
                    await client.request(registry.url, AUTH, 100)
                assert (await client.request(same_host.url, AUTH, 100)).status == 401


async def test_the_number_of_redirects_is_limited() -> None:
    with run_server(lambda _: Reply(302, headers={"Location": "/again"})) as server:
        async with make_client() as client:
            with pytest.raises(InvalidInputError, match="Too many redirects"):
                await client.request(server.url, {}, 100)
        assert len(server.requests) == 6


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://x/", "http://registry.example/", "http://u:p@127.0.0.1/", "//"]
)
async def test_redirects_to_unsupported_urls_are_rejected(target: str) -> None:
    with run_server(lambda _: Reply(302, headers={"Location": target})) as server:
        async with make_client() as client:
            with pytest.raises(InvalidInputError):
                await client.request(server.url, {}, 100)


async def test_transient_failures_are_retried() -> None:
    replies = [Reply(503), Reply(429, headers={"Retry-After": "0"}), Reply(body=b"ok")]
    with run_server(lambda _: replies.pop(0)) as server:
        async with make_client() as client:
            assert (await client.request(server.url, {}, 100)).body == b"ok"
    with run_server(lambda _: Reply(429)) as server:
        async with make_client() as client:
            with pytest.raises(BusyError, match="rate-limiting requests"):
                await client.request(server.url, {}, 100)
        assert len(server.requests) == http_client.ATTEMPTS
    async with make_client() as client:
        with pytest.raises(UnreachableError, match=r"Could not reach"):
            await client.request(server.url, {}, 100)


async def test_the_response_size_is_limited() -> None:
    with run_server(lambda _: Reply(body=bytes(2000))) as server:
        async with make_client() as client:
            with pytest.raises(InvalidInputError, match="exceeds"):
                await client.request(server.url, {}, 1000)
