"""Requests to the host name of a preview, with a test server in place of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandyard.platform.api.preview_proxy.middleware import PLAIN_COOKIE, SECURE_COOKIE
from sandyard.platform.domain.previews.model import PreviewSleepingError
from tests.unit.platform.api.preview_proxy.preview_harness import PreviewHarness, create_preview_harness
from tests.unit.platform.api.sockets import connect
from tests.unit.platform.world import client


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PreviewHarness]:
    async with create_preview_harness(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
async def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PreviewHarness]:
    names = {"public_url": "https://yard.example.com", "preview_domain": "previews.example.net"}
    async with create_preview_harness(tmp_path, monkeypatch, **names) as made:
        yield made


async def test_on_localhost_cookies_work_in_frames_and_tabs(harness: PreviewHarness) -> None:
    async with client(harness.app) as web:
        answer = await web.get(await harness.create_url("/a?b=c&d"))
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            harness.url("/a?b=c&d").replace(".localhost", ".localhost:8700"),
        )
        framed, plain = answer.headers.get_list("set-cookie")
        assert framed.startswith(f"{SECURE_COOKIE}=")
        assert framed.endswith("Path=/; Max-Age=2592000; HttpOnly; Secure; SameSite=None; Partitioned")
        assert plain.startswith(f"{PLAIN_COOKIE}=")
        assert plain.endswith("Path=/; Max-Age=2592000; HttpOnly; SameSite=Lax")
        assert answer.headers["cache-control"] == "no-store"
    async with harness.browser() as web:
        answer = await web.get(harness.url("/x"))
        assert (answer.status_code, answer.text) == (200, "hello")
        assert answer.headers["x-frame-options"] == "DENY", "the server's own header"
        assert answer.headers.get_list("content-security-policy") == ["frame-ancestors 'none'"], "the same for a policy"
        assert b"sandyard" not in harness.server.requests[-1].lower()


async def check_framing(harness: PreviewHarness, ancestors: str) -> None:
    """Check who may show the preview, and the platform's own page in its place, in a frame."""
    harness.server.reply = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Security-Policy: default-src https:\r\n\r\n"
    )
    async with harness.browser() as web:
        answer = await web.get(harness.url())
        assert answer.headers.get_list("content-security-policy") == ["default-src https:", ancestors]
        web.headers["Cookie"] = ""
        own_page = await web.get(harness.url())
        assert own_page.status_code == 401
        assert own_page.headers.get_list("content-security-policy")[1:] == [ancestors]


async def test_on_localhost_only_the_platform_may_show_a_preview_in_a_frame(harness: PreviewHarness) -> None:
    await check_framing(harness, "frame-ancestors 'self' http://127.0.0.1:8700 http://localhost:8700")


async def test_over_https_only_the_platform_may_show_a_preview_in_a_frame(public: PreviewHarness) -> None:
    platform = "https://yard.example.com http://localhost:8700 http://127.0.0.1:8700"
    await check_framing(public, f"frame-ancestors 'self' {platform}")


async def test_over_https_there_is_one_secure_cookie(public: PreviewHarness) -> None:
    url = await public.create_url()
    assert url.startswith(public.url("/?sandyard_ticket="))
    async with client(public.app) as web:
        [cookie] = (await web.get(url)).headers.get_list("set-cookie")
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert "; Secure; SameSite=None; Partitioned" in cookie
    async with public.browser() as web:
        assert (await web.get(public.url())).text == "hello"
        assert b"x-forwarded-proto: https" in public.server.requests[-1].lower()
        web.headers["Cookie"] = web.headers["Cookie"].replace(SECURE_COOKIE, PLAIN_COOKIE)
        assert (await web.get(public.url())).status_code == 401, "ignores a cookie that other sites could have set"
    async with client(public.app, base="https://yard.example.com") as web:
        assert (await web.get("/health")).status_code == 200
        assert (await web.get("https://any.previews.example.net/health")).status_code == 404


async def test_rejects_requests_without_credentials(harness: PreviewHarness) -> None:
    async with client(harness.app, harness.owner) as web:
        for url in (
            harness.url(),
            harness.url("/api/v1/me"),
            harness.url("/?sandyard_ticket=guess"),
            harness.url("/?sandyard_ticket"),
        ):
            answer = await web.get(url)
            assert answer.status_code == 401
            assert "Open this preview from Sandyard" in answer.text
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert (await web.post(await harness.create_url())).status_code == 401, "only navigation uses a ticket"
    assert not harness.server.requests
    messages = await connect(harness.app, urlsplit(harness.url("/echo")).path, {"host": urlsplit(harness.url()).netloc})
    assert messages[0]["status"] == 401


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Origin": "OWN"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate", "Origin": "null"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, True),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Origin": "OWN"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "SIBLING"}, True),
        ({"Origin": "http://3000-other.localhost:8700"}, False),
        ({"Origin": "http://localhost:8700"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Origin": "http://evil.example"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, False),
    ],
)
async def test_rejects_requests_of_other_origins(
    harness: PreviewHarness, headers: dict[str, str], passes: bool
) -> None:
    own = harness.url("")
    names = {"OWN": own, "SIBLING": own.replace("3000-", "8000-")}
    async with harness.browser() as web:
        answer = await web.post(
            harness.url("/do"), headers={name: names.get(value, value) for name, value in headers.items()}
        )
    assert answer.status_code == (200 if passes else 403)
    assert bool(harness.server.requests) is passes


