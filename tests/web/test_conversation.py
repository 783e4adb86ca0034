"""The conversation with an agent: what it says and does is seen as it comes, and what a person says reaches it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.acceptance.platform import ok, until
from tests.web.browser import accessible, confirm, fits
from tests.web.yard import Yard

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 90_000
ROUND = (
    "plan: Look around; Write it down; Tell of it",
    "think: The data is **short**, so it can be read at once.",
    "run: printf 'seen: one\\nseen: two\\n'",
    "create NOTES.md: # Notes",
    "say: ## It is written\\n\\n- first **point**\\n- second `point`\\n- in calc/__init__.py\\n",
    "commit: docs: notes",
    "Look at `calc/__init__.py`:",
    "```python",
    "__all__ = ['div']",
    "```",
)
MANY = 90
LONG_OPTION = "Yes, and don't ask again for commands that start with touch phone.txt"
OPEN = ("queued", "running", "waiting")


@pytest.fixture(scope="module")
def project(yard: Yard) -> str:
    """One where people decide what an agent may do."""
    settings = {"agent": {"permissions": {"mode": "ask"}}}
    ok(yard.client.patch(f"/projects/{yard.sample}", json={"settings": settings}))
    return yard.sample


@pytest.fixture(scope="module")
def reviewed(yard: Yard, project: str) -> str:
    """A task that waits for somebody to look at it."""
    task = yard.task("Write notes", *ROUND, project=project)
    yard.rests(task, "in_review")
    return task


@pytest.fixture(scope="module")
def place(yard: Yard, project: str) -> str:
    return str(yard.session("A talk", project)["id"])


@pytest.fixture
def talk(yard: Yard, place: str) -> Iterator[str]:
    """A session whose agent is free, and is so again afterwards."""
    yield place
    for one in yard.get(f"/sessions/{place}/turns")["items"]:
        if one["status"] in OPEN:
            yard.client.post(f"/turns/{one['id']}/cancel")


def _said(page: Page) -> Locator:
    return page.get_by_test_id("conversation")


def _told(page: Page, words: str) -> Locator:
    """A paragraph of the agent's own: prompts have none."""
    return _said(page).locator("p", has_text=words).last


def _box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message to the agent")


def _send(page: Page, *lines: str) -> None:
    _box(page).fill("\n".join(lines))
    page.keyboard.press("Enter")
    expect(_box(page)).to_have_value("")


def _over(yard: Yard, session: str) -> None:
    """Nothing of it waits or runs."""
    until(lambda: not any(one["status"] in OPEN for one in yard.get(f"/sessions/{session}/turns")["items"]), 120)


def _words(yard: Yard, session: str, role: str) -> str:
    found: list[dict[str, Any]] = yard.get(f"/sessions/{session}/messages", limit=200)["items"]
    return "\n".join(
        str(part.get("text", "")) for one in found if one["role"] == role for part in one["parts"] if part.get("text")
    )


def test_what_the_agent_did_is_told_in_order(page: Page, reviewed: str) -> None:
    page.goto(f"/tasks/{reviewed}?tab=conversation")
    said = _said(page)
    plan = said.get_by_role("region", name="Plan")
    expect(plan.get_by_role("listitem")).to_have_text(["Look around", "Write it down", "Tell of it"])
    expect(plan.get_by_role("img", name="Done")).to_have_count(3)
    thought = said.get_by_role("button", name=re.compile("^Thought"))
    expect(thought).to_have_attribute("aria-expanded", "false")
    thought.click()
    expect(said.locator("strong", has_text="short")).to_be_visible()
    thought.click()
    expect(said.locator("strong", has_text="short")).to_have_count(0)
    command = said.get_by_role("button", name=re.compile("^printf"))
    expect(command.get_by_role("img", name="Done")).to_be_visible()
    output = said.get_by_role("region", name=re.compile("^Output of printf"))
    expect(output).to_have_count(0)
    command.click()
    expect(output).to_contain_text("seen: one\nseen: two")
    said.get_by_role("button", name=re.compile("^Create NOTES.md")).click()
    expect(said.get_by_text("# Notes").locator("visible=true").first).to_be_visible()
    expect(said.get_by_role("heading", name="It is written")).to_be_visible()
    expect(said.locator("li strong", has_text="point")).to_be_visible()
    expect(said.locator("li code", has_text="point")).to_be_visible()
    expect(said.get_by_role("listitem").filter(has_text="in calc/__init__.py")).to_be_visible()
    prompt = said.get_by_role("article", name="Prompt: Task")
    expect(prompt.locator("pre")).to_have_text("__all__ = ['div']\n")
    expect(prompt.locator("code", has_text="calc/__init__.py")).to_be_visible()
    expect(prompt).not_to_contain_text("```")
    accessible(page)


