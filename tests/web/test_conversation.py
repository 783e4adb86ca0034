"""The conversation with an agent: its messages and actions appear live, and messages to it arrive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.harness.platform import ok, until
from tests.web.api import Api
from tests.web.browser import confirm, expect_accessible, expect_fitting_width

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
CHANGE_HEIGHT = """() => {
  const box = document.body.appendChild(document.createElement("div"));
  for (const height of ["10px", "20px"]) {
    box.style.height = height;
    box.height = box.getBoundingClientRect().height;
  }
  box.remove();
  return box.height;
}"""
"""Change the height of an element, and return the height that a script reads right after that."""
LONG_OPTION = "Yes, and don't ask again for commands that start with touch phone.txt"
OPEN = ("queued", "running", "waiting")


@pytest.fixture(scope="module")
def project(api: Api) -> str:
    """A project whose agents ask for permission."""
    settings = {"agent": {"permissions": {"mode": "ask"}}}
    ok(api.client.patch(f"/projects/{api.sample_project}", json={"settings": settings}))
    return api.sample_project


@pytest.fixture(scope="module")
def task_in_review(api: Api, project: str) -> str:
    """A task in review."""
    task = api.create_task("Write notes", *ROUND, project=project)
    api.wait_for_attempt(task, "in_review")
    return task


@pytest.fixture(scope="module")
def shared_session(api: Api, project: str) -> str:
    return str(api.create_session("A talk", project)["id"])


@pytest.fixture
def session(api: Api, shared_session: str) -> Iterator[str]:
    """A session with an idle agent. Open turns are cancelled after the test."""
    yield shared_session
    for turn in api.get(f"/sessions/{shared_session}/turns")["items"]:
        if turn["status"] in OPEN:
            api.client.post(f"/turns/{turn['id']}/cancel")


def _conversation(page: Page) -> Locator:
    return page.get_by_test_id("conversation")


def _agent_message(page: Page, words: str) -> Locator:
    """Return the last paragraph of the agent with this text. Prompts contain no paragraphs."""
    return _conversation(page).locator("p", has_text=words).last


def _message_box(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message to the agent")


def _send(page: Page, *lines: str) -> None:
    _message_box(page).fill("\n".join(lines))
    page.keyboard.press("Enter")
    expect(_message_box(page)).to_have_value("")


def _wait_until_idle(api: Api, session: str) -> None:
    """Wait until no turn of the session is queued or running."""
    until(lambda: not any(turn["status"] in OPEN for turn in api.get(f"/sessions/{session}/turns")["items"]), 120)


def _read_messages(api: Api, session: str, role: str) -> str:
    found: list[dict[str, Any]] = api.get(f"/sessions/{session}/messages", limit=200)["items"]
    return "\n".join(
        str(part.get("text", ""))
        for candidate in found
        if candidate["role"] == role
        for part in candidate["parts"]
        if part.get("text")
    )


def test_the_conversation_shows_the_steps_of_the_agent(page: Page, task_in_review: str) -> None:
    page.goto(f"/tasks/{task_in_review}?tab=conversation")
    conversation = _conversation(page)
    plan = conversation.get_by_role("region", name="Plan")
    expect(plan.get_by_role("listitem")).to_have_text(["Look around", "Write it down", "Tell of it"])
    expect(plan.get_by_role("img", name="Done")).to_have_count(3)
    thought = conversation.get_by_role("button", name=re.compile("^Thought"))
    expect(thought).to_have_attribute("aria-expanded", "false")
    thought.click()
    expect(conversation.locator("strong", has_text="short")).to_be_visible()
    thought.click()
    expect(conversation.locator("strong", has_text="short")).to_have_count(0)
    command = conversation.get_by_role("button", name=re.compile("^printf"))
    expect(command.get_by_role("img", name="Done")).to_be_visible()
    output = conversation.get_by_role("region", name=re.compile("^Output of printf"))
    expect(output).to_have_count(0)
    command.click()
    expect(output).to_contain_text("seen: one\nseen: two")
    conversation.get_by_role("button", name=re.compile("^Create NOTES.md")).click()
    expect(conversation.get_by_text("# Notes").locator("visible=true").first).to_be_visible()
    expect(conversation.get_by_role("heading", name="It is written")).to_be_visible()
    expect(conversation.locator("li strong", has_text="point")).to_be_visible()
    expect(conversation.locator("li code", has_text="point")).to_be_visible()
    expect(conversation.get_by_role("listitem").filter(has_text="in calc/__init__.py")).to_be_visible()
    prompt = conversation.get_by_role("article", name="Prompt: Task")
    expect(prompt.locator("pre")).to_have_text("__all__ = ['div']\n")
    expect(prompt.locator("code", has_text="calc/__init__.py")).to_be_visible()
    expect(prompt).not_to_contain_text("```")
    expect_accessible(page)


def test_a_permission_request_is_answered_in_the_conversation(page: Page, api: Api, session: str) -> None:
    page.goto(f"/sessions/{session}")
    _send(page, "permit: paint the fence", "say: painted-it")
    ask = page.get_by_test_id("ask")
    expect(ask).to_contain_text("Permission request", timeout=SLOW_MS)
    expect_accessible(page)
    ask.get_by_role("button", name="Allow", exact=True).click()
    expect(_agent_message(page, "painted-it")).to_be_visible()
    expect(ask).to_have_count(0)
    _wait_until_idle(api, session)
    _send(page, "permit: burn the fence", "say: burnt-it")
    expect(ask).to_contain_text(re.compile(r"denied automatically in \d+ (min|h)"))
    expect(ask).to_contain_text("This project asks before everything.")
    expect(ask.get_by_role("link", name="Change permissions")).to_be_visible()
    ask.get_by_role("button", name="Reject", exact=True).click()
    ask.get_by_role("button", name="Deny without a message").click()
    expect(_agent_message(page, "Refused: ")).to_be_visible()
    expect(_conversation(page).get_by_text("Ended, permission denied")).to_be_visible()
    _wait_until_idle(api, session)
    assert "burnt-it" not in _read_messages(api, session, "agent")


@pytest.mark.slow  # test_a_permission_request_is_answered_in_the_conversation shows it on a desktop
def test_on_a_phone_a_permission_request_is_shown_in_full(phone: Page, api: Api, project: str) -> None:
    task = api.create_task("Paint", "permit: paint the fence", project=project)
    until(
        lambda: api.get("/asks", status="pending", taskId=task)["items"],
        120,
    )
    phone.route("**/api/v1/asks?*", _lengthen_options)
    phone.goto(f"/tasks/{task}?tab=files")
    strip = phone.get_by_role("tablist")
    expect(strip).not_to_have_css("mask-image", "none")  # more tabs than fit
    phone.get_by_role("link", name="Needs you").click()
    ask = phone.get_by_test_id("ask")
    for button in ask.get_by_role("button", name=LONG_OPTION).all():
        is_truncated = button.evaluate(
            "shown => shown.scrollWidth > shown.clientWidth || shown.scrollHeight > shown.clientHeight"
        )
        assert not is_truncated, "the text of the option must not be cut off"
    expect(ask.get_by_text(LONG_OPTION).first).to_be_in_viewport()
    expect_fitting_width(phone)
    strip.evaluate("strip => strip.scrollTo(9999, 0)")
    expect(strip).to_have_css("mask-image", "none")
    api.post(f"/tasks/{task}/stop")


def _lengthen_options(route: Route) -> None:
    answer = route.fetch()
    found = answer.json()
    for ask in found["items"]:
        for option in ask["detail"].get("options", []):
            option["name"] = LONG_OPTION
    route.fulfill(response=answer, json=found)


@pytest.mark.slow  # without a browser: test_the_message_of_a_rejection_becomes_the_next_prompt in agents/test_asks.py
def test_a_denial_can_carry_instructions_and_a_message_retries_a_stopped_task(
    page: Page, api: Api, project: str
) -> None:
    task = api.create_task("Renew the fence", "permit: burn the fence", project=project)
    page.goto(f"/tasks/{task}")
    ask = page.get_by_test_id("ask")
    expect(ask).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Stop agent").click()
    stopped = api.wait_for_attempt(task, "failed")
    header = page.locator("header")
    expect(header.get_by_text("Stopped", exact=True)).to_be_visible()
    expect(header.get_by_text(re.compile("In progress|Failed"))).to_have_count(0)  # a single state, and not a failure
    expect(page.get_by_role("alert")).to_have_count(0)
    _message_box(page).fill("permit: saw the fence")
    page.get_by_role("button", name="Send and retry").click()
    expect(_conversation(page).get_by_role("article", name="Prompt: You")).to_contain_text("permit: saw the fence")
    ask.get_by_role("button", name="Reject", exact=True).click(timeout=SLOW_MS)
    ask.get_by_label("What should the agent do instead?").fill("create fence.txt: green\ncommit: feat: paint the fence")
    ask.get_by_role("button", name="Deny and send").click()
    done = api.wait_for_attempt(task, "in_review")
    assert (done["id"], done["round"]) == (stopped["id"], 2)
    expect(page.locator("header").get_by_text("In review").first).to_be_visible()
    assert "create fence.txt" in _read_messages(api, done["sessionId"], "user")


@pytest.mark.slow  # tests/integration/platform/domain/agents/test_asks.py tests it without a browser
def test_an_action_denied_by_policy_is_shown_and_can_be_allowed(page: Page, api: Api, project: str) -> None:
    permissions = {"mode": "allow_all", "deny": ["burn"]}
    ok(api.client.patch(f"/projects/{project}", json={"settings": {"agent": {"permissions": permissions}}}))
    try:
        task = api.create_task("Burn it", "permit: burn the fence", "create ashes.txt: some", project=project)
        attempt = api.wait_for_attempt(task, "failed")
        page.goto(f"/tasks/{task}")
        failure = page.get_by_role("alert").filter(has_text="denied permission")
        expect(failure).to_contain_text("burn the fence")
        failure.get_by_role("button", name="Allow and continue").click()
        session = attempt["sessionId"]
        until(lambda: "are allowed to do this now" in _read_messages(api, session, "user"), 90)
        api.wait_for_attempt(task)
        text = "permit: burn the fence\nsay: burnt-after-all"
        ok(api.client.post(f"/sessions/{session}/turns", json={"text": text}), 202)
        expect(_agent_message(page, "burnt-after-all")).to_be_visible(timeout=SLOW_MS)
        _wait_until_idle(api, session)
    finally:
        back = {"mode": "ask", "deny": []}
        ok(api.client.patch(f"/projects/{project}", json={"settings": {"agent": {"permissions": back}}}))


def test_a_question_is_answered_in_the_conversation(page: Page, api: Api, session: str) -> None:
    page.goto(f"/sessions/{session}")
    _send(page, "ask: Which colour?", "say: it shall be {answer}")
    ask = page.get_by_test_id("ask")
    answer = ask.get_by_role("button", name="Answer")
    answer.click()
    expect(ask.get_by_role("textbox")).to_have_attribute("aria-invalid", "true")  # an empty answer is rejected
    height = ask.evaluate("it => it.offsetHeight")
    ask.get_by_role("textbox").fill("green")
    expect(ask.get_by_role("textbox")).not_to_have_attribute("aria-invalid", "true")
    assert ask.evaluate("it => it.offsetHeight") == height  # the button does not move away from the pointer
    answer.click()
    expect(_agent_message(page, "it shall be green")).to_be_visible()
    answered = _conversation(page).get_by_role("button", name=re.compile("^Answered Which colour. green"))
    answered.click()
    expect(_conversation(page).get_by_role("definition")).to_have_text("green")
    _wait_until_idle(api, session)
    _send(page, "ask: Which size?", "say: it shall be as {answer} as that")
    box = page.get_by_label("Answer to the agent")
    expect(box).to_be_visible(timeout=SLOW_MS)
    box.fill("big")
    box.press("Enter")
    expect(_agent_message(page, "it shall be as big as that")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_label("Message to the agent")).to_have_value("")
    _wait_until_idle(api, session)


def test_a_queued_prompt_runs_later_or_can_be_removed(page: Page, api: Api, session: str) -> None:
    page.goto(f"/sessions/{session}")
    _send(page, "plan: Wait long; Go on", "say: begun-to-wait", "sleep: 600")
    expect(_agent_message(page, "begun-to-wait")).to_be_visible(timeout=SLOW_MS)
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
    expect(_conversation(page).get_by_text("Stopped").first).to_be_visible()
    expect(_agent_message(page, "the-second-that-waited")).to_be_visible(timeout=SLOW_MS)
    expect(waiting).to_have_count(0)
    _wait_until_idle(api, session)
    assert "the-first-that-waited" not in _read_messages(api, session, "agent")


def test_a_failed_turn_can_be_retried(page: Page, api: Api, session: str) -> None:
    page.goto(f"/sessions/{session}")
    _send(page, "run: mkdir /tmp/once && kill -9 $PPID", "say: it lives again")  # the first run kills the agent
    failure = _conversation(page).get_by_role("alert")
    expect(failure).to_be_visible(timeout=SLOW_MS)
    failure.get_by_role("button", name="Retry").click()
    expect(_agent_message(page, "it lives again")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    _wait_until_idle(api, session)


def test_a_draft_survives_a_reload(page: Page, session: str) -> None:
    page.goto(f"/sessions/{session}")
    _message_box(page).fill("not sent yet")
    page.reload()
    expect(_message_box(page)).to_have_value("not sent yet")
    _message_box(page).fill("")
    page.reload()
    expect(_message_box(page)).to_have_value("")


def test_new_messages_scroll_into_view_until_the_reader_scrolls_up(page: Page, api: Api, session: str) -> None:
    page.goto(f"/sessions/{session}")
    _send(page, *[f"say: line-{number:03d} of a long text\\n\\n" for number in range(MANY)], "say: the-very-end")
    conversation = _conversation(page)
    expect(_agent_message(page, "the-very-end")).to_be_in_viewport(timeout=SLOW_MS)
    _wait_until_idle(api, session)
    conversation.hover()
    page.mouse.wheel(0, -900)
    expect(page.get_by_role("button", name="Scroll to end")).to_be_visible()
    api.post(f"/sessions/{session}/turns", text="say: came-while-away")
    new = page.get_by_role("button", name="New messages")
    expect(new).to_be_visible(timeout=SLOW_MS)
    _wait_until_idle(api, session)
    expect(_agent_message(page, "came-while-away")).not_to_be_in_viewport()
    new.click()
    expect(_agent_message(page, "came-while-away")).to_be_in_viewport()
    expect(new).to_have_count(0)


def test_the_end_stays_visible_while_the_message_box_grows(page: Page, api: Api, session: str) -> None:
    api.post(f"/sessions/{session}/turns", text="run: true\n" * 20 + "say: the-end")
    _wait_until_idle(api, session)
    page.goto(f"/sessions/{session}?tab=conversation")
    assert page.evaluate(CHANGE_HEIGHT) == 20, (
        "the page scrolls to the end when a height changes, so it must read the new one"
    )
    end = _conversation(page).get_by_text("Done", exact=True).last
    expect(end).to_be_in_viewport(ratio=1)
    _message_box(page).fill("a line\n" * 9)
    expect(end).to_be_in_viewport(ratio=1)


def test_closing_a_dialog_returns_the_focus_to_the_menu_it_was_opened_from(page: Page, session: str) -> None:
    page.goto(f"/sessions/{session}?tab=conversation")
    menu = page.get_by_role("button", name=re.compile("^Actions for"))
    menu.click()
    page.get_by_role("menuitem", name="Rename").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()


def test_earlier_messages_load_when_scrolling_up(page: Page, api: Api) -> None:
    session = str(api.create_session("A long one")["id"])
    api.post(f"/sessions/{session}/turns", text="say: the-very-first\nrun: true\n" + "think: hm\nrun: true\n" * MANY)
    _wait_until_idle(api, session)
    page.goto(f"/sessions/{session}?tab=conversation")
    conversation = _conversation(page)
    expect(conversation.get_by_text("Done", exact=True).last).to_be_in_viewport()
    first = _agent_message(page, "the-very-first")
    expect(first).to_have_count(0)
    conversation.hover()

    def scroll_up() -> bool:
        page.mouse.wheel(0, -3000)
        return first.is_visible()

    until(scroll_up, 60)
    assert conversation.locator("[data-index]").count() < MANY  # rows outside the viewport are not in the DOM


@pytest.mark.slow  # test_changes.py tests feedback with comments
def test_feedback_starts_the_next_round(page: Page, api: Api, task_in_review: str) -> None:
    page.goto(f"/tasks/{task_in_review}")
    box = page.get_by_role("textbox", name="Feedback to the agent")
    box.fill("create MORE.md: more\ncommit: docs: more\nsay: second-round")
    page.get_by_role("button", name="Request changes").last.click()
    expect(page.get_by_role("banner").or_(page.locator("header")).get_by_text("In progress").first).to_be_visible()
    expect(_agent_message(page, "second-round")).to_be_visible(timeout=SLOW_MS)
    until(lambda: api.get(f"/tasks/{task_in_review}")["attempts"][0]["round"] == 2)
    api.wait_for_attempt(task_in_review, "in_review")
    expect(box).to_be_visible()
    expect(box).to_have_value("")
    prompts = _conversation(page).get_by_role("article", name="Prompt: Feedback")
    expect(prompts).to_contain_text("create MORE.md")


def test_a_chat_message_starts_no_round_and_uses_the_chosen_mode(page: Page, api: Api, task_in_review: str) -> None:
    """A chat message is not feedback. The agent's mode is chosen beside the message box."""
    before = api.wait_for_attempt(task_in_review, "in_review")
    session = before["sessionId"]
    page.goto(f"/tasks/{task_in_review}")
    page.get_by_role("combobox", name="Send as").click()
    page.get_by_role("option", name=re.compile("Chat only")).click()
    page.get_by_role("combobox", name="Mode").click()
    page.get_by_role("option", name=re.compile("^Ask")).click()
    _send(page, "create ASKED.md: may I")
    page.get_by_test_id("ask").get_by_role("button", name="Allow", exact=True).click()
    _wait_until_idle(api, session)
    turns = api.get(f"/sessions/{session}/turns")["items"]
    assert max(turns, key=lambda turn: turn["number"])["mode"] == "ask"
    assert api.get(f"/tasks/{task_in_review}")["attempts"][0]["round"] == before["round"]


