"""A request for a rule's host, as it goes on: for that host alone, with the rule's headers, in a framing of our own."""

from __future__ import annotations

import re
from collections.abc import Sequence

import h11

from sandyard.engine.contract import HostRule, Outbound
from sandyard.engine.drivers.namespace.net.proxy.dialling import RefusedError
from sandyard.engine.drivers.namespace.net.proxy.hello import plain_host
from sandyard.kit.errors import SandyardError
from sandyard.kit.headers import HOP_BY_HOP

Headers = list[tuple[bytes, bytes]]
Message = h11.Request | h11.Response | h11.InformationalResponse

_REFUSED_METHODS = frozenset((b"CONNECT", b"TRACE"))  # one opens a tunnel, the other asks to be shown the headers
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


async def outgoing(request: h11.Request, host: str, rule: HostRule, outbound: Outbound, *, secure: bool) -> h11.Request:
    """Raises RefusedError."""
    if request.method in _REFUSED_METHODS:
        raise RefusedError(405, f"{request.method.decode()} is not passed on to a host that a network rule is for.")
    if not request.target.startswith(b"/") and request.target != b"*":
        raise RefusedError(400, "A request names its path alone, not a whole address.")
    hosts = [value for name, value in request.headers if name == b"host"]
    if len(hosts) != 1 or plain_host(hosts[0], 443 if secure else 80) != host:
        raise RefusedError(421, f"This connection is for {host}: requests for another host need one of their own.")
    upgrade = is_websocket(request)
    added = await _filled(host, rule, outbound, secure=secure)
    replaced = {name.lower() for name, _ in added}
    headers = end_to_end(request, (b"expect", *replaced))
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
        headers.append((b"Transfer-Encoding", b"chunked"))
    headers += added
    if upgrade:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return h11.Request(method=request.method, target=request.target, headers=headers)


def incoming(response: h11.Response | h11.InformationalResponse) -> Headers:
    """The headers of an answer as the sandbox gets them."""
    headers = end_to_end(response, (b"alt-svc",))  # which would lead clients to HTTP/3, around us
    if any(name == b"transfer-encoding" for name, _ in response.headers):
        headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
        headers.append((b"Transfer-Encoding", b"chunked"))
    if response.status_code == 101:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return headers


def ends_connection(response: h11.Response) -> bool:
    """Whether the server will close after this answer."""
    framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in response.headers)
    bodiless = response.status_code in (204, 304)
    return b"close" in _tokens(response.headers) or response.http_version < b"1.1" or not (framed or bodiless)


def is_websocket(request: h11.Request) -> bool:
    asked = [value.strip().lower() for name, value in request.headers if name == b"upgrade"]
    return asked == [b"websocket"] and b"upgrade" in _tokens(request.headers) and request.method == b"GET"


def end_to_end(message: Message, besides: Sequence[bytes]) -> Headers:
    """Its headers, in its spelling, without what is about one connection only, and without these."""
    named = _tokens(message.headers) - {b"content-length", b"host"}  # whatever `Connection` says, these are needed
    dropped = HOP_BY_HOP | named | set(besides)
    return [(name, value) for name, value in message.headers.raw_items() if name.lower() not in dropped]


def _tokens(headers: Sequence[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    }


async def _filled(host: str, rule: HostRule, outbound: Outbound, *, secure: bool) -> Headers:
    added: Headers = []
    for name, value in rule.headers:
        if not secure and outbound.holds_secret(value):
            raise RefusedError(502, f"A network rule puts a secret into requests to {host}: use https, not http.")
        try:
            content = (await outbound.fill(value)).encode()
        except SandyardError as error:
            raise RefusedError(502, f"The header {name} for {host} cannot be filled in: {error.message}") from error
        if not _VALUE.fullmatch(content) or content != content.strip():
            raise RefusedError(
                502, f"The header {name} for {host} cannot be filled in: the secret holds what no header may."
            )
        added.append((name.encode(), content))
    return added
