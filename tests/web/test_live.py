"""What happens is seen as it happens: nothing missed, nothing doubled, whatever breaks in between."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.acceptance.platform import Platform, until
from tests.web.browser import signed_in
from tests.web.yard import Yard

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 120_000


@pytest.fixture(scope="module")
def platform(own_platform: Platform) -> Platform:
    return own_platform


@pytest.mark.slow  # test_board.py has one that is dragged first
def test_a_card_moves_by_itself(page: Page, yard: Yard) -> None:
    page.goto("/board")
    expect(page.locator("[data-live=live]")).to_be_attached()
    task = yard.task("Moves by itself", "create MOVED.md: yes", "commit: docs: moved")
    column = page.get_by_role("region", name=re.compile("In review"))
    expect(column.get_by_text("Moves by itself")).to_be_visible(timeout=SLOW_MS)
    yard.rests(task, "in_review")


def test_what_a_page_has_read_is_not_read_again_when_its_stream_begins(page: Page, yard: Yard) -> None:
    read: list[str] = []
    page.on(
        "request", lambda request: read.append(request.url.partition("/api/v1")[2]) if "/api/" in request.url else None
    )
    page.goto("/board")
    expect(page.locator("[data-live=live]")).to_be_attached()
    yard.task("Comes afterwards", start=False)
    expect(page.get_by_text("Comes afterwards")).to_be_visible()
    once = [address for address in read if address.startswith(("/me", "/agents", "/asks"))]
    assert len(once) == len(set(once)) == 3, read


def test_the_platform_dies_and_returns(page: Page, yard: Yard, platform: Platform) -> None:
    """The page says that it is cut off, and takes up the thread; a conversation has each word once."""
    session = yard.session("Across a restart", yard.sample)
    page.goto(f"/sessions/{session['id']}")
    expect(page.locator("[data-live=live]")).to_be_attached()
    yard.post(f"/sessions/{session['id']}/turns", text="say: before-the-death\nsleep: 6\nsay: after-the-death")
    conversation = page.get_by_role("region", name="Conversation", exact=True)
    answer = conversation.get_by_role("paragraph").filter(has_text="before-the-death")
    expect(answer).to_be_visible(timeout=SLOW_MS)
    platform.kill()
    expect(page.get_by_text("Live updates are interrupted")).to_be_visible()
    platform.start()
    expect(page.get_by_text("Live updates are interrupted")).to_be_hidden(timeout=SLOW_MS)
    expect(answer).to_contain_text("after-the-death", timeout=SLOW_MS)
    expect(conversation).to_contain_text("Done")
    live = answer.inner_text()
    assert live.count("before-the-death") == live.count("after-the-death") == 1
    page.reload()
    expect(answer).to_have_text(live)


def test_two_tabs_share_one_stream(browser: Browser, platform: Platform, yard: Yard) -> None:
    with signed_in(browser, platform.url, platform.token) as one:
        streams: list[Page] = []  # whose they are: the same page may have to open its own again

        def note(request: Request) -> None:
            if urlsplit(request.url).path.endswith("/events"):
                streams.append(request.frame.page)

        one.context.on("request", note)
        one.goto("/board")
        expect(one.locator("[data-live=live]")).to_be_attached()
        two = one.context.new_page()
        two.goto("/board")
        expect(two.locator("[data-live=live]")).to_be_attached()
        assert set(streams) == {one}
        yard.task("Seen in both", start=False)
        for page in (one, two):
            expect(page.get_by_text("Seen in both")).to_be_visible()
        assert set(streams) == {one}
        one.close()  # the reader goes: the other takes over where it was
        yard.task("Seen by the one left", start=False)
        expect(two.get_by_text("Seen by the one left")).to_be_visible()
        assert set(streams) == {one, two}


def test_a_person_is_told_that_they_are_needed(page: Page, yard: Yard) -> None:
    page.goto("/usage")
    expect(page.locator("[data-live=live]")).to_be_attached()
    task = yard.task("Needs an answer", "ask: Which `colour`?", "create COLOUR.md: {answer}", "commit: docs: colour")
    toast = page.locator("[data-sonner-toast]", has_text="An agent needs you: Needs an answer")
    expect(toast).to_be_visible(timeout=SLOW_MS)
    expect(page).to_have_title(re.compile(r"^\(\d+\) "))
    bell = page.get_by_role("button", name="Notifications: 0 unread, 1 waiting for an answer")
    panel, question = page.get_by_role("dialog", name="Notifications"), re.compile("Needs an answer.*Which colour")
    bell.click()
    panel.get_by_role("link", name=question).click()
    expect(page).to_have_url(re.compile("/tasks/"))
    expect(panel).to_be_hidden()
    expect(toast).to_be_hidden()  # it would cover the page it is about
    page.evaluate("localStorage.clear()")  # what waits is known to the platform, not to this browser
    page.goto("/usage")
    bell.click()
    expect(panel.get_by_role("link", name=question)).to_be_visible()
    yard.post(f"/tasks/{task}/stop")


def test_on_a_phone_what_is_told_covers_no_bar_and_an_answer_elsewhere_counts(phone: Page, yard: Yard) -> None:
    phone.goto("/usage")
    expect(phone.locator("[data-live=live]")).to_be_attached()
    task = yard.task("Asks the phone", "ask: Which size?", "sleep: 600")
    toast = phone.locator("[data-sonner-toast]", has_text="An agent needs you: Asks the phone")
    expect(toast).to_be_visible(timeout=SLOW_MS)
    bar = phone.get_by_role("navigation", name="Main navigation").last
    inbox = bar.get_by_role("button", name="Inbox: 0 unread, 1 waiting for an answer")
    expect(inbox).to_have_text(re.compile("^Inbox"))
    told, below = toast.bounding_box(), bar.bounding_box()
    assert told
    assert below
    assert told["y"] + told["height"] < below["y"] / 2, "it is above, far from what is pressed"
    title = phone.get_by_role("heading", level=1)
    until(lambda: (box := title.bounding_box()) is not None and box["y"] >= told["y"] + told["height"])
    (ask,) = yard.get("/asks", status="pending", taskId=task)["items"]
    assert yard.client.post(f"/asks/{ask['id']}/answer", json={"content": {"answer": "small"}}).is_success
    expect(bar.get_by_role("button", name="Inbox: 0 unread, 0 waiting for an answer")).to_be_visible()
    expect(toast).to_be_hidden()
    yard.post(f"/tasks/{task}/stop")
