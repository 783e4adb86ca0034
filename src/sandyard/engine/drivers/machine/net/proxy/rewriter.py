"""Rewrite a request for a rule's host: for that host only, with the rule's headers, and with our own framing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import h11

from sandyard.engine.contract import HostRule, Outbound
from sandyard.engine.drivers.machine.net.proxy.dialler import RefusedError
from sandyard.engine.drivers.machine.net.proxy.host_detection import normalise_host
from sandyard.kit.errors import SandyardError
from sandyard.kit.headers import HOP_BY_HOP

Headers = list[tuple[bytes, bytes]]
Message = h11.Request | h11.Response | h11.InformationalResponse

_REFUSED_METHODS = frozenset((b"CONNECT", b"TRACE"))  # CONNECT opens a tunnel, TRACE would return the headers
_VALID_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


async def rewrite_request(
    request: h11.Request, host: str, rule: HostRule, outbound: Outbound, *, secure: bool
) -> h11.Request:
    """Return the request to send. Raises RefusedError."""
    if request.method in _REFUSED_METHODS:
        raise RefusedError(405, f"{request.method.decode()} requests are not allowed for a host with a network rule.")
    if not request.target.startswith(b"/") and request.target != b"*":
        raise RefusedError(400, "The request target must be a path, not a complete URL.")
    hosts = [value for name, value in request.headers if name == b"host"]
    if len(hosts) != 1 or normalise_host(hosts[0], 443 if secure else 80) != host:
        raise RefusedError(421, f"This connection is for {host}. Requests for another host need a separate connection.")
    upgrade = is_websocket(request)
    added = await _fill_headers(host, rule, outbound, secure=secure)
    replaced = {name.lower() for name, _ in added}
    headers = filter_headers(request, (b"expect", *replaced))
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
        headers.append((b"Transfer-Encoding", b"chunked"))
    headers += added
    if upgrade:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return h11.Request(method=request.method, target=request.target, headers=headers)


def rewrite_response_headers(response: h11.Response | h11.InformationalResponse) -> Headers:
    """Return the headers of a response as the sandbox gets them."""
    headers = filter_headers(response, (b"alt-svc",))  # it would lead clients to HTTP/3, which bypasses the proxy
    if any(name == b"transfer-encoding" for name, _ in response.headers):
        headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
        headers.append((b"Transfer-Encoding", b"chunked"))
    if response.status_code == 101:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return headers


def ends_connection(response: h11.Response) -> bool:
    """Return whether the server will close the connection after this response."""
    framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in response.headers)
    bodiless = response.status_code in (204, 304)
    return (
        b"close" in _list_connection_tokens(response.headers)
        or response.http_version < b"1.1"
        or not (framed or bodiless)
    )


def is_websocket(request: h11.Request) -> bool:
    upgrades = [value.strip().lower() for name, value in request.headers if name == b"upgrade"]
    return (
        upgrades == [b"websocket"]
        and b"upgrade" in _list_connection_tokens(request.headers)
        and request.method == b"GET"
    )


def filter_headers(message: Message, also_dropped: Sequence[bytes]) -> Headers:
    """Return the headers in their original spelling, without those that concern only one connection, and without
    `also_dropped`."""
    named = _list_connection_tokens(message.headers) - {
        b"content-length",
        b"host",
    }  # needed even if `Connection` names them
    dropped = HOP_BY_HOP | named | set(also_dropped)
    return [(name, value) for name, value in message.headers.raw_items() if name.lower() not in dropped]


def _list_connection_tokens(headers: Sequence[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    }


async def _fill_headers(host: str, rule: HostRule, outbound: Outbound, *, secure: bool) -> Headers:
    added: Headers = []
    for name, value in rule.headers:
        if not secure and outbound.holds_secret(value):
            raise RefusedError(502, f"A network rule adds a secret to requests to {host}. Use https instead of http.")
        try:
            content = (await outbound.fill(value)).encode()
        except SandyardError as error:
            raise RefusedError(502, f"Could not set the header {name} for {host}: {error.message}") from error
        if not _VALID_VALUE.fullmatch(content) or content != content.strip():
            raise RefusedError(
                502,
                f"Could not set the header {name} for {host}: the secret contains characters that are not allowed in a header.",
            )
        added.append((name.encode(), content))
    return added
