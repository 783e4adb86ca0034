"""The engine's own certificate authority, stored in a folder, and the certificates it issues to the engine itself.

- The authority is created once and kept, so clients that trust it continue to do so after restarts. Only its key and
  certificate are on disk; leaf certificates and their key live in memory, last a week and are renewed while they are in
  use.
- `within` limits what the authority can certify (critical name constraints): if the key of an authority in people's
  trust stores is stolen, it must not be usable to impersonate other sites.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import functools
import ipaddress
import os
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandyard.engine.certificates import files
from sandyard.engine.certificates.files import CERTIFICATE, CertificateError, Key, lock_folder
from sandyard.kit.clock import Clock, SystemClock

ROOT_LIFETIME = dt.timedelta(days=3650)
LEAF_LIFETIME = dt.timedelta(days=7)
RENEW_BEFORE_END = dt.timedelta(days=3)
BACKDATE = dt.timedelta(days=1)
"""Tolerance for clients whose clock is behind."""
MAX_CONTEXTS = 512
"""Contexts kept in memory; the least recently used one is dropped first."""


class Usage(enum.Enum):
    """The purpose of a certificate."""

    SERVER = ExtendedKeyUsageOID.SERVER_AUTH
    CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


class Authority:
    """A certificate authority. Thread-safe. Every method except `load` works in memory; issuing takes about 3 ms."""

    def __init__(self, folder: Path, key: Key, certificate: x509.Certificate, clock: Clock) -> None:
        """Use `load` instead."""
        self.certificate = folder / CERTIFICATE
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        self._root = certificate
        self._key = key
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._clock = clock
        self._issued: OrderedDict[tuple[str, ...], tuple[ssl.SSLContext, dt.datetime]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def load(cls, folder: Path, *, within: Sequence[str] | None = None, clock: Clock | None = None) -> Authority:
        """Load the authority of this folder, or create it. Blocks; raises CertificateError.

        `within` lists the only names it may certify: domains (each with all its subdomains), addresses and networks. It
        takes effect when the authority is created; raises CertificateError if the existing authority was created for
        other names.
        """
        clock = clock or SystemClock()
        with lock_folder(folder):
            key = files.read_key(folder) or files.create_key(folder)
            certificate = files.read_certificate(folder, key)
            if certificate is None or certificate.not_valid_after_utc < _now(clock) + LEAF_LIFETIME:
                certificate = _make_root(key, within, _now(clock))
                files.write(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        if _get_name_constraints(certificate) != _make_name_constraints(within):
            raise CertificateError(
                f"The authority in {folder} was created for other names. Delete the folder to create a new one."
            )
        return cls(folder, key, certificate, clock)

    def make_server_context(self, names: Sequence[str]) -> ssl.SSLContext:
        """Return a context for a server with these host names (also `*.…`) and addresses; HTTP/1.1 by ALPN.

        The same names get the same context until its certificate is due for renewal. A context that the caller keeps
        also renews itself. Raises CertificateError for invalid names.
        """
        with self._lock:
            names, now = tuple(names), _now(self._clock)
            context, due = self._issued.get(names, (None, now))
            if context is None or due <= now:
                context, due = self._issue(names, now)
                self._issued[names] = (context, due)
                if len(self._issued) > MAX_CONTEXTS:
                    self._issued.popitem(last=False)
            self._issued.move_to_end(names)
            return context

    def has_context(self, names: Sequence[str]) -> bool:
        """Return whether `make_server_context` has a context for these names and need not issue a certificate."""
        with self._lock:
            _, due = self._issued.get(tuple(names), (None, None))
            return due is not None and due > _now(self._clock)

    def _issue(self, names: tuple[str, ...], now: dt.datetime) -> tuple[ssl.SSLContext, dt.datetime]:
        certificate = self.issue_certificate(names, self._leaf_key.public_key(), now)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_chain(context, certificate)
        context.sni_callback = functools.partial(self._refresh, names)
        return context, certificate.not_valid_after_utc - RENEW_BEFORE_END

    def _refresh(self, names: tuple[str, ...], connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        context = self.make_server_context(names)
        if connection.context is not context:
            connection.context = context

    def load_client_certificate(self, context: ssl.SSLContext, name: str) -> dt.datetime:
        """Let a client's context show a new certificate with this name. Return when the certificate expires. Raises
        CertificateError for an invalid name."""
        certificate = self.issue_certificate(
            (name,), self._leaf_key.public_key(), _now(self._clock), usage=Usage.CLIENT
        )
        self._load_chain(context, certificate)
        return certificate.not_valid_after_utc

    def _load_chain(self, context: ssl.SSLContext, certificate: x509.Certificate) -> None:
        pem = certificate.public_bytes(serialization.Encoding.PEM) + files.encode_key(self._leaf_key)
        with _write_memory_file(pem) as path:
            context.load_cert_chain(path)

    def issue_certificate(
        self,
        names: tuple[str, ...],
        key: ec.EllipticCurvePublicKey,
        now: dt.datetime,
        *,
        usage: Usage = Usage.SERVER,
        lifetime: dt.timedelta = LEAF_LIFETIME,
    ) -> x509.Certificate:
        """Return a certificate for these names and this key. Raises CertificateError for invalid names."""
        if not names:
            raise CertificateError("A certificate needs at least one name.")
        try:
            alternatives = x509.SubjectAlternativeName([_make_general_name(name) for name in names])
        except ValueError as error:
            raise CertificateError(f"Could not issue a certificate for {', '.join(names)}: {error}.") from error
        end = min(now + lifetime, self._root.not_valid_after_utc)
        return (
            _make_builder(_make_name("Sandyard"), self._root.subject, now - BACKDATE, end)
            .public_key(key)
            .add_extension(alternatives, critical=True)  # critical, because the subject is empty
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_make_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage.value]), critical=False)
            .add_extension(_make_issuer_id(self._root), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _make_root(key: Key, within: Sequence[str] | None, now: dt.datetime) -> x509.Certificate:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # trust stores and browsers show this name, so it must distinguish two authorities
    subject = _make_name(f"Sandyard authority {identifier.digest.hex()[:8]} of {os.uname().nodename[:30]}")
    builder = (
        _make_builder(subject, subject, now - BACKDATE, now + ROOT_LIFETIME)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_make_key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    if (constraints := _make_name_constraints(within)) is not None:
        builder = builder.add_extension(constraints, critical=True)
    return builder.sign(key, hashes.SHA256())


def _make_builder(
    subject: x509.Name, issuer: x509.Name, begin: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _make_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _make_name_constraints(within: Sequence[str] | None) -> x509.NameConstraints | None:
    if within is None:
        return None
    permitted: list[x509.GeneralName] = []
    for name in within:
        try:
            permitted.append(x509.IPAddress(ipaddress.ip_network(name)))
        except ValueError:
            permitted.append(x509.DNSName(_encode_host_name(name)))
    if not any(isinstance(name, x509.IPAddress) for name in permitted):
        # a type of name that is not mentioned would be unrestricted
        all_addresses = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
        return x509.NameConstraints(permitted, [x509.IPAddress(network) for network in all_addresses])
    return x509.NameConstraints(permitted, None)


def _get_name_constraints(certificate: x509.Certificate) -> x509.NameConstraints | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return None


def _make_general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(_encode_host_name(name))


def _encode_host_name(name: str) -> str:
    """Return a host name as used in certificates: lower case, punycode, no final dot. Raises ValueError."""
    star, _, rest = name.rpartition("*.")
    if star or not rest or "*" in rest:
        raise ValueError(f"{name!r} is not a host name")
    plain = rest.rstrip(".").lower()
    ascii_name = plain if plain.isascii() else plain.encode("idna").decode()
    if not all(1 <= len(label) <= 63 and set(label) <= _HOST_NAME_CHARACTERS for label in ascii_name.split(".")):
        raise ValueError(f"{name!r} is not a host name")
    return name[: len(name) - len(rest)] + ascii_name


_HOST_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def _make_issuer_id(root: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _make_key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _now(clock: Clock) -> dt.datetime:
    return dt.datetime.fromtimestamp(int(clock.now()), dt.UTC)


@contextlib.contextmanager
def _write_memory_file(data: bytes) -> Iterator[str]:
    """Yield the path of an in-memory file: Python's ssl module reads keys from paths only, and the key must not be on
    disk."""
    fd = os.memfd_create("sandyard-certificate")
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
