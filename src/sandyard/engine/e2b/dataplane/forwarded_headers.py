"""The headers that describe a client to a server in a sandbox, and the TLS server name of that server.

`Host` is the client's, or the one that the sandbox's owner set (`maskRequestHost`). `X-Forwarded-Host`, `-Proto` and
`-For` describe how the client connected. Incoming ones are trusted only from programs on this machine: a proxy in
front, or the platform.
"""

from __future__ import annotations

import re

from sandyard.engine.e2b.dataplane.asgi import Headers, Scope, header
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
    believed = not client or is_loopback(client)
    host = header(headers, b"host") or f"localhost:{target.port}"
    said_host, said_proto = (header(headers, name) if believed else None for name in (HOST, PROTO))
    chain = [said] if believed and (said := header(headers, FOR)) else []
    made = {
        b"host": _mask_host(target, sandbox) or host,
        HOST: said_host or host,
        PROTO: said_proto or scope.get("scheme", "http"),
        FOR: ", ".join([*chain, client]) if client else "",
    }
    return [(name, value.encode("latin-1")) for name, value in made.items() if value]


def find_tls_server_name(target: Target, sandbox: Sandbox, scope: Scope) -> str | None:
    """Return the TLS server name for a port that uses TLS, or None."""
    ports = (sandbox.network.config or {}).get("httpsPorts")
    if not isinstance(ports, list) or target.port not in ports:
        return None
    host = _mask_host(target, sandbox) or header(scope["headers"], b"host") or ""
    name = host.partition(":")[0]
    return name if _NAME.fullmatch(name) else "localhost"


def _mask_host(target: Target, sandbox: Sandbox) -> str | None:
    mask = (sandbox.network.config or {}).get("maskRequestHost")
    return mask.replace("${PORT}", str(target.port)) if isinstance(mask, str) and mask else None