async def test_only_navigation_wakes_sandbox(harness: PreviewHarness) -> None:
    async with harness.browser() as web:
        for mode in ("navigate", "cors", "no-cors", None):
            await web.get(harness.url(), headers={"Sec-Fetch-Mode": mode} if mode else {})
        assert harness.wake_requests == [True, False, False, True]
        harness.failure = PreviewSleepingError()
        answer = await web.get(harness.url())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "paused" in answer.text


async def test_reports_path_shown_in_frame_to_its_user(harness: PreviewHarness) -> None:
    address = f"/api/v1/sandboxes/{harness.sandbox.id}/previews"
    frame = {"Sec-Fetch-Dest": "iframe", "Sec-Fetch-Mode": "navigate"}
    async with client(harness.app, harness.owner, base=harness.world.settings.url) as owner, harness.browser() as web:
        assert (await owner.get(f"{address}/3000")).json() == {"path": None}
        for path, more in [
            ("/first?page=1", {"Sec-Fetch-Site": "cross-site"}),
            ("/script.js", {"Sec-Fetch-Dest": "script", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Site": "same-origin"}),
            ("/frame-of-its-own", {"Sec-Fetch-Site": "same-origin"}),
        ]:
            await web.get(harness.url(path), headers={**frame, **more})
        assert (await owner.get(f"{address}/3000")).json() == {"path": "/first?page=1"}
        await web.get(harness.url("/link"), headers={**frame, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-User": "?1"})
        assert (await owner.get(f"{address}/3000")).json() == {"path": "/link"}
        assert (await owner.get(f"{address}/8000")).json() == {"path": None}
    stranger = await harness.world.create_person("stranger")
    async with client(harness.app, stranger, base=harness.world.settings.url) as other:
        assert (await other.get(f"{address}/3000")).status_code == 404


def _answer(status: str, body: bytes, kind: bytes = b"text/plain") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), kind, len(body), body)


async def test_forwards_bad_gateway_of_server(harness: PreviewHarness) -> None:
    body = b"<title>my upstream is away</title>" + b"." * 50_000
    harness.server.reply = _answer("502 Bad Gateway", body)
    async with harness.browser() as web:
        answer = await web.get(harness.url())
    assert (answer.status_code, answer.content) == (502, body)


async def test_page_for_closed_port_refreshes_for_a_while(harness: PreviewHarness) -> None:
    body = b'{"code": 502, "message": "The sandbox is running but port is not open", "sandboxId": "i1", "port": 3000}'
    harness.server.reply = _answer("502 Bad Gateway", body, b"application/json")
    async with harness.browser() as web:
        for refreshes in (True, True, False):
            answer = await web.get(harness.url())
            assert answer.status_code == 502
            assert "Nothing is listening on port 3000" in answer.text
            assert ('http-equiv="refresh"' in answer.text) is refreshes
            for _ in range(6 if refreshes else 0):
                await harness.world.clock.advance(10)
                harness.previews.record_closed_port(next(iter(harness.previews.closed_ports)))


@pytest.mark.parametrize("reply", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 300_000])
async def test_server_that_does_not_speak_http(harness: PreviewHarness, reply: bytes) -> None:
    harness.server.reply = reply
    async with harness.browser() as web:
        answer = await web.get(harness.url())
    assert answer.status_code == 502
    assert "closed the connection before it responded" in answer.text


async def test_engine_is_unreachable(harness: PreviewHarness) -> None:
    harness.server.port = 1
    async with harness.browser() as web:
        answer = await web.get(harness.url())
    assert answer.status_code == 503
    assert "engine could not be reached" in answer.text


async def test_internal_error_shows_no_details(harness: PreviewHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Callable[[], None]:
        raise RuntimeError("secret words")

    async with harness.browser() as web:
        monkeypatch.setattr(harness.previews, "count_connection", broken)
        answer = await web.get(harness.url())
    assert answer.status_code == 500
    assert "secret words" not in answer.text


async def test_without_preview_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://yard.example.com"
    async with (
        create_preview_harness(tmp_path, monkeypatch, public_url=url) as harness,
        client(harness.app, harness.owner, base=url) as web,
    ):
        answer = await web.post(f"/api/v1/sandboxes/{harness.sandbox.id}/previews", json={"port": 3000})
        assert (answer.status_code, answer.json()["code"]) == (501, "unsupported")
        assert "SANDYARD_PREVIEW_DOMAIN" in answer.json()["detail"]
        for body in ({}, {"port": 0}, {"port": 70000}, {"port": 3000, "path": 1}, {"port": 3000, "more": 1}):
            assert (await web.post(f"/api/v1/sandboxes/{harness.sandbox.id}/previews", json=body)).status_code == 400
        stranger = await harness.world.create_person("stranger")
        hidden = await web.get(f"/api/v1/sandboxes/{harness.sandbox.id}/ports", headers=stranger.headers)
        assert hidden.status_code == 404
