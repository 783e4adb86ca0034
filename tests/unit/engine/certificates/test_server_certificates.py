from __future__ import annotations

import datetime as dt
import os
import ssl
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.certificates import files, server_certificates
from sandyard.engine.certificates.authority import Authority
from sandyard.engine.certificates.files import CertificateError
from sandyard.engine.certificates.server_certificates import CertificateFiles, resolve_public_domain, strip_port
from sandyard.engine.settings import EngineSettings
from sandyard.kit.errors import InvalidInputError
from tests.unit.engine.certificates.handshake import complete_handshake


def dns_names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("domain", ["example.com", "sandyard.localhost", "localhost"])
def test_the_engines_own_certificate_covers_every_name_it_serves(tmp_path: Path, domain: str) -> None:
    public = server_certificates.load_public_certificate(
        EngineSettings(tls_port=443, domain=f"{domain}:3443"), tmp_path
    )
    assert public.authority == tmp_path / domain / "ca.pem"
    trusted = public.authority.read_bytes()
    for name in (domain, f"api.{domain}", f"49983-iabc.{domain}", f"8000-iabc.{domain.upper()}"):
        complete_handshake(public.context, trusted, name)
    for name in ("localhost", "8000-iabc.localhost", "a.b.localhost", "127.0.0.1", "::1"):
        complete_handshake(public.context, trusted, name)


def test_no_wildcard_is_issued_below_a_single_label_name(tmp_path: Path) -> None:
    """OpenSSL does not accept such a wildcard, and rustls then rejects the whole certificate."""
    issuer = server_certificates.load_authority(tmp_path, "localhost")
    context = server_certificates.OwnCertificates(issuer, "localhost").context
    assert dns_names(complete_handshake(context, issuer.pem, None)) == ["localhost"]
    assert dns_names(complete_handshake(context, issuer.pem, "3000-iabc.localhost")) == ["3000-iabc.localhost"]


def test_one_certificate_covers_all_names_below_a_domain(tmp_path: Path) -> None:
    issuer = server_certificates.load_authority(tmp_path, "example.com")
    context = server_certificates.OwnCertificates(issuer, "example.com").context
    serials = {
        complete_handshake(context, issuer.pem, f"3000-i{number}.example.com").serial_number for number in range(20)
    }
    assert len(serials) == 1


@pytest.mark.parametrize("name", ["bank.example", "example.com.evil.test", "notexample.com"])
def test_no_certificate_is_issued_for_other_names(tmp_path: Path, name: str) -> None:
    issuer = server_certificates.load_authority(tmp_path, "example.com")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        complete_handshake(server_certificates.OwnCertificates(issuer, "example.com").context, issuer.pem, name)


def test_an_invalid_name_fails_only_its_own_handshake(tmp_path: Path) -> None:
    issuer = server_certificates.load_authority(tmp_path, "example.com")
    context = server_certificates.OwnCertificates(issuer, "example.com").context
    with pytest.raises(ssl.SSLError, match="callback failed"):
        complete_handshake(context, issuer.pem, f"{'a' * 63}.b!c.example.com")
    complete_handshake(context, issuer.pem, "api.example.com")


