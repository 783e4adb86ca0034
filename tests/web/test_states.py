"""What a page shows when there is nothing, when the platform does not answer, and when it answers that something is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.acceptance.platform import Platform
from tests.web.browser import DESK, PATIENCE_MS, accessible, signed_in, visit
from tests.web.yard import Yard

pytestmark = pytest.mark.timeout(300)

MOST_BYTES = 250_000
NOTHING = {
    "board": ("/board", "Welcome to Sandyard"),
    "sessions": ("/sessions", "No sessions"),
    "sandboxes": ("/sandboxes", "No sandboxes"),
    "projects": ("/projects", "No projects yet"),
    "schedules": ("/schedules", "No schedules"),
    "usage": ("/usage", "No usage"),
    "secrets": ("/settings?tab=secrets", "No secrets"),
    "tokens": ("/settings?tab=tokens", "No tokens"),
    "audit": ("/audit", "Administrators only"),
}
READS = {
    "board": ("/board", "/board?", "Board"),
    "sessions": ("/sessions", "/sessions?", "Sessions"),
    "sandboxes": ("/sandboxes", "/sandboxes?", "Sandboxes"),
    "projects": ("/projects", "/projects?", "Projects"),
    "project": ("/projects/{project}", "/projects/{project}", "General"),
    "agents": ("/agents", "/agents", "Agents"),
    "providers": ("/agents?tab=providers", "/model-providers?", "Model providers"),
    "schedules": ("/schedules", "/schedules?", "Schedules"),
    "usage": ("/usage", "/usage/days?", "Usage and cost"),
    "audit": ("/audit", "/audit?", "Audit log"),
    "tokens": ("/settings?tab=tokens", "/tokens?", "API tokens"),
    "session": ("/sessions/{session}", "/sessions/{session}", "Seen later"),
}
"""Address, what it reads from the platform, and the heading that stands there afterwards."""
ALWAYS = ("board", "session")
"""They show it in one way; the others, which do the same, only in the long run."""
PROBLEM = {
    "type": "about:blank",
    "title": "Internal error",
    "status": 500,
    "code": "internal_error",
    "detail": "Something broke on our side.",
    "requestId": "req_to_be_quoted",
}


@pytest.fixture(scope="module")
def places(yard: Yard) -> dict[str, str]:
    return {"project": yard.sample, "session": str(yard.session("Seen later")["id"])}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_there_yet(name: str, newcomer: Page) -> None:
    address, words = NOTHING[name]
    visit(newcomer, address)
    expect(newcomer.get_by_text(re.compile(words)).first).to_be_visible()
    accessible(newcomer)


@pytest.fixture(scope="module")
def newcomer(browser: Browser, platform: Platform, yard: Yard) -> Iterator[Page]:
    """Somebody who has nothing and sees nothing of others."""
    named = {"name": "newcomer", "password": "a long enough password"}
    yard.post("/users", role="member", **named)
    context = browser.new_context(base_url=platform.url, viewport=DESK, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    answer = context.request.post("/api/v1/login", data=named, headers={"X-Sandyard-CSRF": "1"})
    assert answer.ok, answer.text()
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in READS]
)
def test_the_platform_cannot_be_reached(name: str, page: Page, places: dict[str, str]) -> None:
    address, read, heading = READS[name]
    wanted = read.format(**places)
    page.route(lambda url: _asks(url, wanted), lambda route: route.abort("connectionrefused"))
    page.goto(address.format(**places))
    told = page.get_by_role("alert").filter(has_text="Not connected").first
    expect(told).to_be_visible()
    accessible(page)
    page.unroute_all()
    told.get_by_role("button", name="Retry").click()
    expect(told).to_be_hidden()
    expect(page.get_by_role("heading", name=heading).first).to_be_visible()


def test_the_platform_answers_that_it_is_broken(page: Page) -> None:
    def broken(route: Route) -> None:
        route.fulfill(status=500, content_type="application/problem+json", body=json.dumps(PROBLEM))

    page.route(lambda url: _asks(url, "/schedules?"), broken)
    page.goto("/schedules")
    told = page.get_by_role("alert").filter(has_text="Something went wrong")
    expect(told).to_contain_text("Something broke on our side.")
    expect(told).to_contain_text("req_to_be_quoted")
    page.unroute_all()
    told.get_by_role("button", name="Retry").click()
    expect(told).to_be_hidden()


def test_nothing_at_all_can_be_reached_at_first(newcomer: Page) -> None:
    page = newcomer
    page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    page.goto("/schedules")
    told = page.get_by_role("alert").filter(has_text="Not connected")
    expect(told).to_be_visible()
    page.unroute_all()
    told.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()


def test_what_was_written_stays_when_it_cannot_be_sent(page: Page) -> None:
    page.goto("/settings?tab=secrets")
    page.get_by_role("button", name="Add a secret").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("KEPT")
    dialog.get_by_label("Value").fill("kept-as-well")
    page.route(lambda url: _asks(url, "/secrets/KEPT"), lambda route: route.abort("connectionrefused"))
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    expect(dialog.get_by_label("Value")).to_have_value("kept-as-well")
    page.unroute_all()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Delete KEPT")).to_be_visible()


@pytest.fixture
def new_page(browser: Browser, platform: Platform) -> Iterator[Page]:
    with signed_in(browser, platform.url, platform.token) as page:
        yield page


def test_the_first_load_is_small(new_page: Page) -> None:
    """What comes over the wire, packed, until the board is there."""
    page = new_page
    came: list[Request] = []
    page.on("requestfinished", lambda request: came.append(request))  # noqa: PLW0108 - it wants a function written in Python
    page.goto("/board")
    expect(page.get_by_role("heading", name="Board")).to_be_visible()
    expect(page.locator("[data-live=live]")).to_be_attached()
    expect(page.locator("[role=status][aria-label^=Loading]")).to_have_count(0)
    own = {one.url: one.sizes()["responseBodySize"] for one in came if "/api/" not in one.url}
    assert any(url.endswith(".js") for url in own)
    assert any(url.endswith(".css") for url in own)
    assert sum(own.values()) < MOST_BYTES, own


def _asks(url: str, wanted: str) -> bool:
    """`wanted`: a path of the API, with a `?` at its end if a query may follow."""
    path, _, _ = url.partition("?")
    return path.endswith(f"/api/v1{wanted.rstrip('?')}")
