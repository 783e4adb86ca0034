"""The certificate of the engine's TLS port: from files, or issued by the engine's own authority.

Both are contexts that stay current: each handshake may use a newer certificate than the one before, without a restart
and without affecting open connections.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.certificates.files import CERTIFICATE, CertificateError
from sandyard.engine.settings import EngineSettings
from sandyard.kit.listen import is_loopback
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

LOCAL = "localhost"
"""Browsers and resolvers map every name below it to the local machine."""
LOOPBACK = ("127.0.0.1", "::1")
_LOCAL_NETWORKS = ("127.0.0.0/8", "::1/128")
HTTPS_PORT = 443
CHECK_INTERVAL_S = 1.0
"""The minimum interval between checks of the files."""
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A TLS context. `authority` is the certificate that clients have to trust, if it is the engine's own, and `own` issues
    those for single names then."""

    context: ssl.SSLContext
    authority: Path | None
    own: OwnCertificates | None = None


def load_public_certificate(settings: EngineSettings, folder: Path) -> ServerCertificate:
    """Return the certificate that the settings select. Blocks; raises CertificateError."""
    if settings.tls_cert is not None:
        return ServerCertificate(CertificateFiles(settings.tls_cert, settings.tls_key).context, None)
    return _load_own_certificate(settings, folder)


def load_sandbox_certificate(
    settings: EngineSettings, folder: Path, public: ServerCertificate | None
) -> ServerCertificate | None:
    """Return the certificate for sandboxes that connect to the engine by its public names: the public one, or one of
    the engine's own if a proxy in front of it terminates TLS. None without a domain. Blocks; raises CertificateError."""
    if settings.domain is None or public is not None:
        return public if settings.domain is not None else None
    return _load_own_certificate(settings, folder)


def _load_own_certificate(settings: EngineSettings, folder: Path) -> ServerCertificate:
    domain = strip_port(settings.domain)
    issuer = load_authority(folder, domain)
    own = OwnCertificates(issuer, domain)
    return ServerCertificate(own.context, issuer.certificate, own)


def load_authority(folder: Path, domain: str) -> Authority:
    """Return the engine's own authority for this domain. Each domain has one below `folder`, which may only certify
    names below the domain and this machine's own names. Blocks; raises CertificateError."""
    return Authority.load(folder / domain, within=(*_list_domains(domain), *_LOCAL_NETWORKS))


def list_authority_domains(folder: Path) -> list[str]:
    """Return the domains that have an authority below `folder`, sorted."""
    return sorted(path.parent.name for path in folder.glob(f"*/{CERTIFICATE}"))


def strip_port(domain: str | None) -> str:
    """Return the domain of a setting as used in certificates, without its port."""
    return domain.partition(":")[0] if domain is not None else LOCAL


def resolve_public_domain(settings: EngineSettings, port: int, tls_port: int | None) -> str | None:
    """Return the domain that clients use for sandboxes and previews: `{port}-{id}.{domain}`. Without a configured
    domain, `localhost` works without a name server. A port in the setting is the port of the proxy in front of the
    engine."""
    host = settings.host if tls_port is None else settings.tls_host or settings.host
    if settings.domain is not None:
        name, _, configured_port = settings.domain.partition(":")
        public_port = int(configured_port) if configured_port else tls_port
    elif is_loopback(host) or host in ("0.0.0.0", "::"):  # noqa: S104 - a name for it, nothing is bound
        name, public_port = LOCAL, port if tls_port is None else tls_port
    else:
        return None
    return name if public_port in (None, HTTPS_PORT) else f"{name}:{public_port}"


