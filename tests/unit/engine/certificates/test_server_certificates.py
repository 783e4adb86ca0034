from __future__ import annotations

import datetime as dt
import os
import ssl
from pathlib import Path

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
from tests.unit.engine.certificates.handshake import shake


def names_of(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("domain", ["example.com", "sandyard.localhost", "localhost"])
def test_the_engines_own_for_every_name_that_leads_to_it(tmp_path: Path, domain: str) -> None:
    made = server_certificates.load_public_certificate(EngineSettings(tls_port=443, domain=f"{domain}:3443"), tmp_path)
    assert made.authority == tmp_path / domain / "ca.pem"
    trusted = made.authority.read_bytes()
    for name in (domain, f"api.{domain}", f"49983-iabc.{domain}", f"8000-iabc.{domain.upper()}"):
        shake(made.context, trusted, name)
    for name in ("localhost", "8000-iabc.localhost", "a.b.localhost", "127.0.0.1", "::1"):
        shake(made.context, trusted, name)


def test_no_star_below_a_name_without_a_dot(tmp_path: Path) -> None:
    """OpenSSL takes none there, and rustls then refuses the whole certificate."""
    issuer = server_certificates.load_authority(tmp_path, "localhost")
    context = server_certificates.make_own_context(issuer, "localhost")
    assert names_of(shake(context, issuer.pem, None)) == ["localhost"]
    assert names_of(shake(context, issuer.pem, "3000-iabc.localhost")) == ["3000-iabc.localhost"]


def test_one_certificate_serves_all_names_below_a_domain(tmp_path: Path) -> None:
    issuer = server_certificates.load_authority(tmp_path, "example.com")
    context = server_certificates.make_own_context(issuer, "example.com")
    shown = {shake(context, issuer.pem, f"3000-i{number}.example.com").serial_number for number in range(20)}
    assert len(shown) == 1


@pytest.mark.parametrize("name", ["bank.example", "example.com.evil.test", "notexample.com"])
def test_nothing_is_issued_for_other_names(tmp_path: Path, name: str) -> None:
    issuer = server_certificates.load_authority(tmp_path, "example.com")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(server_certificates.make_own_context(issuer, "example.com"), issuer.pem, name)


def test_what_is_no_name_ends_the_handshake_alone(tmp_path: Path) -> None:
    issuer = server_certificates.load_authority(tmp_path, "example.com")
    context = server_certificates.make_own_context(issuer, "example.com")
    with pytest.raises(ssl.SSLError, match="callback failed"):
        shake(context, issuer.pem, f"{'a' * 63}.b!c.example.com")
    shake(context, issuer.pem, "api.example.com")


def test_each_domain_has_an_authority_of_its_own(tmp_path: Path) -> None:
    first, second = (
        server_certificates.load_authority(tmp_path, "a.example"),
        server_certificates.load_authority(tmp_path, "b.example"),
    )
    assert first.pem != second.pem
    assert server_certificates.load_authority(tmp_path, "a.example").pem == first.pem


# files of somebody else ------------------------------------------------------------------------------------------------


def renew(folder: Path, issuer: Authority, name: str, only: str = "") -> None:
    """What a program does that renews certificates: a new key, a new certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer._leaf_key = key
    leaf = issuer._leaf((name,), dt.datetime.now(dt.UTC).replace(microsecond=0))
    if only != "key":
        files.write(folder / "cert.pem", leaf.public_bytes(serialization.Encoding.PEM), 0o644)
    if only != "cert":
        files.write(folder / "privkey.pem", files.key_pem(key), 0o600)


@pytest.fixture
def issuer(tmp_path: Path) -> Authority:
    return Authority.load(tmp_path / "issuer")


@pytest.fixture
def shown(tmp_path: Path, issuer: Authority, monkeypatch: pytest.MonkeyPatch) -> CertificateFiles:
    monkeypatch.setattr(server_certificates, "LOOK_S", -1.0)
    renew(tmp_path, issuer, "one.example")
    return CertificateFiles(tmp_path / "cert.pem", tmp_path / "privkey.pem")


def test_files_are_read_again_when_they_change(tmp_path: Path, issuer: Authority, shown: CertificateFiles) -> None:
    before = shake(shown.context, issuer.pem, "one.example")
    assert shake(shown.context, issuer.pem, "one.example") == before
    renew(tmp_path, issuer, "one.example")
    assert shake(shown.context, issuer.pem, "one.example") != before


def test_half_a_renewal_changes_nothing(tmp_path: Path, issuer: Authority, shown: CertificateFiles) -> None:
    before = shake(shown.context, issuer.pem, "one.example")
    renew(tmp_path, issuer, "one.example", only="cert")
    assert shake(shown.context, issuer.pem, "one.example") == before
    (tmp_path / "privkey.pem").unlink()
    assert shake(shown.context, issuer.pem, "one.example") == before
    renew(tmp_path, issuer, "one.example")
    assert shake(shown.context, issuer.pem, "one.example") != before


def test_links_that_point_elsewhere_count_as_changed(
    tmp_path: Path, issuer: Authority, shown: CertificateFiles
) -> None:
    """That is how certbot renews."""
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        renew(tmp_path / number, issuer, "one.example")
    live = tmp_path / "live"
    live.symlink_to("1")
    linked = CertificateFiles(live / "cert.pem", live / "privkey.pem")
    before = shake(linked.context, issuer.pem, "one.example")
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(live)
    assert shake(linked.context, issuer.pem, "one.example") != before


def test_files_are_looked_at_once_a_second(tmp_path: Path, issuer: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    renew(tmp_path, issuer, "one.example")
    shown = CertificateFiles(tmp_path / "cert.pem", tmp_path / "privkey.pem")
    looks = []
    monkeypatch.setattr(shown, "_look", lambda: looks.append(1))
    for _ in range(10):
        shake(shown.context, issuer.pem, "one.example")
    assert len(looks) <= 1


def test_one_file_may_hold_both(tmp_path: Path, issuer: Authority) -> None:
    renew(tmp_path, issuer, "one.example")
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "cert.pem").read_bytes() + (tmp_path / "privkey.pem").read_bytes())
    shake(CertificateFiles(both, None).context, issuer.pem, "one.example")


def test_files_that_cannot_be_used_are_named(tmp_path: Path, issuer: Authority) -> None:
    renew(tmp_path, issuer, "one.example")
    good, key, other = tmp_path / "cert.pem", tmp_path / "privkey.pem", tmp_path / "other.pem"
    other.write_bytes(files.key_pem(ec.generate_private_key(ec.SECP256R1())))
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    for certificate, of_key, reason in (
        (good, other, "another certificate"),
        (good, None, "not a PEM file"),
        (key, key, "not a PEM file"),
        (good, locked, "is encrypted"),
        (tmp_path / "none.pem", key, "No such file"),
        (Path(os.devnull), key, "not a PEM file"),
    ):
        with pytest.raises(CertificateError, match=reason) as raised:
            CertificateFiles(certificate, of_key)
        assert str(certificate) in raised.value.message


# names -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "tls_port", "told"),
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
def test_the_domain_clients_are_told(settings: dict[str, str | int], tls_port: int | None, told: str | None) -> None:
    assert resolve_public_domain(EngineSettings(**settings), 3000, tls_port) == told  # type: ignore[arg-type]


def test_a_domain_in_a_certificate_has_no_port() -> None:
    assert strip_port("example.com:3443") == "example.com"
    assert strip_port(None) == "localhost"


@pytest.mark.parametrize(
    ("settings", "said"),
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
def test_settings_that_do_not_fit(settings: dict[str, str | int], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        EngineSettings.load({}, **settings)
