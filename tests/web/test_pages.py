"""Every page and tab, by its URL: it loads, has a title, logs no errors and is accessible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.project_client import create_forge_project
from tests.forge import GitHub
from tests.harness.platform import Platform, until
from tests.web.api import Api
from tests.web.browser import (
    DESKTOP,
    PHONE,
    TIMEOUT_MS,
    console_errors,
    expect_accessible,
    expect_fitting_width,
    expect_loaded,
    login,
    open_tab,
    switch_to_dark,
    visit,
)

pytestmark = pytest.mark.timeout(300)

PAGES = {
    "welcome": ("/welcome", "Add your own"),
    "board": ("/board", "All in one"),
    "board-new-task": ("/board?new=true", "New task"),
    "task-conversation": ("/tasks/{task}?tab=conversation", "The list has four lines now"),
    "task-output": ("/tasks/{task}?tab=output", "^printed by a command"),
    "task-changes": ("/tasks/{task}?tab=changes", "DATA.md"),
    "task-files": ("/tasks/{task}?tab=files", "DATA.md"),
    "task-terminal": ("/tasks/{task}?tab=terminal", None),
    "task-history": ("/tasks/{task}?tab=history", "docs: write it down"),
    "task-pull-request": ("/tasks/{task}?tab=pull", "Checks|checks"),
    "task-sandbox": ("/tasks/{task}?tab=sandbox", "Ports"),
    "task-attempts": ("/tasks/{several}?tab=attempts", "Attempts"),
    "task-waiting": ("/tasks/{waiting}", "Description"),
    "sessions": ("/sessions", "Look around"),
    "sessions-new": ("/sessions?new=true", "New session"),
    "session": ("/sessions/{session}", "seen it all"),
    "sandboxes": ("/sandboxes", "Look around"),
    "sandbox": ("/sandboxes/{sandbox}", "Ports"),
    "projects": ("/projects", "in progress|open"),
    "project-general": ("/projects/{project}?tab=general", "Archive and delete"),
    "project-access": ("/projects/{project}?tab=access", "Credentials"),
    "project-agent": ("/projects/{project}?tab=agent", None),
    "project-setup": ("/projects/{project}?tab=setup", "Verification"),
    "project-forge": ("/projects/{project}?tab=forge", "Pull requests"),
    "project-board": ("/projects/{project}?tab=board", "Budgets"),
    "project-policy": ("/projects/{project}?tab=policy", "Command policy"),
    "project-secrets": ("/projects/{project}?tab=secrets", "REGISTRY_TOKEN"),
    "project-models": ("/projects/{project}?tab=models", "Model providers"),
    "project-members": ("/projects/{project}?tab=members", "Owner"),
    "agents": ("/agents", "Demo"),
    "agents-providers": ("/agents?tab=providers", "local-model"),
    "schedules": ("/schedules", "nightly"),
    "usage": ("/usage", "Usage and cost"),
    "audit": ("/audit", "login"),
    "settings-profile": ("/settings?tab=profile", "Administrator"),
    "settings-appearance": ("/settings?tab=appearance", "System"),
    "settings-notifications": ("/settings?tab=notifications", "Notify me when"),
    "settings-tokens": ("/settings?tab=tokens", "API tokens"),
    "settings-secrets": ("/settings?tab=secrets", "OWN_TOKEN"),
    "settings-limits": ("/settings?tab=limits", "Processors of running sandboxes"),
    "settings-status": ("/settings?tab=status", "Database of the platform"),
    "settings-people": ("/settings?tab=people", "grace"),
    "settings-about": ("/settings?tab=about", "Engine"),
    "help": ("/help", "Sandyard"),
    "not-found": ("/no/such/page", "Page not found"),
    "task-not-found": ("/tasks/tsk_00000000000000000000000000", "Task not found"),
}
"""The URL, and a regular expression for text on the loaded page."""

WORK = (
    "plan: Look at the data; Write it down",
    "think: Four lines are enough.",
    "create DATA.md: one\\ntwo\\nthree\\nfour\\n",
    "run: cat DATA.md",
    "say: The list has **four** lines now: `DATA.md`.",
    "commit: docs: write it down",
)
FOCUS = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const look = getComputedStyle(one);
  return { name: one.textContent || one.getAttribute("aria-label"), outline: look.outlineStyle, width: parseFloat(look.outlineWidth) };
}"""


UNFOCUS = """() => {
  document.body.tabIndex = -1;
  document.body.focus();
  document.body.removeAttribute("tabindex");
}"""
"""The next press of Tab starts at the top, as on a page that was just loaded."""