def test_a_permission_is_given_in_place(page: Page, yard: Yard, talk: str) -> None:
    page.goto(f"/sessions/{talk}")
    _send(page, "permit: paint the fence", "say: painted-it")
    ask = page.get_by_test_id("ask")
    expect(ask).to_contain_text("Permission request", timeout=SLOW_MS)
    accessible(page)
    ask.get_by_role("button", name="Allow", exact=True).click()
    expect(_told(page, "painted-it")).to_be_visible()
    expect(ask).to_have_count(0)
    _over(yard, talk)
    _send(page, "permit: burn the fence", "say: burnt-it")
    expect(ask).to_contain_text(re.compile(r"denied automatically in \d+ (min|h)"))
    expect(ask).to_contain_text("This project asks before everything.")
    expect(ask.get_by_role("link", name="Change permissions")).to_be_visible()
    ask.get_by_role("button", name="Reject", exact=True).click()
    ask.get_by_role("button", name="Deny without a message").click()
    expect(_told(page, "Refused: ")).to_be_visible()
    _over(yard, talk)
    assert "burnt-it" not in _words(yard, talk, "agent")


def test_on_a_phone_a_question_is_found_and_read_whole(phone: Page, yard: Yard, project: str) -> None:
    task = yard.task("Paint", "permit: paint the fence", project=project)
    until(
        lambda: yard.get("/asks", status="pending", sessionId=yard.get(f"/tasks/{task}")["attempts"][0]["sessionId"])[
            "items"
        ],
        120,
    )
    phone.route("**/api/v1/asks?*", _lengthen_options)
    phone.goto(f"/tasks/{task}?tab=files")
    strip = phone.get_by_role("tablist")
    expect(strip).not_to_have_css("mask-image", "none")  # there are more tabs than fit
    phone.get_by_role("link", name="Needs you").click()
    ask = phone.get_by_test_id("ask")
    for button in ask.get_by_role("button", name=LONG_OPTION).all():
        cut = button.evaluate(
            "shown => shown.scrollWidth > shown.clientWidth || shown.scrollHeight > shown.clientHeight"
        )
        assert not cut, "the end of what is allowed is not shown"
    expect(ask.get_by_text(LONG_OPTION).first).to_be_in_viewport()
    fits(phone)
    strip.evaluate("strip => strip.scrollTo(9999, 0)")
    expect(strip).to_have_css("mask-image", "none")
    yard.post(f"/tasks/{task}/stop")


def _lengthen_options(route: Route) -> None:
    answer = route.fetch()
    found = answer.json()
    for ask in found["items"]:
        for option in ask["detail"].get("options", []):
            option["name"] = LONG_OPTION
    route.fulfill(response=answer, json=found)


