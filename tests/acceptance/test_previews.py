"""Test previews of servers in sandboxes: access control, own host names, and resuming a paused sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.acceptance.preview_client import PORT, create_preview_url, start_server
from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, sign_in, until

pytestmark = pytest.mark.timeout(400)
BACKGROUND_REQUEST = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
"""Headers of a request that a page makes by itself."""


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine) as platform:
        yield platform


@pytest.fixture(scope="module")
def sandbox(platform: Platform) -> str:
    return start_server(platform)


class BrowserWebSocket(connect):
    """A WebSocket as browsers open it: a redirect is an error."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Browser:
    """A browser that resolves `*.localhost` and keeps cookies by host, like real ones."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.cookies: dict[str, dict[str, str]] = {}
        self._http = httpx.Client(base_url=platform.url, timeout=60)

    def get(self, url: str, **headers: str) -> httpx.Response:
        return self.request("GET", url, headers=headers)

    def request(
        self, method: str, url: str, *, headers: dict[str, str] | None = None, content: bytes | None = None
    ) -> httpx.Response:
        with self.stream(method, url, headers=headers, content=content) as response:
            response.read()
        return response

    @contextlib.contextmanager
    def stream(
        self, method: str, url: str, *, headers: dict[str, str] | None = None, content: bytes | None = None
    ) -> Iterator[httpx.Response]:
        parts = urlsplit(url)
        sent_headers = {"Host": parts.netloc, **self.cookie_header(parts.netloc), **(headers or {})}
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        as_written = {"target": (target or "/").encode()}
        with self._http.stream(method, "/", headers=sent_headers, content=content, extensions=as_written) as response:
            for cookie in response.headers.get_list("set-cookie"):
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies.setdefault(parts.netloc, {})[name] = value
            yield response

    def cookie_header(self, host: str) -> dict[str, str]:
        cookies = self.cookies.get(host)
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())} if cookies else {}

    def open(self, url: str) -> httpx.Response:
        """Open the URL like a user who clicks on it."""
        response = self.get(url)
        assert response.status_code == 303, response.text
        assert response.headers["referrer-policy"] == "no-referrer"
        return self.get(response.headers["location"])

    def socket(self, url: str, origin: str | None = None, **options: Any) -> BrowserWebSocket:
        parts = urlsplit(url)
        headers = {**self.cookie_header(parts.netloc), "Origin": origin or f"http://{parts.netloc}"}
        return BrowserWebSocket(
            f"ws://{parts.netloc}{parts.path}", host="127.0.0.1", port=self._platform.port, additional_headers=headers,
            proxy=None, **options,
        )  # fmt: skip


def without_query(url: str) -> str:
    return url.partition("?")[0]


def test_a_ticket_opens_a_preview_once_for_one_browser(platform: Platform, sandbox: str) -> None:
    url = create_preview_url(platform, sandbox, path="/hello?a=b")
    host = urlsplit(url).netloc
    assert host == f"{PORT}-{sandbox.removeprefix('sbx_')}.localhost:{platform.port}"
    browser, stranger = Browser(platform), Browser(platform)
    assert stranger.get(without_query(url)).status_code == 401

    page = browser.open(url)
    assert page.status_code == 200
    received = page.json()
    assert (received["method"], received["path"]) == ("GET", "/hello?a=b"), "the ticket must not be forwarded"
    assert received["headers"]["host"] == host
    assert (received["headers"]["x-forwarded-host"], received["headers"]["x-forwarded-proto"]) == (host, "http")
    assert "cookie" not in received["headers"], "the preview cookie must not be forwarded"
    cookies = [
        item.lower()
        for item in Browser(platform).get(create_preview_url(platform, sandbox)).headers.get_list("set-cookie")
    ]
    assert all("httponly" in item and "domain=" not in item for item in cookies)

    used = stranger.get(url)
    assert used.status_code == 401
    assert "Open this preview from Sandyard" in used.text
    assert browser.get(url).status_code == 303, "a used ticket must not lock out a browser that has a cookie"
    assert "set-cookie" not in browser.get(url).headers


def test_engine_ids_give_no_access_to_previews(engine: Engine, platform: Platform, sandbox: str) -> None:
    """Ids of the engine appear in links, logs and headers, so they must give no access."""
    with engine.client() as client:
        ids = [item["sandboxID"] for item in ok(client.get("/v2/sandboxes"))]
    assert ids
    for engine_id in ids:
        by_header = {"E2b-Sandbox-Id": engine_id, "E2b-Sandbox-Port": str(PORT)}
        by_name = {"Host": f"{PORT}-{engine_id}.localhost:{engine.port}"}
        for headers in (by_header, by_name):
            assert httpx.get(engine.url, headers=headers).status_code == 403
    received = Browser(platform).open(create_preview_url(platform, sandbox)).json()
    assert not [name for name in received["headers"] if "token" in name], "the token must not be forwarded"


def test_a_cookie_is_valid_for_one_port_of_one_sandbox(platform: Platform, sandbox: str) -> None:
    other = start_server(platform)
    browser = Browser(platform)
    assert browser.open(create_preview_url(platform, sandbox)).status_code == 200
    cookie = next(iter(browser.cookies.values()))
    for url in (create_preview_url(platform, other), create_preview_url(platform, sandbox, port=3001)):
        other_browser = Browser(platform)
        other_browser.cookies[urlsplit(url).netloc] = dict(cookie)
        assert other_browser.get(without_query(url)).status_code == 401
    elsewhere = urlsplit(create_preview_url(platform, other))
    moved_ticket = f"http://{urlsplit(create_preview_url(platform, sandbox)).netloc}/?{elsewhere.query}"
    assert Browser(platform).get(moved_ticket).status_code == 401, "a ticket must not work for another sandbox"
    ok(platform.client.delete(f"/sandboxes/{other}"), 204)


def test_previews_end_at_logout_and_are_refused_to_other_users(platform: Platform, sandbox: str) -> None:
    admin = platform.client
    member = ok(admin.post("/users", json={"name": "guest", "role": "admin", "password": "long enough words"}), 201)[
        "id"
    ]
    login = httpx.Client(base_url=f"{platform.url}/api/v1", timeout=60)
    sign_in(login, name="guest", password="long enough words")
    url = ok(login.post(f"/sandboxes/{sandbox}/previews", json={"port": PORT}), 201)["url"]
    browser = Browser(platform)
    assert browser.open(url).status_code == 200
    ok(login.post("/logout"), 204)
    until(lambda: browser.get(without_query(url)).status_code == 401)

    ok(admin.patch(f"/users/{member}", json={"role": "member"}))
    sign_in(login, name="guest", password="long enough words")
    assert login.post(f"/sandboxes/{sandbox}/previews", json={"port": PORT}).status_code == 404
    assert login.get(f"/sandboxes/{sandbox}/ports").status_code == 404


def test_preview_hosts_do_not_serve_the_api_of_the_platform(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = create_preview_url(platform, sandbox)
    browser.open(url)
    bearer = f"Bearer {platform.token}"
    for path in ("/api/v1/me", "/health", "/mcp", "/metrics", "/api/v1/openapi.json"):
        preview_path = f"{without_query(url).rstrip('/')}{path}"
        assert Browser(platform).get(preview_path, Authorization=bearer).status_code == 401
        received = browser.get(preview_path, Authorization=bearer)
        assert received.json()["path"] == path, "the server must get the path unchanged"
        assert received.json()["headers"]["authorization"] == bearer, "the server must get the credentials of its users"
    for host in (
        "localhost.localhost",
        "0-abc.localhost",
        "3000-.localhost",
        "99999-abc.localhost",
        "49983-abc.localhost",
    ):
        assert Browser(platform).get(f"http://{host}:{platform.port}/api/v1/me").status_code == 404
    unknown = Browser(platform).get(f"http://3000-nobody.localhost:{platform.port}/")
    assert unknown.status_code == 401, "the response must not reveal which sandboxes exist"


def test_every_method_and_large_bodies_are_forwarded(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = without_query(create_preview_url(platform, sandbox))
    browser.open(create_preview_url(platform, sandbox))
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        body = None if method in ("GET", "OPTIONS") else b"x" * 100
        received = browser.request(method, f"{url}a/../b%2F%20c?d=%3F", content=body).json()
        assert (received["method"], received["path"], received["size"]) == (
            method,
            "/a/../b%2F%20c?d=%3F",
            len(body or b""),
        )
    assert browser.request("HEAD", url).content == b""
    large = b"0123456789abcdef" * (1 << 20)
    received = browser.request("POST", f"{url}sum", content=large).json()
    assert (received["size"], received["sha256"]) == (len(large), hashlib.sha256(large).hexdigest())
    response = browser.get(f"{url}large")
    assert len(response.content) == 32 << 20
    assert browser.get(f"{url}status/418").status_code == 418
    redirect = browser.get(f"{url}redirect")
    assert (redirect.status_code, redirect.headers["location"]) == (302, "http://169.254.169.254/")


def test_cookies_of_the_server_are_limited_to_its_host(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = create_preview_url(platform, sandbox)
    host = urlsplit(url).netloc
    browser.open(url)
    before = dict(browser.cookies[host])
    response = browser.get(f"{without_query(url)}cookies")
    assert response.headers.get_list("set-cookie") == ["mine=1; Path=/", "wide=2; Path=/"]
    assert browser.cookies[host].items() >= before.items(), "the server must not be able to change the preview cookie"
    received = browser.get(without_query(url)).json()
    assert received["headers"]["cookie"] == "mine=1; wide=2"


def test_a_stream_is_not_buffered_and_ends_when_the_reader_disconnects(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = without_query(create_preview_url(platform, sandbox))
    browser.open(create_preview_url(platform, sandbox))
    with browser.stream("GET", f"{url}drip") as response:
        assert response.headers["content-type"] == "text/event-stream"
        received = b""
        for piece in response.iter_raw():  # on a slow machine one chunk may contain several events
            received += piece
            if received.count(b"\n\n") > 1:
                break
        assert received.startswith(b"data: 0\n\ndata: 1\n\n")
    until(lambda: browser.get(f"{url}dripping").text == "0")


def test_websockets_are_forwarded_and_checked(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = without_query(create_preview_url(platform, sandbox))
    browser.open(create_preview_url(platform, sandbox))

    async def exchange_messages() -> None:
        async with browser.socket(f"{url}echo", subprotocols=["one", "chat"], max_size=None) as websocket:
            assert websocket.subprotocol == "chat"
            for message in ("hello", b"\x00\xff", "", "ü" * 1000, b"x" * (3 << 20)):
                await websocket.send(message)
                assert await websocket.recv() == message
            await websocket.send("close 4321")
            with pytest.raises(ConnectionClosed):
                await websocket.recv()
            assert (websocket.close_code, websocket.close_reason) == (4321, "as you wish")
        for path, status in (("status/418", 418), ("redirect", 302)):
            with pytest.raises(InvalidStatus) as refused:
                await browser.socket(f"{url}{path}")
            assert refused.value.response.status_code == status
        with pytest.raises(InvalidStatus) as refused:
            await Browser(platform).socket(f"{url}echo")
        assert refused.value.response.status_code == 401
        with pytest.raises(InvalidStatus) as refused:
            await browser.socket(f"{url}echo", origin="http://3000-other.localhost:8700")
        assert refused.value.response.status_code == 403

    asyncio.run(exchange_messages())


def test_a_closed_port_shows_an_error_page(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    for agent in ("Mozilla/5.0 Chrome/140.0", "curl/8"):
        response = browser.get(
            browser.get(create_preview_url(platform, sandbox, port=3999)).headers["location"], **{"User-Agent": agent}
        )
        assert response.status_code == 502
        assert "port 3999" in response.text
        assert 'http-equiv="refresh"' in response.text


def test_page_loads_resume_a_sandbox_and_background_requests_do_not(platform: Platform) -> None:
    client = platform.client
    sandbox = start_server(platform)
    browser = Browser(platform)
    url = create_preview_url(platform, sandbox)
    assert browser.open(url).status_code == 200

    def status() -> str:
        return str(ok(client.get(f"/sandboxes/{sandbox}"))["status"])

    open_websockets: list[ClientConnection] = []

    async def hold_websocket() -> None:
        async with browser.socket(f"{without_query(url)}echo") as websocket:
            open_websockets.append(websocket)
            with contextlib.suppress(ConnectionClosed):
                await websocket.recv()

    holder = threading.Thread(target=lambda: asyncio.run(hold_websocket()))
    holder.start()
    until(lambda: open_websockets)
    ok(client.post(f"/sandboxes/{sandbox}/pause"))
    holder.join(30)
    assert not holder.is_alive(), "a pause must close open connections"
    assert ok(client.get(f"/sandboxes/{sandbox}/ports")) == {"items": [], "sleeping": True}
    script = browser.get(without_query(url), **BACKGROUND_REQUEST)
    assert script.status_code == 503
    assert "paused" in script.text
    assert status() == "paused"
    assert browser.get(without_query(url)).status_code == 200
    assert status() == "running"

    ok(client.delete(f"/sandboxes/{sandbox}"), 204)
    gone = browser.get(without_query(url))
    assert gone.status_code == 404
    assert "deleted" in gone.text
    assert client.get(f"/sandboxes/{sandbox}/ports").status_code == 410


@pytest.mark.slow  # it waits until a sandbox is paused
def test_listing_ports_does_not_keep_a_sandbox_running(engine: Engine) -> None:
    with running(engine, IDLE_SECONDS="6", RECONCILE_EVERY_S="2", HEALTH_EVERY_S="2") as platform:
        sandbox = start_server(platform)
        client = platform.client
        ports = ok(client.get(f"/sandboxes/{sandbox}/ports"))
        assert not ports["sleeping"]
        [item] = [item for item in ports["items"] if item["port"] == PORT]
        assert (item["address"], item["process"]) == ("127.0.0.1", "python3")
        assert item["url"] == without_query(create_preview_url(platform, sandbox))
        until(lambda: ok(client.get(f"/sandboxes/{sandbox}/ports"))["sleeping"])
        ok(client.delete(f"/sandboxes/{sandbox}"), 204)


def test_previews_work_after_a_restart_of_the_platform(platform: Platform, sandbox: str) -> None:
    """The tokens for the ports of the sandbox were only in the memory of the platform."""
    browser = Browser(platform)
    url = create_preview_url(platform, sandbox)
    assert browser.open(url).status_code == 200
    platform.restart()
    assert browser.get(without_query(url)).status_code == 200
