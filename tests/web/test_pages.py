"""Every page, by its address, and every tab of it: it is there, says what it is, complains of nothing, and can be used by everybody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.platform import Platform, until
from tests.acceptance.workshop import work
from tests.forge import GitHub
from tests.web.browser import DESK, PATIENCE_MS, PHONE, accessible, darken, fits, login, open_tab, there, visit, watched
from tests.web.yard import Yard

pytestmark = pytest.mark.timeout(300)

PAGES = {
    "welcome": ("/welcome", "Add your own"),
    "board": ("/board", "All in one"),
    "board-new-task": ("/board?new=true", "New task"),
    "task-conversation": ("/tasks/{task}?tab=conversation", "The list has four lines now"),
    "task-output": ("/tasks/{task}?tab=output", "^said by a command"),
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
    "project-setup": ("/projects/{project}?tab=setup", "Checks"),
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
    "settings-people": ("/settings?tab=people", "grace"),
    "settings-about": ("/settings?tab=about", "Engine"),
    "help": ("/help", "Sandyard"),
    "not-found": ("/no/such/page", "Page not found"),
    "task-not-found": ("/tasks/tsk_00000000000000000000000000", "Task not found"),
}
"""Address, and what is read on it when it is all there."""

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
"""The next press of Tab begins at the top, as in a page that was just loaded."""


@pytest.fixture(scope="module")
def places(yard: Yard, platform: Platform, github: GitHub) -> dict[str, str]:
    """Something on every page."""
    task = yard.task("All in one", *WORK, project=work(platform, github).id)
    several = yard.task("Two ways", "create TWO.md: 2", "commit: docs: two", attempts=[{"agent": "demo"}] * 2)
    waiting = yard.task("Later", "create LATER.md: later", start=False)
    session = yard.session("Look around", yard.sample)
    yard.post(f"/sessions/{session['id']}/turns", text="run: ls\nsay: I have seen it all.")
    for name, body in (("OWN_TOKEN", {}), ("REGISTRY_TOKEN", {"projectId": yard.sample})):
        yard.client.put(f"/secrets/{name}", json={"value": "not-to-be-seen", **body}).raise_for_status()
    yard.post(
        "/model-providers", name="local-model", kind="openai_chat", baseUrl="http://127.0.0.1:9", models=["small"]
    )
    yard.post("/users", name="grace", role="member", password="a password of hers")
    body = {"title": "Update", "description": "create UPDATED.md: yes", "agent": "demo"}
    yard.post("/schedules", projectId=yard.sample, name="nightly", cron="0 3 * * *", timezone="UTC", task=body)
    sandbox = yard.get(f"/sessions/{yard.rests(task, 'in_review')['sessionId']}")["sandboxId"]
    yard.post(f"/sandboxes/{sandbox}/execute", command="echo said by a command")
    until(lambda: all(one["status"] == "ready" for one in yard.get(f"/tasks/{several}")["attempts"]), 180)
    until(lambda: yard.get(f"/sessions/{session['id']}/turns")["items"][0]["status"] == "completed", 180)
    ids = {"task": task, "several": several, "waiting": waiting, "project": yard.sample}
    return {**ids, "session": session["id"], "sandbox": session["sandboxId"]}


@pytest.fixture(scope="module")
def window(browser: Browser, platform: Platform) -> Iterator[Page]:
    """One for all of them: opening it anew for each would be most of the time."""
    context = browser.new_context(base_url=platform.url, viewport=DESK, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    login(context, platform.url, platform.token)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page(name: str, window: Page, places: dict[str, str]) -> None:
    address, words = PAGES[name]
    read = words.format(**places) if words else None
    window.set_viewport_size(DESK)
    window.emulate_media(color_scheme="light")
    with watched(window) as wrong:
        _open(window, address.format(**places))
        there(window, read)
        assert re.search(r"\w+ · Sandyard$", window.title()), window.title()
        _reachable(window)
        accessible(window)
        window.set_viewport_size(PHONE)
        there(window)
        fits(window)
    assert not wrong, wrong


@pytest.mark.slow  # test_a_page checks the same page in light colours on a desktop
@pytest.mark.parametrize("name", PAGES)
def test_a_page_on_a_phone_in_the_dark(name: str, window: Page, places: dict[str, str]) -> None:
    address, words = PAGES[name]
    window.set_viewport_size(PHONE)
    _open(window, address.format(**places))
    there(window, words.format(**places) if words else None)
    darken(window)
    accessible(window)


@pytest.mark.parametrize("name", PAGES)
def test_an_address(name: str, platform: Platform, places: dict[str, str]) -> None:
    """The application is what answers at the address of each of its pages, so that a link to it works anywhere."""
    answer = httpx.get(f"{platform.url}{PAGES[name][0].format(**places)}")
    assert answer.is_success
    assert answer.text == httpx.get(platform.url).text


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_door(theme: str, browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url, color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    with watched(page) as wrong:
        page.goto("/sign-in")
        there(page, "Sign in")
        expect(page).to_have_title("Sign in · Sandyard")
        _reachable(page)
        accessible(page)
        page.set_viewport_size(PHONE)
        fits(page)
        accessible(page)
    assert not wrong, wrong
    context.close()


def _open(page: Page, address: str) -> None:
    """As a link in the page that is shown does."""
    where, _, tab = address.partition("?tab=")
    if tab and urlsplit(page.url).path == where:
        open_tab(page, tab)
    else:
        visit(page, address)
    page.evaluate(UNFOCUS)


def _reachable(page: Page) -> None:
    """The keyboard finds something, and one sees where it is."""
    page.keyboard.press("Tab")
    focus = page.evaluate(FOCUS)
    assert focus, "Tab reaches nothing"
    assert focus["outline"] != "none", focus
    assert focus["width"] >= 1, focus