@dataclass(slots=True)
class IssuingLimit:
    """Limits how many certificates for single names are issued: `burst` at once, then `per_second`."""

    per_second: float
    burst: float
    _left: float = field(init=False)
    _updated_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._updated_at = self.burst, time.monotonic()

    def take(self) -> bool:
        """Return whether a certificate may be issued now."""
        now = time.monotonic()
        self._left = min(self.burst, self._left + (now - self._updated_at) * self.per_second)
        self._updated_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class OwnCertificates:
    """The engine's certificate for its domain, the names below it and this machine, in `context`.

    Clients reject `*` directly below a name without a dot (`*.localhost`), some even if another name in the certificate
    matches. A client that asks for such a name gets a certificate for exactly that name. Strangers can ask for any number of
    names, so the certificates for names that belong to no sandbox are limited most.
    """

    def __init__(self, issuer: Authority, domain: str) -> None:
        self._issuer = issuer
        self._domains = _list_domains(domain)
        self._names = (*self._domains, *(f"*.{name}" for name in self._domains if "." in name), *LOOPBACK)
        self._sandboxes_limit = IssuingLimit(per_second=20, burst=500)
        self._others_limit = IssuingLimit(per_second=0.5, burst=30)
        self.is_sandbox_name: Callable[[str], bool] = lambda _: False
        """Returns whether a host name is that of a port of an existing sandbox. Set it once sandboxes are known."""
        self.context = _make_context()
        self.context.sni_callback = self._choose_certificate
        issuer.make_server_context(self._names)

    def _choose_certificate(self, connection: ssl.SSLObject, name: str | None, _: object) -> int | None:
        requested = (name or "").lower().removesuffix(".")
        certified = self._names
        if any(requested.endswith(f".{domain}") for domain in self._domains):
            parent = requested.partition(".")[2]
            if (parent not in self._domains or "." not in parent) and self._may_certify(requested):
                certified = (requested,)
        try:
            connection.context = self._issuer.make_server_context(certified)
        except CertificateError:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        return None

    def _may_certify(self, name: str) -> bool:
        if self._issuer.has_context((name,)):
            return True
        limit = self._sandboxes_limit if self.is_sandbox_name(name) else self._others_limit
        return limit.take()


class CertificateFiles:
    """A certificate with its chain, and its key, which may be in the same file. When the files are renewed (for example
    by certbot), the next client gets the new ones. Files that do not match or cannot be read are ignored until they are
    valid."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Load the files. Raises CertificateError."""
        self._certificate, self._key = certificate, key
        self._paths = (certificate,) if key is None else (certificate, key)
        self._checked_at = time.monotonic()
        try:
            self._stamp = _get_stamp(self._paths)
            self._current = self._load()
        except (OSError, CertificateError) as error:
            where = " and ".join(str(path) for path in self._paths)
            raise CertificateError(f"Could not use the certificate in {where}: {_describe_error(error)}.") from error
        self.context = _make_context()
        self.context.sni_callback = self._refresh

    def _refresh(self, connection: ssl.SSLObject, name: str | None, _: object) -> None:
        now = time.monotonic()
        if now - self._checked_at > CHECK_INTERVAL_S:
            self._checked_at = now
            self.check_files()
        connection.context = self._current

    def check_files(self) -> None:
        """Load the files if they have changed. Files that cannot be used are logged and ignored."""
        try:
            stamp = _get_stamp(self._paths)
            if stamp == self._stamp:
                return
            self._current = self._load()
        except (OSError, CertificateError) as error:  # partly renewed: checked again later
            log.warning("certificate_unusable", certificate=str(self._certificate), reason=_describe_error(error))
            return
        self._stamp = stamp
        log.info("certificate_renewed", certificate=str(self._certificate))

    def _load(self) -> ssl.SSLContext:
        context = _make_context()
        context.load_cert_chain(self._certificate, self._key, password=_refuse_password)
        return context


def _make_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _list_domains(domain: str) -> tuple[str, ...]:
    """Return the wildcard parents: `sandyard.localhost` has its own in addition to that of `localhost`."""
    return (domain,) if domain == LOCAL else (domain, LOCAL)


def _get_stamp(paths: Sequence[Path]) -> _Stamp:
    return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in map(os.stat, paths))


def _refuse_password() -> str:
    """Fail instead of letting OpenSSL prompt for a password on the terminal."""
    raise CertificateError("the key is encrypted; provide one without a password")


def _describe_error(error: Exception) -> str:
    if isinstance(error, CertificateError):
        return error.message
    if isinstance(error, ssl.SSLError):
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        return (
            "the key belongs to another certificate"
            if mismatch
            else "it is not a PEM file with a certificate and its key"
        )
    return f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
