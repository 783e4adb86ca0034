"""Servers in sandboxes, seen through previews: by the right people, at their own host names, awake when somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.acceptance.platform import Platform, ok, running, until
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(400)
PORT = 3000
SERVER = (Path(__file__).parent / "preview_server.py").read_bytes()
ASLEEP = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
"""Of what a page asks by itself."""


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine) as platform:
        yield platform


@pytest.fixture(scope="module")
def sandbox(platform: Platform) -> str:
    return serve(platform)


def serve(platform: Platform) -> str:
    """A sandbox with a server at PORT."""
    client = platform.client
    made: str = ok(client.post("/sandboxes", json={}), 201)["id"]
    ok(client.put(f"/sandboxes/{made}/files", params={"path": "/home/user/server.py"}, content=SERVER))
    command = f"nohup python3 /home/user/server.py {PORT} >/dev/null 2>&1 &"  # a command that runs would keep it awake
    ok(client.post(f"/sandboxes/{made}/execute", json={"command": command}))
    until(lambda: PORT in [one["port"] for one in ok(client.get(f"/sandboxes/{made}/ports"))["items"]])
    return made


def opening(platform: Platform, sandbox: str, port: int = PORT, path: str = "/") -> str:
    url: str = ok(platform.client.post(f"/sandboxes/{sandbox}/previews", json={"port": port, "path": path}), 201)["url"]
    return url


class Line(connect):
    """A WebSocket as browsers open it: a redirect is a refusal."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Browser:
    """One that knows where `*.localhost` is, and keeps cookies by host, as real ones do."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.cookies: dict[str, dict[str, str]] = {}
        self._http = httpx.Client(base_url=platform.url, timeout=60)

    def get(self, url: str, **headers: str) -> httpx.Response:
        return self.ask("GET", url, headers=headers)

    def ask(
        self, method: str, url: str, *, headers: dict[str, str] | None = None, content: bytes | None = None
    ) -> httpx.Response:
        with self.stream(method, url, headers=headers, content=content) as answer:
            answer.read()
        return answer

    @contextlib.contextmanager
    def stream(
        self, method: str, url: str, *, headers: dict[str, str] | None = None, content: bytes | None = None
    ) -> Iterator[httpx.Response]:
        parts = urlsplit(url)
        sent = {"Host": parts.netloc, **self.shown(parts.netloc), **(headers or {})}
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        as_written = {"target": (target or "/").encode()}
        with self._http.stream(method, "/", headers=sent, content=content, extensions=as_written) as answer:
            for cookie in answer.headers.get_list("set-cookie"):
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies.setdefault(parts.netloc, {})[name] = value
            yield answer

    def shown(self, host: str) -> dict[str, str]:
        kept = self.cookies.get(host)
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in kept.items())} if kept else {}

    def open(self, url: str) -> httpx.Response:
        """As a person does who clicks on it."""
        answer = self.get(url)
        assert answer.status_code == 303, answer.text
        assert answer.headers["referrer-policy"] == "no-referrer"
        return self.get(answer.headers["location"])

    def socket(self, url: str, origin: str | None = None, **options: Any) -> Line:
        parts = urlsplit(url)
        headers = {**self.shown(parts.netloc), "Origin": origin or f"http://{parts.netloc}"}
        return Line(
            f"ws://{parts.netloc}{parts.path}", host="127.0.0.1", port=self._platform.port, additional_headers=headers,
            proxy=None, **options,
        )  # fmt: skip


def clean(url: str) -> str:
    return url.partition("?")[0]


def test_a_ticket_opens_it_once_for_one_browser(platform: Platform, sandbox: str) -> None:
    url = opening(platform, sandbox, path="/hello?a=b")
    host = urlsplit(url).netloc
    assert host == f"{PORT}-{sandbox.removeprefix('sbx_')}.localhost:{platform.port}"
    browser, stranger = Browser(platform), Browser(platform)
    assert stranger.get(clean(url)).status_code == 401

    page = browser.open(url)
    assert page.status_code == 200
    told = page.json()
    assert (told["method"], told["path"]) == ("GET", "/hello?a=b"), "the ticket is not the server's to see"
    assert told["headers"]["host"] == host
    assert (told["headers"]["x-forwarded-host"], told["headers"]["x-forwarded-proto"]) == (host, "http")
    assert "cookie" not in told["headers"], "what opens the preview stays with the platform"
    cookies = [one.lower() for one in Browser(platform).get(opening(platform, sandbox)).headers.get_list("set-cookie")]
    assert all("httponly" in one and "domain=" not in one for one in cookies)

    used = stranger.get(url)
    assert used.status_code == 401
    assert "Open this preview from Sandyard" in used.text
    assert browser.get(url).status_code == 303, "who has come in already is not bothered by a used ticket"
    assert "set-cookie" not in browser.get(url).headers


def test_nobody_looks_past_the_platform(engine: Engine, platform: Platform, sandbox: str) -> None:
    """The engine's ids are in links, logs and headers: they open nothing."""
    with engine.client() as client:
        ids = [one["sandboxID"] for one in ok(client.get("/v2/sandboxes"))]
    assert ids
    for engine_id in ids:
        by_header = {"E2b-Sandbox-Id": engine_id, "E2b-Sandbox-Port": str(PORT)}
        by_name = {"Host": f"{PORT}-{engine_id}.localhost:{engine.port}"}
        for way in (by_header, by_name):
            assert httpx.get(engine.url, headers=way).status_code == 403
    told = Browser(platform).open(opening(platform, sandbox)).json()
    assert not [name for name in told["headers"] if "token" in name], "the token is not the server's to see"