@pytest.fixture(scope="module")
def page_ids(api: Api, platform: Platform, github: GitHub) -> dict[str, str]:
    """Create content for every page. Returns the ids for the URLs."""
    task = api.create_task("All in one", *WORK, project=create_forge_project(platform, github).id)
    several = api.create_task("Two ways", "create TWO.md: 2", "commit: docs: two", attempts=[{"agent": "demo"}] * 2)
    waiting = api.create_task("Later", "create LATER.md: later", start=False)
    session = api.create_session("Look around", api.sample_project)
    api.post(f"/sessions/{session['id']}/turns", text="run: ls\nsay: I have seen it all.")
    for name, body in (("OWN_TOKEN", {}), ("REGISTRY_TOKEN", {"projectId": api.sample_project})):
        api.client.put(f"/secrets/{name}", json={"value": "not-to-be-seen", **body}).raise_for_status()
    api.post("/model-providers", name="local-model", kind="openai_chat", baseUrl="http://127.0.0.1:9", models=["small"])
    api.post("/users", name="grace", role="member", password="a password of hers")
    body = {"title": "Update", "description": "create UPDATED.md: yes", "agent": "demo"}
    api.post("/schedules", projectId=api.sample_project, name="nightly", cron="0 3 * * *", timezone="UTC", task=body)
    sandbox = api.get(f"/sessions/{api.wait_for_attempt(task, 'in_review')['sessionId']}")["sandboxId"]
    api.post(f"/sandboxes/{sandbox}/execute", command="echo printed by a command")
    until(lambda: all(attempt["status"] == "ready" for attempt in api.get(f"/tasks/{several}")["attempts"]), 180)
    until(lambda: api.get(f"/sessions/{session['id']}/turns")["items"][0]["status"] == "completed", 180)
    ids = {"task": task, "several": several, "waiting": waiting, "project": api.sample_project}
    return {**ids, "session": session["id"], "sandbox": session["sandboxId"]}


@pytest.fixture(scope="module")
def window(browser: Browser, platform: Platform) -> Iterator[Page]:
    """One page for all tests of this file: opening one for each would take most of the time."""
    context = browser.new_context(base_url=platform.url, viewport=DESKTOP, reduced_motion="reduce")
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    login(page, platform.url, token=platform.token)
    yield page
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_and_is_accessible(name: str, window: Page, page_ids: dict[str, str]) -> None:
    address, words = PAGES[name]
    expected = words.format(**page_ids) if words else None
    window.set_viewport_size(DESKTOP)
    window.emulate_media(color_scheme="light")
    with console_errors(window) as errors:
        _open(window, address.format(**page_ids))
        expect_loaded(window, expected)
        assert re.search(r"\w+ · Sandyard$", window.title()), window.title()
        _expect_keyboard_focus(window)
        expect_accessible(window)
        window.set_viewport_size(PHONE)
        expect_loaded(window)
        expect_fitting_width(window)
    assert not errors, errors


@pytest.mark.slow  # test_a_page_loads_and_is_accessible checks the same page in light colours on a desktop
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_on_a_phone_in_dark_mode(name: str, window: Page, page_ids: dict[str, str]) -> None:
    address, words = PAGES[name]
    window.set_viewport_size(PHONE)
    _open(window, address.format(**page_ids))
    expect_loaded(window, words.format(**page_ids) if words else None)
    switch_to_dark(window)
    expect_accessible(window)


def test_the_urls_of_all_pages_serve_the_application(platform: Platform, page_ids: dict[str, str]) -> None:
    """The platform serves the application at the URL of each page, so that links to it work."""
    with httpx.Client(base_url=platform.url) as client:
        application = (200, client.get("/").text)
        answers = {name: client.get(address.format(**page_ids)) for name, (address, _) in PAGES.items()}
    wrong = [name for name, answer in answers.items() if (answer.status_code, answer.text) != application]
    assert not wrong, wrong


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_sign_in_page_is_accessible(theme: str, browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url, color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    with console_errors(page) as errors:
        page.goto("/sign-in")
        expect_loaded(page, "Sign in")
        expect(page).to_have_title("Sign in · Sandyard")
        _expect_keyboard_focus(page)
        expect_accessible(page)
        page.set_viewport_size(PHONE)
        expect_fitting_width(page)
        expect_accessible(page)
    assert not errors, errors
    context.close()


def _open(page: Page, address: str) -> None:
    """Open the URL like a link in the current page."""
    where, _, tab = address.partition("?tab=")
    if tab and urlsplit(page.url).path == where:
        open_tab(page, tab)
    else:
        visit(page, address)
    page.evaluate(UNFOCUS)


def _expect_keyboard_focus(page: Page) -> None:
    """Expect that Tab focuses an element and that the focus is visible."""
    page.keyboard.press("Tab")
    focus = page.evaluate(FOCUS)
    assert focus, "Tab must focus an element"
    assert focus["outline"] != "none", focus
    assert focus["width"] >= 1, focus