def test_no_says_what_to_do_instead_and_a_message_continues_a_stopped_task(
    page: Page, yard: Yard, project: str
) -> None:
    task = yard.task("Renew the fence", "permit: burn the fence", project=project)
    page.goto(f"/tasks/{task}")
    ask = page.get_by_test_id("ask")
    expect(ask).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Stop agent").click()
    stopped = yard.rests(task, "failed")
    header = page.locator("header")
    expect(header.get_by_text("Stopped", exact=True)).to_be_visible()
    expect(header.get_by_text(re.compile("In progress|Failed"))).to_have_count(0)  # one state, and no failure
    expect(page.get_by_role("alert")).to_have_count(0)
    _box(page).fill("permit: saw the fence")
    page.get_by_role("button", name="Send and retry").click()
    expect(_said(page).get_by_role("article", name="Prompt: You")).to_contain_text("permit: saw the fence")
    ask.get_by_role("button", name="Reject", exact=True).click(timeout=SLOW_MS)
    ask.get_by_label("What should the agent do instead?").fill("create fence.txt: green\ncommit: feat: paint the fence")
    ask.get_by_role("button", name="Deny and send").click()
    done = yard.rests(task, "in_review")
    assert (done["id"], done["round"]) == (stopped["id"], 2)
    expect(page.locator("header").get_by_text("In review").first).to_be_visible()
    assert "create fence.txt" in _words(yard, done["sessionId"], "user")


@pytest.mark.slow  # tests/integration/platform/domain/agents/test_asks.py has it without a browser
def test_what_the_policy_refused_is_named_and_allowed(page: Page, yard: Yard, project: str) -> None:
    permissions = {"mode": "allow_all", "deny": ["burn"]}
    ok(yard.client.patch(f"/projects/{project}", json={"settings": {"agent": {"permissions": permissions}}}))
    try:
        task = yard.task("Burn it", "permit: burn the fence", "create ashes.txt: some", project=project)
        attempt = yard.rests(task, "failed")
        page.goto(f"/tasks/{task}")
        failure = page.get_by_role("alert").filter(has_text="denied permission")
        expect(failure).to_contain_text("burn the fence")
        failure.get_by_role("button", name="Allow and continue").click()
        session = attempt["sessionId"]
        until(lambda: "are allowed to do this now" in _words(yard, session, "user"), 90)
        yard.rests(task)
        text = "permit: burn the fence\nsay: burnt-after-all"
        ok(yard.client.post(f"/sessions/{session}/turns", json={"text": text}), 202)
        expect(_told(page, "burnt-after-all")).to_be_visible(timeout=SLOW_MS)
        _over(yard, session)
    finally:
        back = {"mode": "ask", "deny": []}
        ok(yard.client.patch(f"/projects/{project}", json={"settings": {"agent": {"permissions": back}}}))


def test_a_question_is_answered_in_place(page: Page, yard: Yard, talk: str) -> None:
    page.goto(f"/sessions/{talk}")
    _send(page, "ask: Which colour?", "say: it shall be {answer}")
    ask = page.get_by_test_id("ask")
    answer = ask.get_by_role("button", name="Answer")
    answer.click()
    expect(ask.get_by_role("textbox")).to_have_attribute("aria-invalid", "true")  # an empty one is none
    height = ask.evaluate("it => it.offsetHeight")
    ask.get_by_role("textbox").fill("green")
    expect(ask.get_by_role("textbox")).not_to_have_attribute("aria-invalid", "true")
    assert ask.evaluate("it => it.offsetHeight") == height  # the button stays where the pointer is heading
    answer.click()
    expect(_told(page, "it shall be green")).to_be_visible()
    answered = _said(page).get_by_role("button", name=re.compile("^Answered Which colour. green"))
    answered.click()
    expect(_said(page).get_by_role("definition")).to_have_text("green")
    _over(yard, talk)
    _send(page, "ask: Which size?", "say: it shall be as {answer} as that")
    box = page.get_by_label("Answer to the agent")
    expect(box).to_be_visible(timeout=SLOW_MS)
    box.fill("big")
    box.press("Enter")
    expect(_told(page, "it shall be as big as that")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_label("Message to the agent")).to_have_value("")
    _over(yard, talk)


