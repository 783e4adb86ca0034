"""The engine's certificate authority for hosts.

It is separate from the authorities for clients and sandboxes, so that their certificates are not accepted between the
engine and its hosts. A host's certificate is valid only for a server, with the host's id as its name. The engine's is
valid only for a client, or for the server at which hosts join. So a host cannot impersonate the engine or another host.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.certificates.authority import RENEW_BEFORE_END, Authority, Usage
from sandyard.kit.clock import Clock, SystemClock, get_time
from sandyard.kit.errors import InvalidInputError

ENGINE_NAME = "engine"
"""The engine's name in its certificates. It is not a host's, because the ids of hosts start with `host-`."""
HOST_LIFETIME = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class HostCertificate:
    """A certificate that was issued to a host."""

    pem: bytes
    serial: str  # hexadecimal
    expires_at: float


class HostAuthority:
    """Issues certificates to hosts, and makes the TLS contexts with which the engine identifies itself to them. Thread-safe."""

    def __init__(self, authority: Authority, clock: Clock | None = None) -> None:
        self._authority = authority
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._client_context = self._make_client_context()
        self._renew_at = dt.datetime.min.replace(tzinfo=dt.UTC)

    @classmethod
    def load(cls, folder: Path, clock: Clock | None = None) -> HostAuthority:
        """Load the authority of this folder, or create it. Blocks; raises CertificateError."""
        return cls(Authority.load(folder, clock=clock), clock)

    @property
    def pem(self) -> bytes:
        return self._authority.pem

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the authority's certificate."""
        return compute_fingerprint(self.pem)

    def issue(self, host_id: str, key: ec.EllipticCurvePublicKey) -> HostCertificate:
        """Issue a certificate to the host with this id and key."""
        made = self._authority.issue_certificate(
            (host_id,), key, get_time(self._clock), usage=Usage.SERVER, lifetime=HOST_LIFETIME
        )
        pem = made.public_bytes(serialization.Encoding.PEM)
        return HostCertificate(pem, f"{made.serial_number:x}", made.not_valid_after_utc.timestamp())

    def get_join_context(self) -> ssl.SSLContext:
        """Return the context of the server at which hosts join. It renews its certificate itself."""
        return self._authority.make_server_context((ENGINE_NAME,))

    def get_client_context(self) -> ssl.SSLContext:
        """Return the context for connections to hosts. It presents the engine's certificate and accepts those of hosts. It is
        always the same object; its certificate is renewed here before it expires."""
        with self._lock:
            now = get_time(self._clock)
            if now >= self._renew_at:
                self._renew_at = (
                    self._authority.load_client_certificate(self._client_context, ENGINE_NAME) - RENEW_BEFORE_END
                )
            return self._client_context

    def _make_client_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=self.pem.decode())
        return context


def compute_fingerprint(certificate_pem: bytes) -> str:
    """Return the SHA-256 of a certificate. Raises ValueError if it is not one."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def compute_key_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of a public key."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def read_certificate_request(pem: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate request, after checking that the sender has the private key. Nothing else in the
    request is used. Raises InvalidInputError."""
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise InvalidInputError("The certificate request is not valid.") from None
    if not is_signed or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInputError("The certificate request is not valid: it must be signed with its own P-256 key.")
    return key
