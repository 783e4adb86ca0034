"""The host's side of enrollment: join an engine, renew the certificate, leave. Connects to the port at which the engine
accepts hosts."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx

from sandyard.engine.hosts.authority import ENGINE_NAME, compute_fingerprint
from sandyard.engine.hosts.enrollment import JoinResponse, sign_leave
from sandyard.engine.hosts.identity import HostIdentity, HostRegistration, make_certificate_request
from sandyard.engine.hosts.join_token import JoinToken
from sandyard.engine.hosts.machines import Claim, TokenOffer
from sandyard.kit.errors import ConflictError, ForbiddenError, SandyardError, UnreachableError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

TIMEOUT_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 * 1024
RENEW_BEFORE_END_S = 10 * 24 * 3600.0
"""How long before it expires a certificate is renewed. Hosts' certificates are valid for 30 days."""
CHECK_SECONDS, RETRY_SECONDS = 6 * 3600.0, 300.0
_NOT_UNDERSTOOD = (
    "The engine sent a response that this version of Sandyard does not understand. Install the engine's release."
)


class JoinRefusedError(SandyardError):
    """The engine refused the request."""


def join(
    token: JoinToken,
    identity: HostIdentity,
    *,
    name: str,
    address: str | None,
    port: int,
    labels: Mapping[str, str],
) -> HostRegistration:
    """Join the engine that created this token. Nothing is sent before the engine has proved that it is the one in the token.
    Without `address`, the engine uses the source address of the connection. Blocks. Raises ConflictError if this machine
    has joined another engine, ForbiddenError if the engine is not the one in the token, UnreachableError and
    JoinRefusedError."""
    known = identity.find()
    authority = _fetch_authority(token.address, token.fingerprint)
    if known is not None and compute_fingerprint(identity.authority_path.read_bytes()) != token.fingerprint:
        raise ConflictError(
            f"This machine has joined another engine, at {known.engine}. Leave it first with `sandyard host leave`, or choose "
            "another --data-dir."
        )
    body = {
        "token": token.id,
        "secret": token.secret.reveal(),
        "certificateRequest": identity.prepare_certificate_request(),
        "name": name,
        "address": address,
        "port": port,
        "labels": dict(labels),
    }
    with _open_client(token.address, authority) as client:
        response = _parse_response(_post(client, token.address, "/join", body), authority)
    registration = HostRegistration(response.host_id, name, token.address, port)
    identity.store(registration, response)
    return registration


def claim_token(address: str, fingerprint: str, source: str, claim: Claim) -> TokenOffer:
    """Ask the engine with this authority for the join token of this machine. Nothing is sent before the engine has proved its identity.
    Blocks. Raises ForbiddenError if it is another engine, UnreachableError and JoinRefusedError."""
    body = {
        "source": source,
        "credential": claim.credential.reveal(),
        "hostID": claim.host_id,
        "problem": claim.problem,
    }
    with _open_client(address, _fetch_authority(address, fingerprint)) as client:
        answer = _post(client, address, "/claim", body)
    try:
        token = JoinToken.parse(answer["token"]) if answer["token"] is not None else None
        return TokenOffer(str(answer["name"]), str(answer["address"]), token)
    except (KeyError, TypeError, AttributeError):
        raise JoinRefusedError(_NOT_UNDERSTOOD) from None


def renew(identity: HostIdentity) -> None:
    """Get and store a new certificate for the same key. Blocks. Raises UnreachableError and JoinRefusedError."""
    registration = identity.get()
    authority = identity.authority_path.read_bytes()
    body = {"certificateRequest": make_certificate_request(identity.load_key())}
    with _open_client(registration.engine, authority) as client:
        response = _parse_response(_post(client, registration.engine, "/renew", body), authority)
    identity.store_certificate(response)


def renew_if_due(identity: HostIdentity, now: float) -> bool:
    """Renew the host's certificate if it expires soon. Return whether it was renewed. Blocks. Raises what `renew` raises."""
    if identity.read_expiry() - now >= RENEW_BEFORE_END_S:
        return False
    renew(identity)
    log.info("host_certificate_renewed", host=identity.get().id)
    return True