def test_a_prompt_waits_for_its_turn_and_can_be_taken_back(page: Page, yard: Yard, talk: str) -> None:
    page.goto(f"/sessions/{talk}")
    _send(page, "plan: Wait long; Go on", "say: begun-to-wait", "sleep: 600")
    expect(_told(page, "begun-to-wait")).to_be_visible(timeout=SLOW_MS)
    pinned = page.get_by_role("button", name=re.compile(r"Plan 1.2"))
    pinned.click()
    expect(page.get_by_role("region", name="Full plan").get_by_role("listitem")).to_have_count(2)
    _send(page, "say: the-first-that-waited")
    _send(page, "say: the-second-that-waited")
    waiting = page.get_by_role("list", name="Queued prompts").get_by_role("listitem")
    expect(waiting).to_have_count(2)
    expect(waiting.first).to_contain_text("the-first-that-waited")
    waiting.filter(has_text="the-first").get_by_role("button", name="Remove from queue").click()
    expect(waiting).to_have_count(1)
    page.get_by_role("button", name="Stop agent").click()
    expect(_said(page).get_by_text("Stopped").first).to_be_visible()
    expect(_told(page, "the-second-that-waited")).to_be_visible(timeout=SLOW_MS)
    expect(waiting).to_have_count(0)
    _over(yard, talk)
    assert "the-first-that-waited" not in _words(yard, talk, "agent")


