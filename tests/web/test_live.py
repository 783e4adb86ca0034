"""Live updates: no event is missed or shown twice, even when a connection breaks."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.harness.platform import Platform, until
from tests.web.api import Api
from tests.web.browser import signed_in_page

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 120_000


@pytest.fixture(scope="module")
def platform(own_platform: Platform) -> Platform:
    return own_platform


@pytest.mark.slow  # test_board.py tests it with a card that is dragged first
def test_a_card_moves_without_a_reload(page: Page, api: Api) -> None:
    page.goto("/board")
    expect(page.locator("[data-live=live]")).to_be_attached()
    task = api.create_task("Moves by itself", "create MOVED.md: yes", "commit: docs: moved")
    column = page.get_by_role("region", name=re.compile("In review"))
    expect(column.get_by_text("Moves by itself")).to_be_visible(timeout=SLOW_MS)
    api.wait_for_attempt(task, "in_review")


def test_data_is_not_loaded_again_when_the_event_stream_opens(page: Page, api: Api) -> None:
    loaded: list[str] = []

    def record(request: Request) -> None:
        if request.is_navigation_request():
            loaded.clear()
        elif "/api/" in request.url:
            loaded.append(request.url.partition("/api/v1")[2])

    # Not "request": the page repeats a request that the network interrupted.
    page.on("requestfinished", record)
    page.goto("/board")
    expect(page.locator("[data-live=live]")).to_be_attached()
    api.create_task("Comes afterwards", start=False)
    expect(page.get_by_text("Comes afterwards")).to_be_visible()
    # Not the agents: a platform that has just started may still report events of them, and then they are loaded again.
    once = [address for address in loaded if address.startswith(("/me", "/asks"))]
    assert len(once) == len(set(once)) == 2, loaded


def test_a_conversation_continues_after_the_platform_was_killed_and_restarted(
    page: Page, api: Api, platform: Platform
) -> None:
    """The page reports the interruption and reconnects. Every message is shown once."""
    session = api.create_session("Across a restart", api.sample_project)
    page.goto(f"/sessions/{session['id']}")
    expect(page.locator("[data-live=live]")).to_be_attached()
    api.post(f"/sessions/{session['id']}/turns", text="say: before-the-death\nsleep: 6\nsay: after-the-death")
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


def test_two_tabs_share_one_event_stream(browser: Browser, platform: Platform, api: Api) -> None:
    with signed_in_page(browser, platform.url, platform.token) as one:
        streams: list[Page] = []  # the page of each request: a page may have to reconnect

        def record_stream(request: Request) -> None:
            if urlsplit(request.url).path.endswith("/events"):
                streams.append(request.frame.page)

        one.context.on("request", record_stream)
        one.goto("/board")
        expect(one.locator("[data-live=live]")).to_be_attached()
        two = one.context.new_page()
        two.goto("/board")
        expect(two.locator("[data-live=live]")).to_be_attached()
        assert set(streams) == {one}
        api.create_task("Seen in both", start=False)
        for page in (one, two):
            expect(page.get_by_text("Seen in both")).to_be_visible()
        assert set(streams) == {one}
        one.close()  # the page that reads the stream closes: the other one continues from the same event
        api.create_task("Seen by the one left", start=False)
        expect(two.get_by_text("Seen by the one left")).to_be_visible()
        assert set(streams) == {one, two}


def test_a_question_is_announced_and_listed_in_the_inbox(page: Page, api: Api) -> None:
    page.goto("/usage")
    expect(page.locator("[data-live=live]")).to_be_attached()
    task = api.create_task(
        "Needs an answer", "ask: Which `colour`?", "create COLOUR.md: {answer}", "commit: docs: colour"
    )
    toast = page.locator("[data-sonner-toast]", has_text="An agent needs you: Needs an answer")
    expect(toast).to_be_visible(timeout=SLOW_MS)
    expect(page).to_have_title(re.compile(r"^\(\d+\) "))
    bell = page.get_by_role("button", name="Inbox 1: 0 unread, 1 waiting for an answer")
    panel, question = page.get_by_role("dialog", name="Inbox"), re.compile("Needs an answer.*Which colour")
    bell.click()
    panel.get_by_role("link", name=question).click()
    expect(page).to_have_url(re.compile("/tasks/"))
    expect(panel).to_be_hidden()
    expect(toast).to_be_hidden()  # it would cover the page it is about
    # open questions come from the platform, not from the browser's storage, which keeps only the login
    page.evaluate(
        "for (const name of Object.keys(localStorage)) if (name !== 'sandyard.key') localStorage.removeItem(name)"
    )
    page.goto("/usage")
    bell.click()
    expect(panel.get_by_role("link", name=question)).to_be_visible()
    api.post(f"/tasks/{task}/stop")


@pytest.mark.slow  # test_a_question_is_announced_and_listed_under_notifications shows the toast on a desktop
def test_on_a_phone_a_toast_leaves_the_navigation_free_and_closes_when_answered_elsewhere(
    phone: Page, api: Api
) -> None:
    phone.goto("/usage")
    expect(phone.locator("[data-live=live]")).to_be_attached()
    task = api.create_task("Asks the phone", "ask: Which size?", "sleep: 600")
    toast = phone.locator("[data-sonner-toast]", has_text="An agent needs you: Asks the phone")
    expect(toast).to_be_visible(timeout=SLOW_MS)
    bar = phone.get_by_role("navigation", name="Main navigation").last
    inbox = bar.get_by_role("button", name="Inbox 1: 0 unread, 1 waiting for an answer")
    expect(inbox).to_have_text(re.compile("^Inbox"))
    toast_box, bar_box = toast.bounding_box(), bar.bounding_box()
    assert toast_box
    assert bar_box
    assert toast_box["y"] + toast_box["height"] < bar_box["y"] / 2, (
        "the toast must be in the upper half, away from the navigation bar"
    )
    title = phone.get_by_role("heading", level=1)
    until(lambda: (box := title.bounding_box()) is not None and box["y"] >= toast_box["y"] + toast_box["height"])
    (ask,) = api.get("/asks", status="pending", taskId=task)["items"]
    assert api.client.post(f"/asks/{ask['id']}/answer", json={"content": {"answer": "small"}}).is_success
    expect(bar.get_by_role("button", name="Inbox: 0 unread, 0 waiting for an answer")).to_be_visible()
    expect(toast).to_be_hidden()
    api.post(f"/tasks/{task}/stop")