class CertificateRenewal:
    """A thread that renews the host's certificate before it expires, while the context is open. Failures are logged and
    retried."""

    def __init__(self, identity: HostIdentity) -> None:
        self._identity = identity
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="certificate-renewal", daemon=True)

    def __enter__(self) -> CertificateRenewal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()  # not joined, because the thread may be waiting for the engine; it is a daemon

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                renew_if_due(self._identity, time.time())
                pause = CHECK_SECONDS
            except (SandyardError, OSError) as error:
                pause = RETRY_SECONDS
                log.warning("host_certificate_not_renewed", reason=str(error))


def leave(identity: HostIdentity, *, force: bool = False) -> HostRegistration:
    """Ask the engine to remove this host, then delete the host's identity. With `force`, delete it even if the engine refuses or
    does not respond. Blocks. Raises UnreachableError, and JoinRefusedError if the engine still has sandboxes here."""
    registration = identity.get()
    key = identity.load_key()
    body = {
        "certificateRequest": make_certificate_request(key),
        "signature": sign_leave(key, registration.id),
        "force": force,
    }
    try:
        with _open_client(registration.engine, identity.authority_path.read_bytes()) as client:
            _post(client, registration.engine, "/leave", body)
    except (UnreachableError, JoinRefusedError):
        if not force:
            raise
    identity.remove()
    return registration


def _fetch_authority(address: str, fingerprint: str) -> bytes:
    """Return the certificate of the engine's authority. The connection is not trusted: the certificate is compared with the
    fingerprint. Raises ForbiddenError if it differs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with httpx.Client(
        base_url=f"https://{address}", verify=context, timeout=TIMEOUT_SECONDS, trust_env=False
    ) as client:
        answer = _send(client, address, "GET", "/authority")
    try:
        pem = str(answer["certificate"]).encode()
        is_expected = compute_fingerprint(pem) == fingerprint
    except (KeyError, TypeError, ValueError):
        is_expected, pem = False, b""
    if not is_expected:
        raise ForbiddenError(
            f"{address} is not the engine that this machine shall join: its authority has a different fingerprint. Nothing was "
            "sent to it. Check the address, and that nobody intercepts the connection. Then create a new token."
        )
    return pem


def _open_client(address: str, authority: bytes) -> httpx.Client:
    """Return a client that connects only to the engine with this authority. The address need not be in its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority.decode())
    return httpx.Client(base_url=f"https://{address}", verify=context, timeout=TIMEOUT_SECONDS, trust_env=False)


def _post(client: httpx.Client, address: str, path: str, body: Mapping[str, Any]) -> Any:
    return _send(client, address, "POST", path, json=body, extensions={"sni_hostname": ENGINE_NAME})


def _send(client: httpx.Client, address: str, method: str, path: str, **options: Any) -> Any:
    try:
        response, content = _exchange(client, method, path, **options)
    except (httpx.TransportError, httpx.InvalidURL, ssl.SSLError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ForbiddenError(
                f"{address} is not the engine that this host has joined: its certificate is from another authority. Check the "
                "address, and that nobody intercepts the connection."
            ) from error
        raise UnreachableError(
            f"The engine does not respond at {address}: {error or type(error).__name__}. Check that it runs with "
            "--join-address, and that firewalls allow this machine to connect to that port."
        ) from error
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = {}
    if not response.is_success:
        message = answer.get("message") if isinstance(answer, dict) else None
        raise JoinRefusedError(
            str(message or f"{address} returned {response.status_code}. Check that an engine listens at this address.")
        )
    return answer


def _exchange(client: httpx.Client, method: str, path: str, **options: Any) -> tuple[httpx.Response, bytes]:
    """Send a request and read the response, at most MAX_ANSWER_BYTES of it, because the server may not be authenticated."""
    with client.stream(method, path, **options) as response:
        content = bytearray()
        for piece in response.iter_raw():
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise httpx.ReadError("the answer is too large")
        return response, bytes(content)


def _parse_response(answer: Any, authority: bytes) -> JoinResponse:
    try:
        return JoinResponse(
            str(answer["id"]), str(answer["certificate"]).encode(), authority, float(answer["expiresAt"])
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise JoinRefusedError(_NOT_UNDERSTOOD) from None
