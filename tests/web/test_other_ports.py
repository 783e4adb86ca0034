"""Browsers share cookies between all ports of a host. A program behind another port, such as a forwarded port of a sandbox, gets the
platform's cookie and can overwrite it. Neither gives it access, nor signs anybody in as another user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.harness.http_server import HttpServer
from tests.harness.platform import Platform, ok, sign_in
from tests.web.api import Api

pytestmark = pytest.mark.timeout(300)

COOKIE = "sandyard_session"
READ = """async url => {
  const read = async (path, options) => {
    try { return (await fetch(url + path, { credentials: "include", ...options })).type } catch (error) { return error.name }
  };
  return [
    await read("/api/v1/me"),
    await read("/api/v1/tokens", { method: "POST", body: "{}", headers: { "X-Sandyard-CSRF": "1" } }),
    await new Promise((resolve) => {
      const socket = new WebSocket(url.replace("http", "ws") + "/api/v1/sandboxes/sbx_1/terminal");
      socket.onopen = () => resolve("open");
      socket.onerror = () => resolve("error");
    }),
    JSON.stringify(localStorage),
  ];
}"""


class OtherPort(HttpServer):
    """A program on another port of the same host. It records the cookies it gets, and sets the cookie in `?set=`."""

    cookies: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: OtherPort

    def do_GET(self) -> None:
        self.server.cookies.append(self.headers.get("cookie", ""))
        self.send_response(200)
        for cookie in parse_qs(urlsplit(self.path).query).get("set", ()):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<h1>my app</h1>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_port() -> Iterator[OtherPort]:
    server = OtherPort(("127.0.0.1", 0), _Handler)
    server.cookies = []
    server.start()
    yield server
    server.stop()


def test_a_page_on_another_port_gets_the_cookie_but_no_access(
    page: Page, platform: Platform, other_port: OtherPort
) -> None:
    page.goto("/board")
    expect(page.get_by_role("heading", name="Board")).to_be_visible()
    app = page.context.new_page()
    app.goto(other_port.url)
    [cookie] = re.findall(rf"{COOKIE}=([^;\s]+)", other_port.cookies[0])
    for headers in ({}, {"X-Sandyard-CSRF": "1"}):
        with httpx.Client(base_url=f"{platform.url}/api/v1", cookies={COOKIE: cookie}, headers=headers) as thief:
            for method, path in (("GET", "/me"), ("GET", "/events"), ("POST", "/tokens"), ("POST", "/tickets")):
                assert thief.request(method, path, json={"name": "stolen"}).status_code == 401, path
    assert app.evaluate(READ, platform.url) == ["TypeError", "TypeError", "error", "{}"]
    app.close()
    page.reload()
    expect(page.get_by_role("heading", name="Board")).to_be_visible()


def test_a_cookie_set_by_another_port_leads_to_the_sign_in_page(
    page: Page, platform: Platform, api: Api, other_port: OtherPort
) -> None:
    credentials = {"name": "mallory", "password": "a long enough password"}
    api.post("/users", role="member", **credentials)
    with httpx.Client(base_url=f"{platform.url}/api/v1") as client:
        sign_in(client, **credentials)
        cookie, token = client.cookies[COOKIE], ok(client.post("/tokens", json={"name": "bait"}))["value"]
    page.goto("/board")
    expect(page.get_by_role("heading", name="Board")).to_be_visible()
    app = page.context.new_page()
    app.goto(f"{other_port.url}/?set={COOKIE}={cookie};Path=/api/v1/me")  # beside the platform's own cookie
    page.reload()
    expect(page.get_by_role("heading", name="Board")).to_be_visible()

    app.goto(f"{other_port.url}/?set={COOKIE}={cookie};Path=/")  # instead of it
    app.close()
    rejected: list[str] = []
    signed_in: list[str] = []
    page.on("response", lambda candidate: rejected.append(candidate.url) if candidate.status == 401 else None)
    page.on("request", lambda candidate: signed_in.append(candidate.url) if candidate.url.endswith("/login") else None)
    page.goto("/sessions")
    expect(page).to_have_url(re.compile(r"/sign-in\?next="))
    page.goto("about:blank")
    page.goto(f"/sign-in#token={token}")  # a link to sign in as the other user
    expect(page.get_by_text("only if you trust the link")).to_be_visible()
    expect(page.get_by_label("Token")).to_have_value(token)
    assert not signed_in
    assert len(rejected) < 10, rejected
    page.get_by_label("Token").fill(platform.token)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("button", name="Account: admin")).to_be_visible()


def test_a_lost_key_leads_to_the_sign_in_page(page: Page, platform: Platform) -> None:
    page.goto("/board")
    expect(page.get_by_role("heading", name="Board")).to_be_visible()
    page.evaluate("localStorage.clear()")
    page.reload()
    expect(page).to_have_url(re.compile("/sign-in"))
    page.route("**/api/v1/me", lambda route: route.fulfill(status=503, json={"detail": "The database is away."}))
    page.goto("about:blank")
    page.goto(f"/sign-in#token={platform.token}")
    expect(page.get_by_text("The database is away.")).to_be_visible()  # only a 401 means that nobody is signed in
    expect(page).to_have_url(re.compile("/sign-in"))
    page.unroute_all()
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("button", name="Account: admin")).to_be_visible()
