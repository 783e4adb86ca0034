"""Credentials, commands and messages of a Ray cluster, without Ray."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from sandyard.engine.hosts.ray_cluster import credentials
from sandyard.engine.hosts.ray_cluster.keeper import Keeper, find_service
from sandyard.engine.hosts.ray_cluster.messages import NOT_JOINED, StartRequest, describe_error, parse, parse_machines
from sandyard.engine.hosts.ray_cluster.nodes import FIRST_PORT, LAST_PORT, make_start_command
from sandyard.engine.hosts.ray_cluster.source import check_address
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.errors import InvalidInputError, UnreachableError
from tests.unit.engine.hosts.support import handshake


def make_context(folder: Path, *, server: bool) -> ssl.SSLContext:
    """Return a context such as Ray's: both ends show a certificate, and want one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(folder / credentials.CERTIFICATE, folder / credentials.KEY)
    context.load_verify_locations(folder / credentials.AUTHORITY)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_machines_of_a_cluster_accept_each_other_and_no_others(tmp_path: Path) -> None:
    one, two = credentials.create(tmp_path / "c", ["10.0.0.1", "10.0.0.2"])
    (stranger,) = credentials.create(tmp_path / "other", ["10.0.0.1"])
    found = handshake(make_context(one, server=True), make_context(two, server=False), "10.0.0.1")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ipaddress.ip_address("10.0.0.1") in names.get_values_for_type(x509.IPAddress)
    with pytest.raises(ssl.SSLError):
        handshake(make_context(one, server=True), make_context(stranger, server=False), "10.0.0.1")
    assert (one / "token").read_bytes() == (two / "token").read_bytes() != (stranger / "token").read_bytes()


def test_machines_can_be_added_later(tmp_path: Path) -> None:
    (one,) = credentials.create(tmp_path, ["10.0.0.1"])
    before = {path.name: path.read_bytes() for path in one.iterdir()}
    same, two = credentials.create(tmp_path, ["10.0.0.1", "10.0.0.2"])
    assert {path.name: path.read_bytes() for path in same.iterdir()} == before
    handshake(make_context(one, server=True), make_context(two, server=False), "10.0.0.1")
    assert one.stat().st_mode & 0o077 == 0
    for name in (credentials.TOKEN, credentials.KEY):
        assert (two / name).stat().st_mode & 0o077 == 0


def test_missing_credentials_are_named(tmp_path: Path) -> None:
    (one,) = credentials.create(tmp_path, ["10.0.0.1"])
    assert credentials.make_environment(one)["RAY_AUTH_MODE"] == "token"
    (one / "token").unlink()
    with pytest.raises(InvalidInputError, match="has no file token"):
        credentials.make_environment(one)


def test_all_ports_of_a_node_are_fixed() -> None:
    for head in (None, "10.0.0.1:6379"):
        command = make_start_command("10.0.0.2", head=head, runs_sandboxes=True)
        ports = [int(word.partition("=")[2]) for word in command if "port=" in word]
        assert len(ports) >= 8
        assert all(FIRST_PORT <= port <= LAST_PORT for port in ports)
        assert ("--head" in command) == (head is None)
        assert '--resources={"sandyard": 1}' in command
    assert not any("resources" in word for word in make_start_command("10.0.0.2", head=None, runs_sandboxes=False))


@pytest.mark.parametrize("address", ["10.1.2.3", "192.168.0.9", "100.64.0.1", "127.0.0.1", "fd00::1"])
def test_addresses_that_sandboxes_cannot_reach(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "198.19.0.1", "2001:4860:4860::8888", "worker-1", ""])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InvalidInputError):
        check_address(address)


def test_start_requests_survive_encoding_and_hide_their_token() -> None:
    request = StartRequest("ab", "worker", "10.0.0.2", 3011, "syj_secret")
    assert StartRequest.parse(request.encode()) == request
    assert "syj_secret" not in repr(request)


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b'{"a": 1'])
def test_damaged_messages(line: bytes) -> None:
    with pytest.raises(UnreachableError):
        parse(line)


@pytest.mark.parametrize("listed", [None, [1], [{"id": "a"}]])
def test_damaged_lists(listed: object) -> None:
    with pytest.raises(UnreachableError):
        parse_machines(listed)


def test_addresses_are_written_as_those_of_hosts() -> None:
    """A machine is recognized by its address. Otherwise it would join again every minute."""
    listed = [{"id": name, "name": name, "address": name} for name in ("FD00:0:0::1", "10.0.0.1", "node")]
    assert [machine.address for machine in parse_machines(listed)] == ["fd00::1", "10.0.0.1", "node"]


def test_errors_of_ray_are_shortened() -> None:
    text = describe_error(RuntimeError("The actor died.\n" + "at line 7\n" * 1000 + "No module named 'sandyard'"))[
        "error"
    ]
    assert text == "RuntimeError: The actor died. No module named 'sandyard'"


def test_keeper_finds_the_holder_of_the_lock(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "host")
    assert find_service(tmp_path / "host") is None
    data.lock()
    try:
        assert find_service(tmp_path / "host")
    finally:
        data.unlock()
    assert find_service(tmp_path / "host") is None


def test_keeper_without_an_identity_asks_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDYARD_DATA_DIR", str(tmp_path / "host"))
    assert NOT_JOINED in Keeper("127.0.0.1").start(StartRequest("ab", "worker", "127.0.0.1", 3011).encode())
    assert "not a join token" in Keeper("127.0.0.1").start(
        StartRequest("ab", "worker", "127.0.0.1", 3011, "no token").encode()
    )


@pytest.mark.parametrize(
    ("missing", "message"),
    [("join_address", "requires join_address"), ("hosts_ray_credentials", "requires join_address and hosts_ray")],
)
def test_settings_belong_together(missing: str, message: str) -> None:
    given = {"hosts_ray_address": "10.0.0.1:6379", "join_address": "10.0.0.1", "hosts_ray_credentials": Path("/c")}
    assert EngineSettings.load({}, **given).hosts_ray_address
    with pytest.raises(InvalidInputError, match=message):
        EngineSettings.load({}, **{**given, missing: None})
    with pytest.raises(InvalidInputError, match="sandboxes could reach Ray's ports"):
        EngineSettings.load({}, **given, lan="allow")
    with pytest.raises(InvalidInputError, match="hosts_ray_address"):
        EngineSettings.load({}, **{**given, "hosts_ray_address": "10.0.0.1"})
