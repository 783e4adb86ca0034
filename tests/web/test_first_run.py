"""A person who has just started Sandyard: through the door, three steps, and the first branch."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance.platform import Platform
from tests.web.browser import DESK, PATIENCE_MS, accessible, watched

pytestmark = pytest.mark.timeout(300)

TWO_MINUTES_MS = 120_000


@pytest.fixture(scope="module")
def platform(own_platform: Platform) -> Platform:
    return own_platform


def test_from_the_printed_address_to_the_first_branch_within_two_minutes(browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url, viewport=DESK)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    wrong = watched(page)
    began = time.monotonic()
    page.goto(f"/sign-in#token={platform.token}")
    expect(page).to_have_url(re.compile("/welcome$"))
    assert platform.token not in page.evaluate(
        "location.href + JSON.stringify(history.state) + JSON.stringify(localStorage)"
    )
    accessible(page)
    page.get_by_role("button", name="Use the sample repository").click()
    expect(page.get_by_role("radio", name=re.compile("demo", re.IGNORECASE))).to_be_checked()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_label("Title")).not_to_have_value("")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text(re.compile("The work is on the branch task-"))).to_be_visible(timeout=TWO_MINUTES_MS)
    assert time.monotonic() - began < TWO_MINUTES_MS / 1000
    page.get_by_role("link", name="Review the changes").click()
    expect(page).to_have_url(re.compile("/tasks/.*tab=changes"))
    assert not wrong, wrong
    context.close()


def test_the_door(browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url, viewport=DESK)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/sandboxes?status=paused")
    expect(page).to_have_url(re.compile("/sign-in"))
    page.get_by_label("Token").fill("sy_wrong")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("That is not right")
    accessible(page)
    page.get_by_label("Token").fill(platform.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/sandboxes\?status=paused$"))  # where they wanted to go
    page.get_by_role("button", name=re.compile("^Account of")).click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    page.goto("/board")
    expect(page).to_have_url(re.compile("/sign-in"))
    context.close()


def test_only_an_address_of_this_site_is_gone_to_after_the_door(browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url)
    for evil in ("https://evil.example/", "//evil.example/", "/\\evil.example/"):
        context.clear_cookies()
        page = context.new_page()
        page.goto(f"/sign-in?next={evil}#token={platform.token}")
        page.wait_for_url(re.compile("/(welcome|board)"))
        assert page.url.startswith(platform.url)
        page.close()
    context.close()