def test_a_cookie_is_good_for_one_port_of_one_sandbox(platform: Platform, sandbox: str) -> None:
    other = serve(platform)
    browser = Browser(platform)
    assert browser.open(opening(platform, sandbox)).status_code == 200
    cookie = next(iter(browser.cookies.values()))
    for url in (opening(platform, other), opening(platform, sandbox, port=3001)):
        thief = Browser(platform)
        thief.cookies[urlsplit(url).netloc] = dict(cookie)
        assert thief.get(clean(url)).status_code == 401
    elsewhere = urlsplit(opening(platform, other))
    moved = f"http://{urlsplit(opening(platform, sandbox)).netloc}/?{elsewhere.query}"
    assert Browser(platform).get(moved).status_code == 401, "nor is a ticket"
    ok(platform.client.delete(f"/sandboxes/{other}"), 204)


def test_others_are_refused_and_rights_end(platform: Platform, sandbox: str) -> None:
    admin = platform.client
    member = ok(admin.post("/users", json={"name": "guest", "role": "admin", "password": "long enough words"}), 201)[
        "id"
    ]
    login = httpx.Client(base_url=f"{platform.url}/api/v1", headers={"X-Sandyard-CSRF": "1"}, timeout=60)
    ok(login.post("/login", json={"name": "guest", "password": "long enough words"}))
    url = ok(login.post(f"/sandboxes/{sandbox}/previews", json={"port": PORT}), 201)["url"]
    browser = Browser(platform)
    assert browser.open(url).status_code == 200
    ok(login.post("/logout"), 204)
    until(lambda: browser.get(clean(url)).status_code == 401)

    ok(admin.patch(f"/users/{member}", json={"role": "member"}))
    ok(login.post("/login", json={"name": "guest", "password": "long enough words"}))
    assert login.post(f"/sandboxes/{sandbox}/previews", json={"port": PORT}).status_code == 404
    assert login.get(f"/sandboxes/{sandbox}/ports").status_code == 404


