"""Filter headers: pass on those of the browser and the server; drop the platform's, the engine's and hop-by-hop headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandyard.kit.headers import HOP_BY_HOP
from sandyard.platform.domain.previews.addresses import Addresses, PreviewPort
from sandyard.platform.domain.sandboxes.e2b import Route

Pairs = Iterable[tuple[bytes, bytes]]
PLATFORM_COOKIES = (b"sandyard_", b"__host-sandyard_")
"""Prefixes of the names of the platform's cookies."""
_DROPPED_REQUEST_HEADERS = frozenset((b"host", b"expect", b"forwarded"))
# date is added here; alt-svc would bypass this proxy; clear-site-data deletes cookies of the platform and of other previews
_DROPPED_RESPONSE_HEADERS = frozenset((b"date", b"alt-svc", b"clear-site-data"))
_DROPPED_REQUEST_PREFIXES = (b"e2b-", b"x-forwarded-")


def filter_request_headers(
    headers: Pairs, addresses: Addresses, preview: PreviewPort, route: Route
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a request. Leaves out Host if the route has its own."""
    host = addresses.make_host(preview).encode()
    if route.keeps_host:
        yield b"host", host
    for name, value in _drop_headers(headers, _DROPPED_REQUEST_HEADERS):
        if name.startswith(_DROPPED_REQUEST_PREFIXES):
            continue
        passed = _drop_platform_cookies(value) if name == b"cookie" else value
        if passed or not value:
            yield name, passed
    yield b"x-forwarded-host", host
    yield b"x-forwarded-proto", addresses.scheme.encode()
    for key, text in route.headers.items():
        yield key.lower().encode(), text.encode()


def filter_response_headers(headers: Pairs) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a response."""
    for name, value in _drop_headers(headers, _DROPPED_RESPONSE_HEADERS):
        if name != b"set-cookie":
            yield name, value
        elif not value.strip().lower().startswith(PLATFORM_COOKIES):
            yield name, _remove_domain(value)


def require_revalidation(headers: Pairs) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a response; if they do not say how long it may be cached, browsers must ask again each time.

    Otherwise browsers guess from Last-Modified, and show an old version of a page that was just changed.
    """
    pairs = list(headers)
    yield from pairs
    if not any(name in (b"cache-control", b"expires") for name, _ in pairs):
        yield b"cache-control", b"no-cache"


def restrict_framing(headers: Pairs, addresses: Addresses) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a response, and a second policy: only the platform and the preview itself may show it in a frame,
    other sandboxes' previews may not.

    Browsers ignore X-Frame-Options if there is such a policy, so the policy includes what the server's X-Frame-Options says.
    """
    pairs = list(headers)
    yield from pairs
    if not addresses.platform_origins:
        return
    ancestors = " ".join(("'self'", *addresses.platform_origins))
    options = _list_frame_options(pairs)
    if options:
        ancestors = "'self'" if options == {b"sameorigin"} else "'none'"
    yield b"content-security-policy", f"frame-ancestors {ancestors}".encode()


def _list_frame_options(pairs: Pairs) -> set[bytes]:
    """Return the values of X-Frame-Options that have an effect."""
    values: set[bytes] = set()
    for name, value in pairs:
        if name == b"content-security-policy" and b"frame-ancestors" in value.lower():
            return set()
        if name == b"x-frame-options":
            values.update(token.strip().lower() for token in value.split(b","))
    return values if values & {b"deny", b"sameorigin"} else set()


def _drop_headers(headers: Pairs, dropped: frozenset[bytes]) -> Iterator[tuple[bytes, bytes]]:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")}
    chunked = any(name == b"transfer-encoding" for name, _ in pairs)
    for name, value in pairs:
        if name in HOP_BY_HOP or name in dropped or (name in named and name != b"cookie"):
            continue
        if chunked and name == b"content-length":
            continue
        yield name, value


def _drop_platform_cookies(value: bytes) -> bytes:
    cookies = [cookie.strip() for cookie in value.split(b";")]
    return b"; ".join(cookie for cookie in cookies if cookie and not cookie.lower().startswith(PLATFORM_COOKIES))


def _remove_domain(cookie: bytes) -> bytes:
    """Remove the Domain attribute: such a cookie would be sent to other sandboxes' previews and to the platform."""
    value, *attributes = cookie.split(b";")
    kept = [attribute for attribute in attributes if attribute.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join((value, *kept))
