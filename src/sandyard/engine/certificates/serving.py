"""What the engine's TLS port shows its clients: somebody else's certificate out of files, or one of its own authority.

Both are contexts that never go stale: each handshake may get a newer certificate than the one before, without a restart and
without touching the connections that are open.
"""

from __future__ import annotations

import functools
import os
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.certificates.files import CERTIFICATE, CertificateError
from sandyard.engine.settings import EngineSettings
from sandyard.kit.listen import is_loopback
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

LOCAL = "localhost"
"""Browsers and resolvers find every name below it on their own machine."""
LOOPBACK = ("127.0.0.1", "::1")
_BOUNDS = ("127.0.0.0/8", "::1/128")
HTTPS = 443
LOOK_S = 1.0
"""How often files are looked at, at most."""
_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """`authority`: the certificate that clients have to trust, where it is the engine's own."""

    context: ssl.SSLContext
    authority: Path | None


def shown(settings: EngineSettings, folder: Path) -> Shown:
    """As the settings want it. Blocks; raises CertificateError."""
    if settings.tls_cert is not None:
        return Shown(Files(settings.tls_cert, settings.tls_key).context, None)
    domain = bare(settings.domain)
    issuer = authority(folder, domain)
    return Shown(own(issuer, domain), issuer.certificate)


def shown_to_sandboxes(settings: EngineSettings, folder: Path, public: Shown | None) -> Shown | None:
    """What sandboxes see that ask for the engine by its public names: what everybody sees, or a certificate of the engine's
    own where something in front of it ends TLS. None without a domain. Blocks; raises CertificateError."""
    if settings.domain is None or public is not None:
        return public if settings.domain is not None else None
    domain = bare(settings.domain)
    issuer = authority(folder, domain)
    return Shown(own(issuer, domain), issuer.certificate)


def authority(folder: Path, domain: str) -> Authority:
    """The engine's own for this domain: each domain has one, below `folder`, that vouches for names below the domain and
    for this machine's own alone. Blocks; raises CertificateError."""
    return Authority.load(folder / domain, within=(*_domains(domain), *_BOUNDS))


def domains_with_authority(folder: Path) -> list[str]:
    """Return the domains that have an authority below `folder`, sorted."""
    return sorted(found.parent.name for found in folder.glob(f"*/{CERTIFICATE}"))


def bare(domain: str | None) -> str:
    """A setting's domain as it is in certificates."""
    return domain.partition(":")[0] if domain is not None else LOCAL


def domain_told(settings: EngineSettings, port: int, tls_port: int | None) -> str | None:
    """Under which clients are told to look for sandboxes and previews: `{port}-{id}.{domain}`. Without a domain of its own
    `localhost` leads here without a name server. A port that the setting names is the one in front of the engine."""
    host = settings.host if tls_port is None else settings.tls_host or settings.host
    if settings.domain is not None:
        name, _, given = settings.domain.partition(":")
        seen = int(given) if given else tls_port
    elif is_loopback(host) or host in ("0.0.0.0", "::"):  # noqa: S104 - a name for it, nothing is bound
        name, seen = LOCAL, port if tls_port is None else tls_port
    else:
        return None
    return name if seen in (None, HTTPS) else f"{name}:{seen}"


def own(issuer: Authority, domain: str) -> ssl.SSLContext:
    """A certificate for the domain and the names below it, and for this machine.

    Clients take no `*` right below a name without a dot (`*.localhost`), some not even beside another name they would
    take: whoever asks for such a name gets a certificate for that very one.
    """
    domains = _domains(domain)
    names = (*domains, *(f"*.{name}" for name in domains if "." in name), *LOOPBACK)
    context = _context()
    context.sni_callback = functools.partial(_choose, issuer, domains, names)
    issuer.server_context(names)
    return context


def _choose(
    issuer: Authority, domains: Sequence[str], names: Sequence[str], line: ssl.SSLObject, name: str | None, _: object
) -> int | None:
    asked = (name or "").lower().removesuffix(".")
    wanted = names
    if any(asked.endswith(f".{domain}") for domain in domains):
        parent = asked.partition(".")[2]
        if parent not in domains or "." not in parent:
            wanted = (asked,)
    try:
        line.context = issuer.server_context(wanted)
    except CertificateError:
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    return None


class Files:
    """A certificate with its chain, and its key, which may be in the same file. Who renews them (certbot) writes new ones:
    the next client gets those. Files that do not fit together, or cannot be read, change nothing until they do."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Raises CertificateError."""
        self._certificate, self._key = certificate, key
        self._paths = (certificate,) if key is None else (certificate, key)
        self._looked_at = time.monotonic()
        try:
            self._stamp = _stamp(self._paths)
            self._current = self._load()
        except (OSError, CertificateError) as error:
            where = " and ".join(str(path) for path in self._paths)
            raise CertificateError(f"The certificate in {where} cannot be used: {_reason(error)}.") from error
        self.context = _context()
        self.context.sni_callback = self._refresh

    def _refresh(self, line: ssl.SSLObject, name: str | None, _: object) -> None:
        now = time.monotonic()
        if now - self._looked_at > LOOK_S:
            self._looked_at = now
            self._look()
        line.context = self._current

    def _look(self) -> None:
        try:
            stamp = _stamp(self._paths)
            if stamp == self._stamp:
                return
            self._current = self._load()
        except (OSError, CertificateError) as error:  # renewed in part: it is looked at again
            log.warning("certificate_unusable", certificate=str(self._certificate), reason=_reason(error))
            return
        self._stamp = stamp
        log.info("certificate_renewed", certificate=str(self._certificate))

    def _load(self) -> ssl.SSLContext:
        context = _context()
        context.load_cert_chain(self._certificate, self._key, password=_no_password)
        return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _domains(domain: str) -> tuple[str, ...]:
    """`sandyard.localhost` has a star of its own beside that of `localhost`."""
    return (domain,) if domain == LOCAL else (domain, LOCAL)


def _stamp(paths: Sequence[Path]) -> _Stamp:
    return tuple((found.st_ino, found.st_mtime_ns, found.st_size) for found in map(os.stat, paths))


def _no_password() -> str:
    """Without this, OpenSSL would ask for one on the terminal."""
    raise CertificateError("the key has a password: give one without")


def _reason(error: Exception) -> str:
    if isinstance(error, CertificateError):
        return error.message
    if isinstance(error, ssl.SSLError):
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        return "the key is another certificate's" if mismatch else "a certificate and its key, in PEM, are expected"
    return f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
