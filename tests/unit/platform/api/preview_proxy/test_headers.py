"""Which headers are forwarded and which are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandyard.platform.api.preview_proxy.headers import (
    filter_request_headers,
    filter_response_headers,
    require_revalidation,
    restrict_framing,
)
from sandyard.platform.api.preview_proxy.pages import RouteFailure, find_route_failure
from sandyard.platform.domain.previews.addresses import Addresses, PreviewPort
from sandyard.platform.domain.sandboxes.e2b import Route

ADDRESSES = Addresses("https", "previews.example.net", None)
PREVIEW = PreviewPort("sbx_abc", 3000)
ROUTE = Route("http://127.0.0.1:1", {"E2b-Sandbox-Id": "i1", "E2b-Sandbox-Port": "3000"}, keeps_host=True)
ADDED = {
    b"x-forwarded-host": b"3000-abc.previews.example.net",
    b"x-forwarded-proto": b"https",
    b"e2b-sandbox-id": b"i1",
    b"e2b-sandbox-port": b"3000",
}


def sent(*pairs: tuple[bytes, bytes], route: Route = ROUTE) -> list[tuple[bytes, bytes]]:
    """Return the headers sent, without those that are always added."""
    found = list(filter_request_headers(pairs, ADDRESSES, PREVIEW, route))
    for pair in ADDED.items():
        assert found.count(pair) == (1 if route is ROUTE or not pair[0].startswith(b"e2b-") else 0)
    assert len({name for name, _ in found}) == len(found), "no duplicates"
    return [pair for pair in found if pair not in ADDED.items()]


HOST = (b"host", b"3000-abc.previews.example.net")


def test_browser_cannot_choose_route() -> None:
    given = [(b"E2B-Sandbox-Id", b"other"), (b"e2b-sandbox-port", b"49983"), (b"e2b-traffic-access-token", b"guess")]
    given += [(b"x-forwarded-host", b"evil"), (b"X-Forwarded-For", b"1.2.3.4"), (b"forwarded", b"for=1.2.3.4")]
    assert sent((b"host", b"whatever"), *given) == [HOST]


def test_route_with_own_host_drops_host_header() -> None:
    assert sent((b"host", b"x"), route=Route("https://3000-i1.e2b.app", {}, keeps_host=False)) == []


def test_drops_hop_by_hop_headers() -> None:
    given = [
        (b"connection", b"keep-alive, X-Private"),
        (b"x-private", b"1"),
        (b"te", b"trailers"),
        (b"upgrade", b"h2c"),
    ]
    given += [(b"transfer-encoding", b"chunked"), (b"content-length", b"5"), (b"expect", b"100-continue")]
    assert sent(*given, (b"accept", b"*/*")) == [HOST, (b"accept", b"*/*")]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (b"a=1; sandyard_session=x; b=2", b"a=1; b=2"),
        (b"sandyard_preview=x; __Host-sandyard_preview=y", None),
        (b"SANDYARD_session=x;a=1", b"a=1"),
        (b"a=sandyard_session", b"a=sandyard_session"),
        (b"connection", b"connection"),
    ],
)
def test_does_not_forward_platform_cookies(given: bytes, left: bytes | None) -> None:
    expected = [HOST] + ([(b"cookie", left)] if left else [])
    assert sent((b"connection", b"cookie"), (b"cookie", given)) == expected


def test_forwards_credentials_of_app() -> None:
    pairs = [(b"authorization", b"Bearer x"), (b"x-api-key", b"y"), (b"origin", b"http://a")]
    assert sent(*pairs) == [HOST, *pairs]


def test_response_headers() -> None:
    given = [
        (b"Content-Type", b"text/html"),
        (b"Set-Cookie", b"a=1; Domain=.example.net; Path=/; HttpOnly"),
        (b"set-cookie", b"b=2;domain = localhost"),
        (b"set-cookie", b"sandyard_preview=3; Path=/"),
        (b"set-cookie", b" __Host-sandyard_preview=3; Path=/; Secure"),
        (b"X-Frame-Options", b"DENY"),
        (b"Connection", b"close"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Alt-Svc", b'h3=":443"'),
        (b"Clear-Site-Data", b'"cookies", "storage"'),
        (b"Date", b"now"),
    ]
    assert list(filter_response_headers(given)) == [
        (b"content-type", b"text/html"),
        (b"set-cookie", b"a=1; Path=/; HttpOnly"),
        (b"set-cookie", b"b=2"),
        (b"x-frame-options", b"DENY"),
    ]


def test_browsers_do_not_guess_how_long_a_response_may_be_cached() -> None:
    page = [(b"last-modified", b"Thu, 01 Jan 2026 00:00:00 GMT"), (b"etag", b'"1"')]
    assert list(require_revalidation(page)) == [*page, (b"cache-control", b"no-cache")]
    for given in ([(b"cache-control", b"max-age=60")], [(b"expires", b"Thu, 01 Jan 2099 00:00:00 GMT")]):
        assert list(require_revalidation(given)) == given


@pytest.mark.parametrize(
    ("given", "ancestors"),
    [
        ([], b"'self' http://localhost:8700"),
        ([(b"x-frame-options", b"SAMEORIGIN")], b"'self'"),
        ([(b"x-frame-options", b"deny")], b"'none'"),
        ([(b"x-frame-options", b"DENY, SAMEORIGIN")], b"'none'"),
        ([(b"x-frame-options", b"nonsense")], b"'self' http://localhost:8700"),
        (
            [(b"x-frame-options", b"DENY"), (b"content-security-policy", b"Frame-Ancestors *")],
            b"'self' http://localhost:8700",
        ),
    ],
)
def test_framing_is_restricted(given: list[tuple[bytes, bytes]], ancestors: bytes) -> None:
    addresses = Addresses("http", "localhost", 8700, platform_origins=("http://localhost:8700",))
    policy = (b"content-security-policy", b"frame-ancestors " + ancestors)
    assert list(restrict_framing(given, addresses)) == [*given, policy]
    unknown = replace(addresses, platform_origins=())
    assert list(restrict_framing(given, unknown)) == given, "no policy can allow an IPv6 address"


@pytest.mark.parametrize(
    ("status", "body", "meaning"),
    [
        (502, b'{"code": 502, "sandboxId": "i1", "port": 1, "message": "The sandbox is running but port is not open"}', RouteFailure.CLOSED),
        (502, b'{"code": 502, "sandboxId": "i1", "message": "The sandbox was not found"}', RouteFailure.MISSING),
        (502, b"<html><head><title>Closed Port Error</title></head></html>", RouteFailure.CLOSED),
        (502, b"<html><head><title>Sandbox Not Found</title></head></html>", RouteFailure.MISSING),
        (502, b"<html><title>Bad Gateway</title></html>", None),
        (502, b'{"message": "port is not open"}', None),
        (502, b"[1]", None),
        (502, b"[" * 10_000, None),
        (502, b"", None),
        (200, b"<title>Closed Port Error</title>", None),
        (502, b"<title>Closed Port Error</title>" + b" " * 20_000, None),
    ],
)  # fmt: skip
def test_recognizes_error_answers_of_engine(status: int, body: bytes, meaning: RouteFailure | None) -> None:
    assert find_route_failure(status, body) is meaning
