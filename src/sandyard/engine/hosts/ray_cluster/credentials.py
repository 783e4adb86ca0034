"""The credentials with which processes of Ray recognize each other: a token, and certificates of an authority for one cluster.

Ray refuses processes that lack them. Each machine has a folder with four files: token, authority, certificate and key."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandyard.engine.certificates import files
from sandyard.engine.certificates.files import CertificateError, lock_folder
from sandyard.engine.hosts.validation import validate_address
from sandyard.kit.clock import SystemClock, get_time
from sandyard.kit.errors import InvalidInputError

TOKEN, AUTHORITY, CERTIFICATE, KEY = "token", "ca.pem", "certificate.pem", "key.pem"
LIFETIME = dt.timedelta(days=3650)
"""Ray loads certificates once and cannot renew them: a certificate lasts as long as the machine."""
_BACKDATE = dt.timedelta(days=1)
HEALTH_CHECKS: Mapping[str, str] = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray notices a lost node after four seconds instead of half a minute."""


def create(folder: Path, addresses: Sequence[str]) -> Sequence[Path]:
    """Create a folder of credentials below `folder` for each address, and the authority and token of the cluster in `folder`. Keep
    what exists. Return the folders of the machines. Blocks; raises InvalidInputError and CertificateError."""
    addresses = [validate_address(address) for address in addresses]
    now = get_time(SystemClock())
    with lock_folder(folder):
        key = files.read_key(folder) or files.create_key(folder)
        root = files.read_certificate(folder, key)
        if root is None:
            root = _make_root(key, now)
            files.write(folder / files.CERTIFICATE, root.public_bytes(serialization.Encoding.PEM), 0o644)
        token = folder / TOKEN
        if not token.exists():
            files.write(token, secrets.token_hex(32).encode(), 0o600)
        return [_create_machine(folder, address, root, key, now) for address in addresses]


def make_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables that make Ray use these credentials. Blocks; raises InvalidInputError if a file is missing."""
    folder = folder.absolute()
    for name in (TOKEN, AUTHORITY, CERTIFICATE, KEY):
        if not (folder / name).is_file():
            raise InvalidInputError(
                f"{folder} has no file {name}. Create the credentials of this machine with `sandyard host ray credentials`."
            )
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN),
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": str(folder / AUTHORITY),
        "RAY_TLS_SERVER_CERT": str(folder / CERTIFICATE),
        "RAY_TLS_SERVER_KEY": str(folder / KEY),
    }


def _create_machine(folder: Path, address: str, root: x509.Certificate, root_key: files.Key, now: dt.datetime) -> Path:
    machine = folder / address.replace(":", "_")
    if (machine / TOKEN).exists():  # written last
        return machine
    with lock_folder(machine):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _issue(address, key, root, root_key, now)
        files.write(machine / KEY, files.encode_key(key), 0o600)
        files.write(machine / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        files.write(machine / AUTHORITY, root.public_bytes(serialization.Encoding.PEM), 0o644)
        files.write(machine / TOKEN, (folder / TOKEN).read_bytes(), 0o600)
    return machine


def _make_root(key: files.Key, now: dt.datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Ray of Sandyard")])
    return (
        _begin(name, name, now)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _issue(
    address: str, key: files.Key, root: x509.Certificate, root_key: files.Key, now: dt.datetime
) -> x509.Certificate:
    """Return a certificate for both ends of connections: every process of Ray is a client and a server."""
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        raise CertificateError(
            f"{address} must be an IP address, because Ray knows machines by their addresses."
        ) from None
    names = [name, x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, address)])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _begin(subject, root.subject, now)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )


def _begin(subject: x509.Name, issuer: x509.Name, now: dt.datetime) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + LIFETIME)
    )
