"""`sandyard ca`, as somebody types it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from cryptography import x509

from sandyard.cli.main import cli


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["ca", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_it_says_how_to_trust_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    said = run("--data-dir", str(data))
    certificate = data / "tls" / "localhost" / "ca.pem"
    assert said.startswith(f"{certificate}\n")
    for word in ("update-ca-certificates", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "Firefox", "never key.pem"):
        assert word in said
    assert "PRIVATE" not in said
    assert run("--data-dir", str(data)) == said


def test_the_certificate_alone(tmp_path: Path) -> None:
    said = run("--data-dir", str(tmp_path), "--domain", "example.com:3443", "--pem")
    assert said == (tmp_path / "tls/example.com/ca.pem").read_text()
    found = x509.load_pem_x509_certificate(said.encode()).extensions.get_extension_for_class(x509.NameConstraints)
    assert found.critical
    assert x509.DNSName("example.com") in (found.value.permitted_subtrees or [])


def test_the_authority_that_exists_is_found(tmp_path: Path) -> None:
    """Another one, for localhost, would be of no use to anybody."""
    made = run("--data-dir", str(tmp_path), "--domain", "example.com", "--pem")
    assert run("--data-dir", str(tmp_path), "--pem") == made
    assert not (tmp_path / "tls/localhost").exists()
    run("--data-dir", str(tmp_path), "--domain", "example.org")
    said = run("--data-dir", str(tmp_path), code=1)
    assert "--domain" in said
    assert "example.com, example.org" in said


def test_the_data_directory_of_up(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    made = run("--data-dir", str(tmp_path / "engine"), "--domain", "example.com", "--pem")
    assert run("--data-dir", str(tmp_path), "--pem") == made
    assert not (tmp_path / "tls").exists()


def test_what_is_no_domain(tmp_path: Path) -> None:
    assert "domain" in run("--data-dir", str(tmp_path), "--domain", "https://example.com", code=1)
    assert not (tmp_path / "tls").exists()
