"""Join tokens, and the certificates that machines get in exchange when they become hosts."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from sandyard.engine.hosts.authority import HostAuthority, compute_key_fingerprint, read_certificate_request
from sandyard.engine.hosts.directory import STATIC, HostDetails, Hosts
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.store.database import Database
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import ConflictError, ForbiddenError, InvalidInputError, UnauthenticatedError
from sandyard.kit.ids import make_random_id, make_random_secret
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

TOKEN_LIFETIME_S = 3600.0
MIN_TOKEN_LIFETIME_S, MAX_TOKEN_LIFETIME_S = 60.0, 7 * 24 * 3600.0
KEPT_S = 7 * 24 * 3600.0
"""How long used and expired tokens are kept, so that a host that sends one is told why it is refused."""
SECRET_BYTES = 24
LEAVE_MESSAGE = b"sandyard: this host leaves the engine: "
_NOT_VALID = (
    "The join token is not valid for this engine. Create one with `sandyard host token` on the engine's machine."
)


@dataclass(frozen=True, slots=True)
class IssuedJoinToken:
    """A join token, which is shown once."""

    token: JoinToken
    expires_at: float


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The request of a machine that wants to become a host."""

    token_id: str
    secret: str
    certificate_request: str  # PEM
    details: HostDetails


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """The response to a host that has joined or renews its certificate, which is for the key in its certificate request."""

    host_id: str
    certificate: bytes  # PEM
    authority: bytes  # PEM
    expires_at: float


class Enrollment:
    """Creates join tokens and registers the hosts that have one.

    A token is valid for one host. It is stored as a hash and compared in constant time. If the response to a host is lost,
    the host can repeat its request, because a used token stays valid for the key that it was used with.
    """

    def __init__(
        self, database: Database, hosts: Hosts, authority: HostAuthority, address: str, clock: Clock | None = None
    ) -> None:
        """`address` is the ADDRESS:PORT at which hosts join."""
        self._database = database
        self._hosts = hosts
        self._authority = authority
        self.address = address
        self._clock = clock or SystemClock()

    @property
    def authority_pem(self) -> bytes:
        return self._authority.pem

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the authority's certificate."""
        return self._authority.fingerprint

    def get_context(self) -> ssl.SSLContext:
        """Return the context of the server at which hosts join."""
        return self._authority.get_join_context()

    def create_token(self, lifetime_s: float = TOKEN_LIFETIME_S, source: str = STATIC) -> IssuedJoinToken:
        """Create a token for one host, whose machine is listed by this source. Raises InvalidInputError."""
        if not MIN_TOKEN_LIFETIME_S <= lifetime_s <= MAX_TOKEN_LIFETIME_S:
            raise InvalidInputError("A join token can be valid for 1 minute to 7 days.")
        now = self._clock.now()
        token = JoinToken(
            self.address, self._authority.fingerprint, make_random_id("", 12), make_random_secret("", SECRET_BYTES)
        )
        self._database.execute("DELETE FROM join_tokens WHERE expires_at < ?", (now - KEPT_S,))
        self._database.execute(
            "INSERT INTO join_tokens (id, hash, expires_at, source) VALUES (?, ?, ?, ?)",
            (token.id, _hash(token.secret.reveal()), now + lifetime_s, source),
        )
        log.info("join_token_created", token=token.id, lifetime_s=lifetime_s)
        return IssuedJoinToken(token, now + lifetime_s)

    def join(self, request: JoinRequest) -> JoinResponse:
        """Register the host that sent this request. Raises UnauthenticatedError or ForbiddenError if its token is not valid.
        Also raises what `Hosts.register` raises: the token then stays unused."""
        expires_at, used_by, source = self._check_token(request.token_id, request.secret)
        key = read_certificate_request(request.certificate_request)
        fingerprint = compute_key_fingerprint(key)
        if used_by is not None and used_by != fingerprint:
            raise ForbiddenError(
                "The join token was used by another host, and a token is valid for one host only. Create a new one with "
                "`sandyard host token`."
            )
        if used_by is not None and self._hosts.find_by_key(fingerprint) is None:
            raise ForbiddenError(
                "This host was removed from the engine after it had joined with this token. Create a new token with "
                "`sandyard host token`."
            )
        if expires_at <= self._clock.now():
            raise ForbiddenError("The join token has expired. Create a new one with `sandyard host token`.")

        def mark_used() -> None:
            self._database.execute("UPDATE join_tokens SET used_by = ? WHERE id = ?", (fingerprint, request.token_id))

        details = request.details
        if used_by is not None:  # it repeats its request; its labels may have been changed since
            details = replace(details, labels={})
        record, certificate = self._hosts.register(key, details, mark_used, source)
        log.info("host_joined", host=record.id, name=record.name, address=record.address, token=request.token_id)
        return JoinResponse(record.id, certificate.pem, self._authority.pem, certificate.expires_at)

    def renew(self, certificate_request: str) -> JoinResponse:
        """Issue a new certificate to a registered host, which is identified by its key. Replaying a recorded request is
        harmless: the certificate is useless without the private key. Raises InvalidInputError or NotFoundError."""
        key = read_certificate_request(certificate_request)
        certificate = self._hosts.renew(key)
        host = self._hosts.find_by_key(compute_key_fingerprint(key))
        assert host is not None
        return JoinResponse(host.record.id, certificate.pem, self._authority.pem, certificate.expires_at)

    def check_leave(self, certificate_request: str, signature: str) -> str:
        """Return the id of the host that wants to leave, after checking the signature with its key. Raises InvalidInputError,
        ConflictError if the host is not registered, and UnauthenticatedError."""
        key = read_certificate_request(certificate_request)
        host = self._hosts.find_by_key(compute_key_fingerprint(key))
        if host is None:
            raise ConflictError("This host is not registered with the engine, or was removed.")
        try:
            raw = base64.b64decode(signature, validate=True)
            key.verify(raw, LEAVE_MESSAGE + host.record.id.encode(), ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature):
            raise UnauthenticatedError("The request to leave is not signed with the key of the host.") from None
        return host.record.id

    def _check_token(self, token_id: str, secret: str) -> tuple[float, str | None, str]:
        """Return when a token expires, the fingerprint of the key that it was used with, and the source of its machine."""
        query = "SELECT hash, expires_at, used_by, source FROM join_tokens WHERE id = ?"
        rows = self._database.query(query, (token_id,))
        stored, expires_at, used_by, source = rows[0] if rows else (bytes(32), 0.0, None, STATIC)
        # compared also if there is no such token, so that both take the same time
        if not hmac.compare_digest(stored, _hash(secret)) or not rows:
            log.warning("join_refused", token=token_id[:40], reason="wrong token")
            raise UnauthenticatedError(_NOT_VALID)
        return float(expires_at), used_by, str(source)


def sign_leave(key: ec.EllipticCurvePrivateKey, host_id: str) -> str:
    """Return the signature that proves that a request to leave comes from the host."""
    return base64.b64encode(key.sign(LEAVE_MESSAGE + host_id.encode(), ec.ECDSA(hashes.SHA256()))).decode()


def _hash(secret: str) -> bytes:
    # a slow hash is not needed: a secret has 192 random bits
    return hashlib.sha256(secret.encode(errors="replace")).digest()
