"""`sandyard ca` on the command line."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from cryptography import x509

from sandyard.cli.main import cli


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["ca", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_it_prints_how_to_trust_the_certificate(tmp_path: Path) -> None:
    data = tmp_path / "data"
    printed = run("--data-dir", str(data))
    certificate = data / "tls" / "localhost" / "ca.pem"
    assert printed.startswith(f"{certificate}\n")
    for word in ("update-ca-certificates", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "Firefox", "never key.pem"):
        assert word in printed
    assert "PRIVATE" not in printed
    assert run("--data-dir", str(data)) == printed


def test_pem_prints_only_the_certificate(tmp_path: Path) -> None:
    printed = run("--data-dir", str(tmp_path), "--domain", "example.com:3443", "--pem")
    assert printed == (tmp_path / "tls/example.com/ca.pem").read_text()
    found = x509.load_pem_x509_certificate(printed.encode()).extensions.get_extension_for_class(x509.NameConstraints)
    assert found.critical
    assert x509.DNSName("example.com") in (found.value.permitted_subtrees or [])


def test_an_existing_authority_is_used(tmp_path: Path) -> None:
    """Creating another one for localhost would be useless."""
    made = run("--data-dir", str(tmp_path), "--domain", "example.com", "--pem")
    assert run("--data-dir", str(tmp_path), "--pem") == made
    assert not (tmp_path / "tls/localhost").exists()
    run("--data-dir", str(tmp_path), "--domain", "example.org")
    printed = run("--data-dir", str(tmp_path), code=1)
    assert "--domain" in printed
    assert "example.com, example.org" in printed


def test_the_data_directory_of_up_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    made = run("--data-dir", str(tmp_path / "engine"), "--domain", "example.com", "--pem")
    assert run("--data-dir", str(tmp_path), "--pem") == made
    assert not (tmp_path / "tls").exists()


def test_an_invalid_domain_is_rejected(tmp_path: Path) -> None:
    assert "domain" in run("--data-dir", str(tmp_path), "--domain", "https://example.com", code=1)
    assert not (tmp_path / "tls").exists()