def test_strangers_cannot_have_certificates_issued_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor keep sandboxes from getting theirs."""
    now = time.monotonic()
    monkeypatch.setattr(server_certificates, "time", SimpleNamespace(monotonic=lambda: now))
    issuer = server_certificates.load_authority(tmp_path, "localhost")
    own = server_certificates.OwnCertificates(issuer, "localhost")
    own.is_sandbox_name = lambda name: name.endswith("-ireal.localhost")

    def has_certificate(name: str) -> bool:
        try:
            complete_handshake(own.context, issuer.pem, name)
        except ssl.SSLCertVerificationError:
            return False
        return True

    issued = [has_certificate(f"8000-i{number}.localhost") for number in range(100)]
    assert issued == [True] * 30 + [False] * 70
    assert not has_certificate("a.b.localhost")
    assert has_certificate("localhost") and has_certificate("8000-i0.localhost")
    assert all(has_certificate(f"{port}-ireal.localhost") for port in range(8000, 8010))
    now += 10
    assert [has_certificate(f"8001-i{number}.localhost") for number in range(10)] == [True] * 5 + [False] * 5


def test_each_domain_has_its_own_authority(tmp_path: Path) -> None:
    first, second = (
        server_certificates.load_authority(tmp_path, "a.example"),
        server_certificates.load_authority(tmp_path, "b.example"),
    )
    assert first.pem != second.pem
    assert server_certificates.load_authority(tmp_path, "a.example").pem == first.pem


# certificate files of the operator -------------------------------------------------------------------------------------


def renew(folder: Path, issuer: Authority, name: str, only: str = "") -> None:
    """Write a new key and a new certificate, as a renewal program does."""
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = issuer.issue_certificate((name,), key.public_key(), dt.datetime.now(dt.UTC).replace(microsecond=0))
    if only != "key":
        files.write(folder / "cert.pem", leaf.public_bytes(serialization.Encoding.PEM), 0o644)
    if only != "cert":
        files.write(folder / "privkey.pem", files.encode_key(key), 0o600)


@pytest.fixture
def issuer(tmp_path: Path) -> Authority:
    return Authority.load(tmp_path / "issuer")


@pytest.fixture
def certificate_files(tmp_path: Path, issuer: Authority, monkeypatch: pytest.MonkeyPatch) -> CertificateFiles:
    monkeypatch.setattr(server_certificates, "CHECK_INTERVAL_S", -1.0)
    renew(tmp_path, issuer, "one.example")
    return CertificateFiles(tmp_path / "cert.pem", tmp_path / "privkey.pem")


def test_files_are_reloaded_when_they_change(
    tmp_path: Path, issuer: Authority, certificate_files: CertificateFiles
) -> None:
    before = complete_handshake(certificate_files.context, issuer.pem, "one.example")
    assert complete_handshake(certificate_files.context, issuer.pem, "one.example") == before
    renew(tmp_path, issuer, "one.example")
    assert complete_handshake(certificate_files.context, issuer.pem, "one.example") != before


def test_an_incomplete_renewal_is_ignored(
    tmp_path: Path, issuer: Authority, certificate_files: CertificateFiles
) -> None:
    before = complete_handshake(certificate_files.context, issuer.pem, "one.example")
    renew(tmp_path, issuer, "one.example", only="cert")
    assert complete_handshake(certificate_files.context, issuer.pem, "one.example") == before
    (tmp_path / "privkey.pem").unlink()
    assert complete_handshake(certificate_files.context, issuer.pem, "one.example") == before
    renew(tmp_path, issuer, "one.example")
    assert complete_handshake(certificate_files.context, issuer.pem, "one.example") != before


def test_files_are_reloaded_when_a_symbolic_link_is_retargeted(
    tmp_path: Path, issuer: Authority, certificate_files: CertificateFiles
) -> None:
    """certbot renews this way."""
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        renew(tmp_path / number, issuer, "one.example")
    live = tmp_path / "live"
    live.symlink_to("1")
    linked = CertificateFiles(live / "cert.pem", live / "privkey.pem")
    before = complete_handshake(linked.context, issuer.pem, "one.example")
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(live)
    assert complete_handshake(linked.context, issuer.pem, "one.example") != before


def test_files_are_checked_at_most_once_a_second(
    tmp_path: Path, issuer: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew(tmp_path, issuer, "one.example")
    certificate_files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "privkey.pem")
    checks = []
    monkeypatch.setattr(certificate_files, "check_files", lambda: checks.append(1))
    now = time.monotonic()
    monkeypatch.setattr(server_certificates, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in range(3):
        now += 1.1
        checks.clear()
        for _ in range(3):
            complete_handshake(certificate_files.context, issuer.pem, "one.example")
        assert len(checks) == 1


def test_one_file_may_hold_certificate_and_key(tmp_path: Path, issuer: Authority) -> None:
    renew(tmp_path, issuer, "one.example")
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "cert.pem").read_bytes() + (tmp_path / "privkey.pem").read_bytes())
    complete_handshake(CertificateFiles(both, None).context, issuer.pem, "one.example")


def test_unusable_files_are_named_in_the_error(tmp_path: Path, issuer: Authority) -> None:
    renew(tmp_path, issuer, "one.example")
    good, key, other = tmp_path / "cert.pem", tmp_path / "privkey.pem", tmp_path / "other.pem"
    other.write_bytes(files.encode_key(ec.generate_private_key(ec.SECP256R1())))
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    for certificate, key_path, reason in (
        (good, other, "another certificate"),
        (good, None, "not a PEM file"),
        (key, key, "not a PEM file"),
        (good, locked, "is encrypted"),
        (tmp_path / "none.pem", key, "No such file"),
        (Path(os.devnull), key, "not a PEM file"),
    ):
        with pytest.raises(CertificateError, match=reason) as raised:
            CertificateFiles(certificate, key_path)
        assert str(certificate) in raised.value.message


# names -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "tls_port", "expected"),
    [
        ({}, None, "localhost:3000"),
        ({}, 3443, "localhost:3443"),
        ({}, 443, "localhost"),
        ({"host": "0.0.0.0"}, None, "localhost:3000"),
        ({"host": "192.0.2.1"}, None, None),
        ({"host": "127.0.0.1", "tls_port": 443, "tls_host": "192.0.2.1"}, 443, None),
        ({"domain": "example.com"}, None, "example.com"),
        ({"domain": "example.com"}, 443, "example.com"),
        ({"domain": "example.com"}, 3443, "example.com:3443"),
        ({"domain": "example.com:443"}, 3443, "example.com"),
        ({"domain": "example.com:8443"}, 3443, "example.com:8443"),
        ({"domain": "Example.COM."}, 443, "example.com"),
    ],
)
def test_the_public_domain_is_derived_from_settings_and_ports(
    settings: dict[str, str | int], tls_port: int | None, expected: str | None
) -> None:
    assert resolve_public_domain(EngineSettings(**settings), 3000, tls_port) == expected  # type: ignore[arg-type]


def test_the_port_is_stripped_from_a_certificates_domain() -> None:
    assert strip_port("example.com:3443") == "example.com"
    assert strip_port(None) == "localhost"


@pytest.mark.parametrize(
    ("settings", "expected_text"),
    [
        ({"domain": "https://example.com"}, "domain"),
        ({"domain": "*.example.com"}, "without a wildcard"),
        ({"domain": "192.0.2.1"}, "not an IP address"),
        ({"domain": "../../etc"}, "domain"),
        ({"domain": "example.com:0"}, "port"),
        ({"domain": "example.com:x"}, "port"),
        ({"tls_cert": "/a.pem"}, "requires tls_port"),
        ({"tls_host": "0.0.0.0"}, "requires tls_port"),
        ({"tls_port": 443, "tls_key": "/a.pem"}, "requires tls_cert"),
    ],
)
def test_inconsistent_settings_are_rejected(settings: dict[str, str | int], expected_text: str) -> None:
    with pytest.raises(InvalidInputError, match=expected_text):
        EngineSettings.load({}, **settings)
