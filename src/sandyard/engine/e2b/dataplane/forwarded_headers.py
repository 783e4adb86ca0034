"""The headers that describe a client to a server in a sandbox, and the TLS server name of that server.

`Host` is the client's, or the one that the sandbox's owner set (`maskRequestHost`). `X-Forwarded-Host`, `-Proto` and
`-For` describe how the client connected. Incoming ones are trusted only from programs on this machine: a proxy in
front, or the platform.
"""

from __future__ import annotations

import re

from sandyard.engine.e2b.dataplane.asgi import Headers, Scope, get_header
from sandyard.engine.e2b.dataplane.target import Target
from sandyard.engine.sandboxes.model import Sandbox
from sandyard.kit.listen import is_loopback

FOR, HOST, PROTO = b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"
REPLACED = frozenset((b"host", b"forwarded", FOR, HOST, PROTO))
"""Client headers that are replaced. `forwarded` has the same meaning in a format that nothing here checks."""
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


def make_forwarded_headers(target: Target, sandbox: Sandbox, scope: Scope) -> Headers:
    """Return the headers to send instead of those in REPLACED."""
    headers: Headers = scope["headers"]
    client = scope["client"][0] if scope.get("client") else ""
    is_trusted = not client or is_loopback(client)
    host = get_header(headers, b"host") or f"localhost:{target.port}"
    forwarded_host, forwarded_proto = (get_header(headers, name) if is_trusted else None for name in (HOST, PROTO))
    chain = [forwarded_for] if is_trusted and (forwarded_for := get_header(headers, FOR)) else []
    values = {
        b"host": _mask_host(target, sandbox) or host,
        HOST: forwarded_host or host,
        PROTO: forwarded_proto or scope.get("scheme", "http"),
        FOR: ", ".join([*chain, client]) if client else "",
    }
    return [(name, value.encode("latin-1")) for name, value in values.items() if value]


def find_tls_server_name(target: Target, sandbox: Sandbox, scope: Scope) -> str | None:
    """Return the TLS server name for a port that uses TLS, or None."""
    ports = (sandbox.network.config or {}).get("httpsPorts")
    if not isinstance(ports, list) or target.port not in ports:
        return None
    host = _mask_host(target, sandbox) or get_header(scope["headers"], b"host") or ""
    name = host.partition(":")[0]
    return name if _NAME.fullmatch(name) else "localhost"


def _mask_host(target: Target, sandbox: Sandbox) -> str | None:
    mask = (sandbox.network.config or {}).get("maskRequestHost")
    return mask.replace("${PORT}", str(target.port)) if isinstance(mask, str) and mask else None
