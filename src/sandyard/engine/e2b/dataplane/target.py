"""Determine which sandbox, and which of its ports, a request is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs

from sandyard.engine.contract import AGENT_PORT
from sandyard.engine.e2b.dataplane.asgi import Headers, Scope
from sandyard.kit.errors import InvalidInputError

SANDBOX_ID = b"e2b-sandbox-id"
SANDBOX_PORT = b"e2b-sandbox-port"
CONTROL_PREFIX = "/sandboxes/"
"""A path prefix that agents do not use: SDKs before 2.27 send the routing headers with `connect` too, which is a
control call."""
_HOST = re.compile(rb"(\d{1,5})-([A-Za-z0-9]+)(?:-[A-Za-z0-9]+)?\.")


@dataclass(frozen=True, slots=True)
class Target:
    sandbox_id: str
    port: int


@dataclass(frozen=True, slots=True)
class SignedFile:
    """The parameters of a signed `/files` URL, as they were signed."""

    path: str
    operation: str
    user: str
    signature: str
    expires: str | None


def strip_client_id(value: str) -> str:
    """Return a sandbox id without the second half that old clients add: `id-clientid`."""
    return value.partition("-")[0]


def find_target(scope: Scope) -> Target | None:
    """Return the target from the routing headers, otherwise from a host name `{port}-{id}.…`, or None if the request is
    for the control API. Raises InvalidInputError for an invalid port."""
    headers: Headers = scope["headers"]
    sandbox_id = port = host = None
    for name, value in headers:
        if name == SANDBOX_ID:
            sandbox_id = value
        elif name == SANDBOX_PORT:
            port = value
        elif name == b"host":
            host = value
    if sandbox_id is None:
        match = _HOST.match(host) if host else None
        if match is None:
            return None
        port, sandbox_id = match.group(1), match.group(2)
    elif scope["path"].startswith(CONTROL_PREFIX) and _parse_port(port) == AGENT_PORT:
        return None
    return Target(strip_client_id(sandbox_id.decode("latin-1").strip()), _parse_port(port))


def find_sandbox_id(host: str) -> str | None:
    """Return the sandbox id in a host name `{port}-{id}.…`, or None."""
    match = _HOST.match(host.encode("latin-1", "replace"))
    return None if match is None else match.group(2).decode()


def _parse_port(value: bytes | None) -> int:
    if value is None:
        return AGENT_PORT
    if not (value.isdigit() and len(value) <= 5 and 0 < int(value) < 65536):
        raise InvalidInputError("The sandbox port is not valid: use a number from 1 to 65535.")
    return int(value)


def parse_signed_file(scope: Scope) -> SignedFile | None:
    """Return the signature in the URL of a `/files` request, or None. Raises InvalidInputError."""
    if scope["path"] != "/files" or b"signature=" not in scope["query_string"]:
        return None
    operation = {"GET": "read", "HEAD": "read", "POST": "write", "PUT": "write"}.get(scope["method"])
    if operation is None:
        return None
    try:
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise InvalidInputError("The URL has too many parameters.") from None

    def get_first(name: str) -> str | None:
        return query[name][0] if name in query else None

    signature = get_first("signature")
    if signature is None:
        return None
    expires = get_first("signature_expiration")
    if expires is not None and not (expires.isascii() and expires.isdigit() and len(expires) <= 15):
        raise InvalidInputError("signature_expiration is not valid: use a Unix time in seconds.")
    return SignedFile(get_first("path") or "", operation, get_first("username") or "", signature, expires)
