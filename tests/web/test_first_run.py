"""The first run: signing in, the three welcome steps, and the first branch."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.harness.platform import Platform
from tests.models import ModelServer
from tests.web.api import Api
from tests.web.browser import DESKTOP, TIMEOUT_MS, console_errors, expect_accessible

pytestmark = pytest.mark.timeout(300)

TWO_MINUTES_MS = 120_000


@pytest.fixture(scope="module")
def platform(own_platform: Platform) -> Platform:
    return own_platform


def test_the_printed_url_leads_to_the_first_branch_within_two_minutes(browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url, viewport=DESKTOP)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    with console_errors(page) as errors:
        started = time.monotonic()
        page.goto(f"/sign-in#token={platform.token}")
        expect(page).to_have_url(re.compile("/welcome$"))
        assert platform.token not in page.evaluate(
            "location.href + JSON.stringify(history.state) + JSON.stringify(localStorage)"
        )
        expect_accessible(page)
        page.get_by_role("button", name="Use the sample repository").click()
        expect(page.get_by_role("radio", name=re.compile("demo", re.IGNORECASE))).to_be_checked()
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_label("Title")).not_to_have_value("")
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_text(re.compile("The work is on the branch task/[a-z-]+-[0-9a-z]{4}."))).to_be_visible(
            timeout=TWO_MINUTES_MS
        )
        assert time.monotonic() - started < TWO_MINUTES_MS / 1000
        page.get_by_role("link", name="Review changes").click()
        expect(page).to_have_url(re.compile("/tasks/.*tab=changes"))
    assert not errors, errors
    context.close()


def test_a_missing_api_key_can_be_added_wherever_it_is_reported(page: Page, api: Api) -> None:
    """In the second welcome step, in agent pickers and in the list of agents."""
    with ModelServer(keys=["sk-the-real-key"]) as models, console_errors(page) as errors:
        project = api.post("/projects", name="website")["id"]
        page.goto("/welcome")
        page.get_by_role("button", name="website").click()
        page.get_by_role("radio", name=re.compile("^Claude Code needs a key")).click()
        expect(page.get_by_role("button", name="Continue")).to_be_disabled()
        expect(page.get_by_role("heading", name="Claude Code needs an Anthropic key")).to_be_visible()
        expect_accessible(page)
        enter_key(page.get_by_role("form"), models.url, "sk-a-wrong-key")
        expect(page.get_by_role("alert")).to_contain_text("Anthropic rejected the API key (401).")
        steps = page.get_by_role("list", name="Steps")
        expect(steps.get_by_role("img", name="done")).to_have_count(1)
        assert api.get("/model-providers")["items"] == []
        enter_key(page.get_by_role("form"), models.url, "sk-the-real-key")
        expect(page.get_by_text("Anthropic key saved")).to_be_visible()
        expect(page.get_by_label("Title")).to_be_visible()
        expect(
            page.get_by_text("Claude Code works on website, on a new branch from the default branch.")
        ).to_be_visible()
        page.get_by_role("button", name="Add a missing test").click()
        expect(page.get_by_label("What should the agent do?")).to_have_value(re.compile("has no test"))
        expect(steps.get_by_role("img", name="done")).to_have_count(2)
        page.get_by_role("button", name="Back").click()
        expect(page.get_by_role("radio", name=re.compile("^Claude Code ready"))).to_be_checked()

        page.get_by_role("radio", name="Demo").click()
        expect(page.get_by_text("no model and no network")).to_have_count(1)  # shown once
        page.get_by_role("button", name="Continue").click()  # only for the first task: the demo agent does no real work
        expect(page.get_by_label("Title")).to_be_visible()
        page.goto(f"/projects/{project}?tab=agent")
        expect(page.get_by_label("Default agent")).to_have_text("Claude Code")
        later = api.post("/projects", name="added later")["id"]
        page.goto(f"/projects/{later}?tab=agent")
        expect(page.get_by_label("Default agent")).to_have_text("Platform default: Claude Code")
        page.goto(f"/board?project={project}&new=true")
        dialog = page.get_by_role("dialog")
        agent = dialog.get_by_label("Agent")
        expect(agent).to_have_text("Project default: Claude Code")
        agent.click()
        expect(page.get_by_role("option", name="Claude Code", exact=True)).to_be_visible()
        note = dialog.get_by_role("note").filter(has_text="has no key for its model")
        expect(note).to_have_count(0)
        page.get_by_role("option", name="Gemini CLI · needs a key").click()
        expect_accessible(page)
        note.get_by_role("button", name="Add key").click()
        expect(page.get_by_role("dialog", name="Add a key for Gemini CLI").get_by_label("API key")).to_be_visible()
        page.keyboard.press("Escape")
        expect(note).to_be_visible()

        page.goto("/agents")
        expect_accessible(page)
        page.get_by_role("button", name="Add key for Gemini CLI").click()
        expect(page.get_by_role("dialog", name="Add a key for Gemini CLI").get_by_label("API key")).to_be_visible()
        page.keyboard.press("Escape")
    assert not errors, errors


@pytest.mark.slow  # test_failed_tasks_show_the_reason in tests/acceptance/test_tasks.py, and the test above adds a key
def test_a_missing_api_key_can_be_added_on_the_page_of_the_task_that_failed(page: Page, api: Api) -> None:
    with ModelServer(keys=["sk-the-real-key"]) as models, console_errors(page) as errors:
        task = api.create_task("Ask Gemini", "Say hello.", agent="gemini")
        api.wait_for_attempt(task, "failed")
        page.goto(f"/tasks/{task}")
        failure = page.get_by_role("alert").filter(has_text="no Gemini API key is set up")
        expect(failure).to_be_visible()
        expect(page.get_by_text("sandyard model")).to_have_count(0)
        failure.get_by_role("button", name="Add key").click()
        enter_key(page.get_by_role("dialog"), models.url, "sk-the-real-key")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(failure).to_be_hidden()
        api.post(f"/tasks/{task}/stop")
        api.wait_for_attempt(task, "cancelled")

        page.get_by_role("button", name="More actions").click()
        page.get_by_role("menuitem", name="Edit").click()
        page.get_by_role("dialog").get_by_label("Agent").click()
        page.get_by_role("option", name="Project default: Demo agent").click()
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        refused: list[str] = []
        page.on(
            "response",
            lambda candidate: (
                refused.append(f"{candidate.status} {candidate.url}") if candidate.status >= 400 else None
            ),
        )
        page.get_by_role("button", name="Retry with Demo agent").click()
        assert api.wait_for_attempt(task, "in_review")["agent"] == "demo"
        expect(page.get_by_role("tab", name="Changes")).to_be_visible()
        assert not refused, refused  # nothing is requested before it exists
    assert not errors, errors


def test_settings_opened_from_the_welcome_page_link_back_to_it(page: Page, api: Api) -> None:
    api.post("/projects", name="plain", repository="https://git.example.org/plain.git")
    page.goto("/welcome")
    page.get_by_role("link", name="Set a password").click()
    page.get_by_role("link", name="Back to Welcome").click()
    page.get_by_role("button", name="plain").click()
    page.get_by_role("link", name="Git and forge settings").click()
    page.get_by_role("link", name="General").click()
    page.get_by_role("link", name="Back to Welcome").click()
    expect(page.get_by_role("radio", name=re.compile("^Demo"))).to_be_visible()
    expect(page.get_by_role("list", name="Steps").get_by_role("img", name="done")).to_have_count(1)
    page.go_back()
    page.go_back()
    page.go_back()
    expect(page.get_by_role("radio", name=re.compile("^Demo"))).to_be_visible()


def enter_key(form: Locator, address: str, key: str) -> None:
    form.get_by_label("Base URL").fill(address)
    form.get_by_label("API key").fill(key)
    form.get_by_role("button", name="Test and save").click()


def test_a_token_signs_in_and_the_requested_page_opens(browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url, viewport=DESKTOP)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.goto("/sandboxes?status=paused")
    expect(page).to_have_url(re.compile("/sign-in"))
    page.get_by_role("button", name="Sign in with a token instead").click()
    expect(page.get_by_text("The token that sandyard up printed")).to_be_visible()
    page.get_by_label("Token").fill("sy_wrong")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid token")
    expect_accessible(page)
    page.get_by_label("Token").fill(platform.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/sandboxes\?status=paused$"))  # the page that was requested
    page.get_by_role("button", name=re.compile("^Account: ")).click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    page.goto("/board")
    expect(page).to_have_url(re.compile("/sign-in"))
    expect(page.get_by_label("Token")).to_be_visible()  # the method that was used last
    context.close()


def test_sign_in_redirects_only_to_pages_of_this_site(browser: Browser, platform: Platform) -> None:
    context = browser.new_context(base_url=platform.url)
    page = context.new_page()
    page.goto(f"/sign-in?next=//evil.example/#token={platform.token}")
    page.wait_for_url(re.compile("/(welcome|board)"))
    assert page.url.startswith(platform.url)
    context.close()
