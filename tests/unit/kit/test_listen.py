from __future__ import annotations

import os
import resource
import socket

import pytest

from sandyard.kit import listen as listening
from sandyard.kit.errors import ConflictError, InvalidInputError
from sandyard.kit.listen import free_port, is_loopback, list_listener_owners, listen, raise_file_limit


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "0.0.0.0"])
def test_a_port_is_bound_only_once(host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConflictError):
            listen(host, port)
        target = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
        socket.create_connection((target, port), timeout=5).close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a" * 70])
def test_unusable_addresses_are_rejected(host: str) -> None:
    with pytest.raises(InvalidInputError, match="--host"):
        listen(host, 0)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_addresses_are_recognized(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_the_file_limit_is_raised_to_the_hard_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        now = raise_file_limit(before[1])
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == now == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_a_free_port_is_below_the_ephemeral_range() -> None:
    first = int(listening.EPHEMERAL_RANGE_FILE.read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10
    assert all(first - listening.PORT_RANGE <= port < first for port in ports)


def test_an_ephemeral_port_is_used_if_no_other_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PORT_TRIES", 0)
    with socket.create_server(("127.0.0.1", free_port("localhost"))) as server:
        assert server.getsockname()[1] >= int(listening.EPHEMERAL_RANGE_FILE.read_text().split()[0])


def test_a_free_port_on_a_foreign_address_is_an_error() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        free_port("203.0.113.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_owners_of_listening_sockets_are_found(host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        assert list_listener_owners(port) == {os.geteuid()}
    assert list_listener_owners(port) == set()