def test_a_failed_turn_is_tried_again(page: Page, yard: Yard, talk: str) -> None:
    page.goto(f"/sessions/{talk}")
    _send(page, "run: mkdir /tmp/once && kill -9 $PPID", "say: it lives again")  # the first time the agent dies of it
    failure = _said(page).get_by_role("alert")
    expect(failure).to_be_visible(timeout=SLOW_MS)
    failure.get_by_role("button", name="Retry").click()
    expect(_told(page, "it lives again")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    _over(yard, talk)


def test_a_draft_outlives_the_page(page: Page, talk: str) -> None:
    page.goto(f"/sessions/{talk}")
    _box(page).fill("not said yet")
    page.reload()
    expect(_box(page)).to_have_value("not said yet")
    _box(page).fill("")
    page.reload()
    expect(_box(page)).to_have_value("")


def test_the_end_is_followed_until_the_reader_scrolls_up(page: Page, yard: Yard, talk: str) -> None:
    page.goto(f"/sessions/{talk}")
    _send(page, *[f"say: line-{number:03d} of what is said\\n\\n" for number in range(MANY)], "say: the-very-end")
    said = _said(page)
    expect(_told(page, "the-very-end")).to_be_in_viewport(timeout=SLOW_MS)
    _over(yard, talk)
    said.hover()
    page.mouse.wheel(0, -900)
    expect(page.get_by_role("button", name="Scroll to end")).to_be_visible()
    yard.post(f"/sessions/{talk}/turns", text="say: came-while-away")
    new = page.get_by_role("button", name="New messages")
    expect(new).to_be_visible(timeout=SLOW_MS)
    _over(yard, talk)
    expect(_told(page, "came-while-away")).not_to_be_in_viewport()
    new.click()
    expect(_told(page, "came-while-away")).to_be_in_viewport()
    expect(new).to_have_count(0)


def test_earlier_messages_come_when_one_scrolls_up(page: Page, yard: Yard) -> None:
    session = str(yard.session("A long one")["id"])
    yard.post(f"/sessions/{session}/turns", text="say: the-very-first\nrun: true\n" + "think: hm\nrun: true\n" * MANY)
    _over(yard, session)
    page.goto(f"/sessions/{session}?tab=conversation")
    said = _said(page)
    expect(said.get_by_text("Done", exact=True).last).to_be_in_viewport()
    first = _told(page, "the-very-first")
    expect(first).to_have_count(0)
    said.hover()

    def reached() -> bool:
        page.mouse.wheel(0, -3000)
        return first.is_visible()

    until(reached, 60)
    assert said.locator("[data-index]").count() < MANY  # what is out of sight is not in the page


@pytest.mark.slow  # test_changes.py sends feedback with comments
def test_feedback_begins_the_next_round(page: Page, yard: Yard, reviewed: str) -> None:
    page.goto(f"/tasks/{reviewed}")
    box = page.get_by_role("textbox", name="Feedback to the agent")
    box.fill("create MORE.md: more\ncommit: docs: more\nsay: second-round")
    page.get_by_role("button", name="Request changes").last.click()
    expect(page.get_by_role("banner").or_(page.locator("header")).get_by_text("In progress").first).to_be_visible()
    expect(_told(page, "second-round")).to_be_visible(timeout=SLOW_MS)
    until(lambda: yard.get(f"/tasks/{reviewed}")["attempts"][0]["round"] == 2)
    yard.rests(reviewed, "in_review")
    expect(box).to_be_visible()
    expect(box).to_have_value("")
    prompts = _said(page).get_by_role("article", name="Prompt: Feedback")
    expect(prompts).to_contain_text("create MORE.md")


def test_a_talk_beside_a_task_and_the_mode(page: Page, yard: Yard, reviewed: str) -> None:
    """Not every word is feedback; the agent's mode is chosen where one writes."""
    before = yard.rests(reviewed, "in_review")
    session = before["sessionId"]
    page.goto(f"/tasks/{reviewed}")
    page.get_by_role("combobox", name="Send as").click()
    page.get_by_role("option", name=re.compile("Chat only")).click()
    page.get_by_role("combobox", name="Mode").click()
    page.get_by_role("option", name=re.compile("^Ask")).click()
    _send(page, "create ASKED.md: may I")
    page.get_by_test_id("ask").get_by_role("button", name="Allow", exact=True).click()
    _over(yard, session)
    turns = yard.get(f"/sessions/{session}/turns")["items"]
    assert max(turns, key=lambda one: one["number"])["mode"] == "ask"
    assert yard.get(f"/tasks/{reviewed}")["attempts"][0]["round"] == before["round"]


def test_a_session_without_a_task(page: Page, yard: Yard) -> None:
    page.goto("/sessions")
    page.get_by_role("button", name="New session").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Project").click()
    page.get_by_role("option", name="No project").click()
    dialog.get_by_label("Agent").click()
    page.get_by_role("option", name=re.compile("^Demo")).click()
    dialog.get_by_label("Title").fill("Just talking")
    accessible(page)
    dialog.get_by_role("button", name="Start session").click()
    expect(page).to_have_url(re.compile("/sessions/ses_"))
    expect(page.get_by_role("heading", name="Just talking")).to_be_visible()
    _send(page, "say: nice to meet you")
    expect(_told(page, "nice to meet you")).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Actions for Just talking").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("dialog").get_by_label("Title").fill("We have talked")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", name="We have talked")).to_be_visible()
    page.get_by_role("button", name="Actions for We have talked").click()
    page.get_by_role("menuitem", name="Archive").click()
    expect(page.locator("header").get_by_text("Archived", exact=True)).to_be_visible()
    page.goto("/sessions")
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    expect(page.get_by_role("link", name="We have talked")).to_have_count(0)
    page.get_by_role("switch", name="Archived").click()
    page.get_by_role("link", name="We have talked").click()
    expect(page).to_have_url(re.compile("/sessions/ses_"))
    expect(page.get_by_role("heading", name="We have talked")).to_be_visible()
    session = page.url.rpartition("/")[2].partition("?")[0]
    page.get_by_role("button", name="Actions for We have talked").click()
    page.get_by_role("menuitem", name="Delete").click()
    confirm(page, "Delete")
    expect(page).to_have_url(re.compile("/sessions$"))
    assert yard.client.get(f"/sessions/{session}").status_code == 404
