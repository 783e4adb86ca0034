"""Pages without content, with an unreachable platform, and with error responses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.harness.platform import Platform
from tests.web.api import Api
from tests.web.browser import DESKTOP, TIMEOUT_MS, expect_accessible, login, signed_in_page, visit

pytestmark = pytest.mark.timeout(300)

MAX_BYTES = 250_000
EMPTY_PAGES = {
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
PAGE_REQUESTS = {
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
"""The URL, the API path that the page requests, and the heading shown when it has loaded."""
IN_EVERY_RUN = ("board", "session")
"""Tested in every run. The other pages work the same way and are only in the slow tests."""
PROBLEM = {
    "type": "about:blank",
    "title": "Internal error",
    "status": 500,
    "code": "internal_error",
    "detail": "Something broke on our side.",
    "requestId": "req_to_be_quoted",
}


@pytest.fixture(scope="module")
def page_ids(api: Api) -> dict[str, str]:
    return {"project": api.sample_project, "session": str(api.create_session("Seen later")["id"])}


@pytest.mark.parametrize("name", EMPTY_PAGES)
def test_a_page_without_content_shows_its_empty_state(name: str, newcomer: Page) -> None:
    address, words = EMPTY_PAGES[name]
    visit(newcomer, address)
    expect(newcomer.get_by_text(re.compile(words)).first).to_be_visible()
    expect_accessible(newcomer)


@pytest.fixture(scope="module")
def newcomer(browser: Browser, platform: Platform, api: Api) -> Iterator[Page]:
    """A page of a user who owns nothing and sees nothing of other users."""
    credentials = {"name": "newcomer", "password": "a long enough password"}
    api.post("/users", role="member", **credentials)
    context = browser.new_context(base_url=platform.url, viewport=DESKTOP, reduced_motion="reduce")
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    login(page, platform.url, **credentials)
    yield page
    context.close()


@pytest.mark.parametrize(
    "name", [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow) for name in PAGE_REQUESTS]
)
def test_a_page_reports_an_unreachable_platform_and_retries(name: str, page: Page, page_ids: dict[str, str]) -> None:
    address, read, heading = PAGE_REQUESTS[name]
    wanted = read.format(**page_ids)
    page.route(lambda url: _requests_path(url, wanted), lambda route: route.abort("connectionrefused"))
    page.goto(address.format(**page_ids))
    alert = page.get_by_role("alert").filter(has_text="Not connected").first
    expect(alert).to_be_visible()
    expect_accessible(page)
    page.unroute_all()
    alert.get_by_role("button", name="Retry").click()
    expect(alert).to_be_hidden()
    expect(page.get_by_role("heading", name=heading).first).to_be_visible()


def test_a_page_shows_an_internal_error_with_its_request_id(page: Page) -> None:
    def fail(route: Route) -> None:
        route.fulfill(status=500, content_type="application/problem+json", body=json.dumps(PROBLEM))

    page.route(lambda url: _requests_path(url, "/schedules?"), fail)
    page.goto("/schedules")
    alert = page.get_by_role("alert").filter(has_text="Something went wrong")
    expect(alert).to_contain_text("Something broke on our side.")
    expect(alert).to_contain_text("req_to_be_quoted")
    page.unroute_all()
    alert.get_by_role("button", name="Retry").click()
    expect(alert).to_be_hidden()


def test_the_first_load_reports_an_unreachable_platform_and_retries(newcomer: Page) -> None:
    page = newcomer
    page.route("**/api/**", lambda route: route.abort("connectionrefused"))
    page.goto("/schedules")
    alert = page.get_by_role("alert").filter(has_text="Not connected")
    expect(alert).to_be_visible()
    page.unroute_all()
    alert.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()


def test_form_input_is_kept_when_it_cannot_be_sent(page: Page) -> None:
    page.goto("/settings?tab=secrets")
    page.get_by_role("button", name="Add a secret").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("KEPT")
    dialog.get_by_label("Value").fill("kept-as-well")
    page.route(lambda url: _requests_path(url, "/secrets/KEPT"), lambda route: route.abort("connectionrefused"))
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    expect(dialog.get_by_label("Value")).to_have_value("kept-as-well")
    page.unroute_all()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Delete KEPT")).to_be_visible()


@pytest.fixture
def new_page(browser: Browser, platform: Platform) -> Iterator[Page]:
    with signed_in_page(browser, platform.url, platform.token) as page:
        yield page


def test_the_first_load_is_small(new_page: Page) -> None:
    """The compressed size of all transfers until the board has loaded."""
    page = new_page
    finished: list[Request] = []
    page.on("requestfinished", lambda request: finished.append(request))  # noqa: PLW0108 - Playwright needs a function written in Python
    page.goto("/board")
    expect(page.get_by_role("heading", name="Board")).to_be_visible()
    expect(page.locator("[data-live=live]")).to_be_attached()
    expect(page.locator("[role=status][aria-label^=Loading]")).to_have_count(0)
    own = {
        candidate.url: candidate.sizes()["responseBodySize"] for candidate in finished if "/api/" not in candidate.url
    }
    assert any(url.endswith(".js") for url in own)
    assert any(url.endswith(".css") for url in own)
    assert sum(own.values()) < MAX_BYTES, own


def _requests_path(url: str, wanted: str) -> bool:
    """Return whether the URL requests this path of the API. A `?` at the end of `wanted` stands for any query."""
    path, _, _ = url.partition("?")
    return path.endswith(f"/api/v1{wanted.rstrip('?')}")
