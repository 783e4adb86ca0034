"""Filter headers: pass on those of the browser and the server; drop the platform's, the engine's and hop-by-hop headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandyard.kit.headers import HOP_BY_HOP
from sandyard.platform.domain.previews.addresses import Addresses, Place
from sandyard.platform.domain.sandboxes.e2b import Route

Pairs = Iterable[tuple[bytes, bytes]]
OURS = (b"sandyard_", b"__host-sandyard_")
"""Prefixes of the names of the platform's cookies."""
_NOT_SENT = frozenset((b"host", b"expect", b"forwarded"))
_NOT_ANSWERED = frozenset((b"date", b"alt-svc"))  # date is added here; alt-svc would bypass this proxy
_NOT_SENT_AHEAD = (b"e2b-", b"x-forwarded-")


def filter_request_headers(
    given: Pairs, addresses: Addresses, place: Place, route: Route
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request. Leaves out Host if the route has its own."""
    host = addresses.host(place).encode()
    if route.keeps_host:
        yield b"host", host
    for name, value in _passing(given, _NOT_SENT):
        if name.startswith(_NOT_SENT_AHEAD):
            continue
        passed = _others_cookies(value) if name == b"cookie" else value
        if passed or not value:
            yield name, passed
    yield b"x-forwarded-host", host
    yield b"x-forwarded-proto", addresses.scheme.encode()
    for key, word in route.headers.items():
        yield key.lower().encode(), word.encode()


def filter_response_headers(given: Pairs) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a response."""
    for name, value in _passing(given, _NOT_ANSWERED):
        if name != b"set-cookie":
            yield name, value
        elif not value.strip().lower().startswith(OURS):
            yield name, _of_this_host(value)


def _passing(given: Pairs, dropped: frozenset[bytes]) -> Iterator[tuple[bytes, bytes]]:
    pairs = [(name.lower(), value) for name, value in given]
    named = {word.strip().lower() for name, value in pairs if name == b"connection" for word in value.split(b",")}
    chunked = any(name == b"transfer-encoding" for name, _ in pairs)
    for name, value in pairs:
        if name in HOP_BY_HOP or name in dropped or (name in named and name != b"cookie"):
            continue
        if chunked and name == b"content-length":
            continue
        yield name, value


def _others_cookies(value: bytes) -> bytes:
    cookies = [one.strip() for one in value.split(b";")]
    return b"; ".join(one for one in cookies if one and not one.lower().startswith(OURS))


def _of_this_host(cookie: bytes) -> bytes:
    """Remove the Domain attribute: such a cookie would be sent to other sandboxes' previews and to the platform."""
    value, *attributes = cookie.split(b";")
    kept = [one for one in attributes if one.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join((value, *kept))