def test_a_session_without_a_task_is_created_renamed_forked_archived_and_deleted(page: Page, api: Api) -> None:
    page.goto("/sessions")
    page.get_by_role("button", name="New session").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Project").click()
    page.get_by_role("option", name="No project").click()
    dialog.get_by_label("Agent").click()
    page.get_by_role("option", name=re.compile("^Demo")).click()
    dialog.get_by_label("Title").fill("Just talking")
    expect_accessible(page)
    dialog.get_by_role("button", name="Start session").click()
    expect(page).to_have_url(re.compile("/sessions/ses_"))
    expect(page.get_by_role("heading", name="Just talking")).to_be_visible()
    _send(page, "say: nice to meet you")
    expect(_agent_message(page, "nice to meet you")).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Actions for Just talking").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("dialog").get_by_label("Title").fill("We have talked")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", name="We have talked", exact=True)).to_be_visible()
    page.get_by_role("button", name="Actions for We have talked").click()
    page.get_by_role("menuitem", name="Fork").click()
    expect(page.get_by_role("heading", name="Fork of We have talked")).to_be_visible(timeout=SLOW_MS)
    _send(page, "say: in the fork")
    expect(_agent_message(page, "in the fork")).to_be_visible(timeout=SLOW_MS)
    page.go_back()
    expect(page.get_by_role("heading", name="We have talked", exact=True)).to_be_visible()
    page.get_by_role("button", name="Actions for We have talked").click()
    page.get_by_role("menuitem", name="Archive").click()
    expect(page.locator("header").get_by_text("Archived", exact=True)).to_be_visible()
    page.goto("/sessions")
    expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    expect(page.get_by_role("link", name="We have talked", exact=True)).to_have_count(0)
    page.get_by_role("switch", name="Archived").click()
    page.get_by_role("link", name="We have talked").click()
    expect(page).to_have_url(re.compile("/sessions/ses_"))
    expect(page.get_by_role("heading", name="We have talked", exact=True)).to_be_visible()
    session = page.url.rpartition("/")[2].partition("?")[0]
    page.get_by_role("button", name="Actions for We have talked").click()
    page.get_by_role("menuitem", name="Delete").click()
    confirm(page, "Delete")
    expect(page).to_have_url(re.compile("/sessions$"))
    assert api.client.get(f"/sessions/{session}").status_code == 404


@pytest.mark.slow  # tests/acceptance/test_tasks.py starts attempts from a session
def test_a_task_starts_from_a_session(page: Page, api: Api) -> None:
    session = api.create_session("Explore", project=api.sample_project)
    page.goto(f"/sessions/{session['id']}")
    page.get_by_role("button", name="Actions for Explore").click()
    page.get_by_role("menuitem", name="New task from here").click()
    dialog = page.get_by_role("dialog", name="New task from this session")
    expect(dialog.get_by_text("a copy of the session “Explore”")).to_be_visible()
    expect_accessible(page)
    dialog.get_by_label("Title").fill("Go on from here")
    dialog.get_by_role("switch", name="Start now").click()
    dialog.get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page).to_have_url(re.compile("/tasks/tsk_"))
    task = api.get(f"/tasks/{page.url.rpartition('/')[2].partition('?')[0]}")
    assert (task["fromSessionId"], task["projectId"]) == (session["id"], session["projectId"])
