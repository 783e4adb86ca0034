from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import stat
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from sandyard.engine.certificates import files
from sandyard.engine.certificates.authority import LEAF_LIFETIME, MAX_CONTEXTS, ROOT_LIFETIME, Authority
from sandyard.engine.certificates.files import CertificateError
from sandyard.kit.clock import ManualClock
from tests.unit.engine.certificates.handshake import complete_handshake


def test_the_authority_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    first = Authority.load(tmp_path / "ca")
    assert first.certificate.read_bytes() == first.pem
    assert Authority.load(tmp_path / "ca").pem == first.pem
    assert {entry.name for entry in (tmp_path / "ca").iterdir()} == {"ca.pem", "key.pem"}
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "ca" / "key.pem").stat().st_mode) == 0o600


def test_concurrent_loads_get_the_same_authority(tmp_path: Path) -> None:
    loaded: list[bytes] = []
    threads = [threading.Thread(target=lambda: loaded.append(Authority.load(tmp_path).pem)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 8
    assert len(set(loaded)) == 1


@pytest.mark.parametrize(
    ("names", "host_name"),
    [
        (["api.example.com"], "api.example.com"),
        (["*.example.com", "example.com"], "49983-abc.example.com"),
        (["*.example.com", "example.com"], "example.com"),
        (["EXAMPLE.com."], "example.com"),
        (["127.0.0.1", "::1"], "127.0.0.1"),
        (["127.0.0.1", "::1"], "::1"),
    ],
)
def test_clients_that_trust_the_authority_accept_its_certificates(
    tmp_path: Path, names: list[str], host_name: str
) -> None:
    authority = Authority.load(tmp_path)
    peer_certificate = complete_handshake(authority.make_server_context(names), authority.pem, host_name)
    usage = peer_certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [use.dotted_string for use in usage] == ["1.3.6.1.5.5.7.3.1"]


def test_a_certificate_is_rejected_for_names_it_was_not_issued_for(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        complete_handshake(authority.make_server_context(["*.example.com"]), authority.pem, "a.b.example.com")


def test_a_certificate_of_another_authority_is_rejected(tmp_path: Path) -> None:
    ours, other = Authority.load(tmp_path / "a"), Authority.load(tmp_path / "b")
    with pytest.raises(ssl.SSLCertVerificationError):
        complete_handshake(other.make_server_context(["example.com"]), ours.pem, "example.com")


@pytest.mark.parametrize("name", ["bank.example", "example.com.evil.test", "10.0.0.1"])
def test_certificates_outside_the_name_constraints_are_rejected(tmp_path: Path, name: str) -> None:
    authority = Authority.load(tmp_path, within=("example.com", "localhost", "127.0.0.0/8", "::1/128"))
    for good in ("example.com", "x.example.com", "3000-abc.localhost", "127.0.0.1"):
        complete_handshake(authority.make_server_context([good]), authority.pem, good)
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        complete_handshake(authority.make_server_context([name]), authority.pem, name)


def test_an_authority_constrained_to_names_cannot_certify_addresses(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path, within=("example.com",))
    with pytest.raises(ssl.SSLCertVerificationError, match="excluded subtree violation"):
        complete_handshake(authority.make_server_context(["127.0.0.1"]), authority.pem, "127.0.0.1")


def test_an_authority_keeps_the_name_constraints_it_was_created_with(tmp_path: Path) -> None:
    Authority.load(tmp_path, within=("example.com",))
    assert Authority.load(tmp_path, within=("example.com",))
    with pytest.raises(CertificateError, match="created for other names"):
        Authority.load(tmp_path)
    with pytest.raises(CertificateError, match="created for other names"):
        Authority.load(tmp_path, within=("example.org",))


@pytest.mark.parametrize("name", ["", "*", "*.", "a..b", "a b", "*.*.example.com", "x.*.example.com", "é" * 80, "a/b"])
def test_invalid_names_get_no_certificate(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateError):
        Authority.load(tmp_path).make_server_context([name])


def test_international_names_are_encoded_as_punycode(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path)
    peer_certificate = complete_handshake(
        authority.make_server_context(["münchen.example"]), authority.pem, "xn--mnchen-3ya.example"
    )
    names = peer_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["xn--mnchen-3ya.example"]


def test_a_certificate_needs_at_least_one_name(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="needs at least one name"):
        Authority.load(tmp_path).make_server_context([])


async def test_contexts_are_cached_and_renewed_before_they_expire(tmp_path: Path) -> None:
    clock = ManualClock(time.time() - LEAF_LIFETIME.total_seconds() + 24 * 3600)
    authority = Authority.load(tmp_path, clock=clock)
    cached = authority.make_server_context(["example.com"])
    assert authority.make_server_context(["example.com"]) is cached
    before = complete_handshake(cached, authority.pem, "example.com")
    await clock.advance(LEAF_LIFETIME.total_seconds() - 24 * 3600)
    # A context that is still in use serves the new certificate too, also to clients that send no server name.
    after = complete_handshake(cached, authority.pem, "example.com")
    assert after.not_valid_after_utc - before.not_valid_after_utc == LEAF_LIFETIME - dt.timedelta(days=1)
    assert complete_handshake(cached, authority.pem, None).serial_number == after.serial_number
    assert authority.make_server_context(["example.com"]) is not cached


async def test_an_authority_close_to_expiry_is_renewed_with_the_same_key(tmp_path: Path) -> None:
    clock = ManualClock(time.time())
    old = Authority.load(tmp_path, clock=clock)
    await clock.advance((ROOT_LIFETIME - LEAF_LIFETIME).total_seconds() + 60)
    new = Authority.load(tmp_path, clock=clock)
    assert new.pem != old.pem
    assert Authority.load(tmp_path, clock=clock).pem == new.pem
    first, second = x509.load_pem_x509_certificate(old.pem), x509.load_pem_x509_certificate(new.pem)
    assert first.subject == second.subject
    assert first.public_key() == second.public_key()


def test_the_number_of_cached_contexts_is_bounded(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path)
    first = authority.make_server_context(["first.example"])
    names = [f"n{number}.example" for number in range(MAX_CONTEXTS)]
    contexts = [authority.make_server_context([name]) for name in names]
    assert [authority.make_server_context([name]) for name in names] == contexts
    assert authority.make_server_context(["first.example"]) is not first


def test_a_crash_after_writing_the_key_is_recovered(tmp_path: Path) -> None:
    old = Authority.load(tmp_path)
    old.certificate.unlink()
    (tmp_path / ".ca.pem.new").write_bytes(b"half a cert")
    new = Authority.load(tmp_path)
    complete_handshake(new.make_server_context(["example.com"]), new.pem, "example.com")
    # Clients that trusted the old certificate trust the new one.
    complete_handshake(new.make_server_context(["example.com"]), old.pem, "example.com")
    assert {entry.name for entry in tmp_path.iterdir()} == {"ca.pem", "key.pem"}


def test_a_certificate_that_does_not_match_the_key_is_replaced(tmp_path: Path) -> None:
    other = Authority.load(tmp_path / "other")
    ours = Authority.load(tmp_path / "ours")
    ours.certificate.write_bytes(other.pem)
    again = Authority.load(tmp_path / "ours")
    complete_handshake(again.make_server_context(["example.com"]), again.pem, "example.com")


@pytest.mark.parametrize("name", ["key.pem", "ca.pem"])
def test_unreadable_files_are_never_replaced(tmp_path: Path, name: str) -> None:
    Authority.load(tmp_path)
    (tmp_path / name).write_bytes(b"nonsense")
    (tmp_path / name).chmod(0o600)
    with pytest.raises(CertificateError, match=f"{name} does not contain a valid"):
        Authority.load(tmp_path)
    assert (tmp_path / name).read_bytes() == b"nonsense"


def test_a_key_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    Authority.load(tmp_path)
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(CertificateError, match="chmod 600"):
        Authority.load(tmp_path)


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CertificateError, match="Could not create"):
        Authority.load(tmp_path / "file" / "ca")


def test_a_key_of_another_type_is_rejected(tmp_path: Path) -> None:

    key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files.write(tmp_path / "key.pem", key, 0o600)
    with pytest.raises(CertificateError, match="of the expected type"):
        Authority.load(tmp_path)


def test_ip_addresses_are_certified_as_ip_addresses(tmp_path: Path) -> None:
    authority = Authority.load(tmp_path)
    peer_certificate = complete_handshake(authority.make_server_context(["127.0.0.1"]), authority.pem, "127.0.0.1")
    names = peer_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.0.0.1")]