def test_nothing_of_the_platform_is_there(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = opening(platform, sandbox)
    browser.open(url)
    bearer = f"Bearer {platform.token}"
    for path in ("/api/v1/me", "/health", "/mcp", "/metrics", "/api/v1/openapi.json"):
        there = f"{clean(url).rstrip('/')}{path}"
        assert Browser(platform).get(there, Authorization=bearer).status_code == 401
        told = browser.get(there, Authorization=bearer)
        assert told.json()["path"] == path, "it is the server's own path"
        assert told.json()["headers"]["authorization"] == bearer, "and so are its users' credentials"
    for host in (
        "localhost.localhost",
        "0-abc.localhost",
        "3000-.localhost",
        "99999-abc.localhost",
        "49983-abc.localhost",
    ):
        assert Browser(platform).get(f"http://{host}:{platform.port}/api/v1/me").status_code == 404
    unknown = Browser(platform).get(f"http://3000-nobody.localhost:{platform.port}/")
    assert unknown.status_code == 401, "which sandboxes there are is not told"


def test_every_method_and_large_bodies(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = clean(opening(platform, sandbox))
    browser.open(opening(platform, sandbox))
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        body = None if method in ("GET", "OPTIONS") else b"x" * 100
        told = browser.ask(method, f"{url}a/../b%2F%20c?d=%3F", content=body).json()
        assert (told["method"], told["path"], told["size"]) == (method, "/a/../b%2F%20c?d=%3F", len(body or b""))
    assert browser.ask("HEAD", url).content == b""
    large = b"0123456789abcdef" * (1 << 20)
    told = browser.ask("POST", f"{url}sum", content=large).json()
    assert (told["size"], told["sha256"]) == (len(large), hashlib.sha256(large).hexdigest())
    answer = browser.get(f"{url}large")
    assert len(answer.content) == 32 << 20
    assert browser.get(f"{url}status/418").status_code == 418
    redirect = browser.get(f"{url}redirect")
    assert (redirect.status_code, redirect.headers["location"]) == (302, "http://169.254.169.254/")


def test_cookies_of_the_server_are_its_own(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = opening(platform, sandbox)
    host = urlsplit(url).netloc
    browser.open(url)
    before = dict(browser.cookies[host])
    answer = browser.get(f"{clean(url)}cookies")
    assert answer.headers.get_list("set-cookie") == ["mine=1; Path=/", "wide=2; Path=/"]
    assert browser.cookies[host].items() >= before.items(), "it cannot set ours"
    told = browser.get(clean(url)).json()
    assert told["headers"]["cookie"] == "mine=1; wide=2"


def test_a_stream_comes_as_it_is_made_and_ends_with_its_reader(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = clean(opening(platform, sandbox))
    browser.open(opening(platform, sandbox))
    with browser.stream("GET", f"{url}drip") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        heard = b""
        for piece in answer.iter_raw():  # of a slow machine there may be several in one
            heard += piece
            if heard.count(b"\n\n") > 1:
                break
        assert heard.startswith(b"data: 0\n\ndata: 1\n\n")
    until(lambda: browser.get(f"{url}dripping").text == "0")


def test_websockets(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    url = clean(opening(platform, sandbox))
    browser.open(opening(platform, sandbox))

    async def speak() -> None:
        async with browser.socket(f"{url}echo", subprotocols=["one", "chat"], max_size=None) as line:
            assert line.subprotocol == "chat"
            for message in ("hello", b"\x00\xff", "", "ü" * 1000, b"x" * (3 << 20)):
                await line.send(message)
                assert await line.recv() == message
            await line.send("close 4321")
            with pytest.raises(ConnectionClosed):
                await line.recv()
            assert (line.close_code, line.close_reason) == (4321, "as you wish")
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

    asyncio.run(speak())


def test_a_closed_port_says_so(platform: Platform, sandbox: str) -> None:
    browser = Browser(platform)
    for agent in ("Mozilla/5.0 Chrome/140.0", "curl/8"):
        answer = browser.get(
            browser.get(opening(platform, sandbox, port=3999)).headers["location"], **{"User-Agent": agent}
        )
        assert answer.status_code == 502
        assert "port 3999" in answer.text
        assert 'http-equiv="refresh"' in answer.text


def test_it_wakes_for_people_and_for_nobody_else(platform: Platform) -> None:
    client = platform.client
    sandbox = serve(platform)
    browser = Browser(platform)
    url = opening(platform, sandbox)
    assert browser.open(url).status_code == 200

    def status() -> str:
        return str(ok(client.get(f"/sandboxes/{sandbox}"))["status"])

    lines: list[ClientConnection] = []

    async def hold() -> None:
        async with browser.socket(f"{clean(url)}echo") as line:
            lines.append(line)
            with contextlib.suppress(ConnectionClosed):
                await line.recv()

    holding = threading.Thread(target=lambda: asyncio.run(hold()))
    holding.start()
    until(lambda: lines)
    ok(client.post(f"/sandboxes/{sandbox}/pause"))
    holding.join(30)
    assert not holding.is_alive(), "a pause ends what leads in"
    assert ok(client.get(f"/sandboxes/{sandbox}/ports")) == {"items": [], "sleeping": True}
    script = browser.get(clean(url), **ASLEEP)
    assert script.status_code == 503
    assert "paused" in script.text
    assert status() == "paused"
    assert browser.get(clean(url)).status_code == 200
    assert status() == "running"

    ok(client.delete(f"/sandboxes/{sandbox}"), 204)
    gone = browser.get(clean(url))
    assert gone.status_code == 404
    assert "deleted" in gone.text
    assert client.get(f"/sandboxes/{sandbox}/ports").status_code == 410


@pytest.mark.slow  # it waits for a sandbox to fall asleep
def test_asking_for_ports_keeps_nobody_awake(engine: Engine) -> None:
    with running(engine, IDLE_SECONDS="6", RECONCILE_EVERY_S="2", HEALTH_EVERY_S="2") as platform:
        sandbox = serve(platform)
        client = platform.client
        found = ok(client.get(f"/sandboxes/{sandbox}/ports"))
        assert not found["sleeping"]
        [one] = [item for item in found["items"] if item["port"] == PORT]
        assert (one["address"], one["process"]) == ("127.0.0.1", "python3")
        assert one["url"] == clean(opening(platform, sandbox))
        until(lambda: ok(client.get(f"/sandboxes/{sandbox}/ports"))["sleeping"])
        ok(client.delete(f"/sandboxes/{sandbox}"), 204)


def test_previews_after_a_restart_of_the_platform(platform: Platform, sandbox: str) -> None:
    """What opens the sandbox's ports was only in its memory."""
    browser = Browser(platform)
    url = opening(platform, sandbox)
    assert browser.open(url).status_code == 200
    platform.restart()
    assert browser.get(clean(url)).status_code == 200
