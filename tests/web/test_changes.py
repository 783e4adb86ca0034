"""The changes of an agent: diffs, comments, commits, checkpoints, pull requests, attempts and merging."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, ViewportSize, expect

from tests.acceptance.project_client import ForgeProject, create_forge_project
from tests.forge import GitHub
from tests.harness.platform import Platform, ok, until
from tests.web.api import Api
from tests.web.browser import PHONE, confirm, expect_accessible, expect_fitting_width, open_tab

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 90_000
MIN_TAP_PX, MAX_ONE_LINE_PX = 24, 40
WIDE: ViewportSize = {"width": 1900, "height": 900}
PYTHON = "def hello(name):\\n    return 'hello ' + name\\n"


@pytest.fixture(scope="module")
def site(platform: Platform, github: GitHub) -> ForgeProject:
    return create_forge_project(platform, github)


@pytest.fixture(scope="module")
def draft_project(platform: Platform, github: GitHub) -> ForgeProject:
    made = create_forge_project(platform, github, draft=True)
    settings = ok(platform.client.get(f"/projects/{made.id}"))["settings"]
    settings["verify"] = {"command": "test -e NEW.md"}
    ok(platform.client.patch(f"/projects/{made.id}", json={"settings": settings}))
    return made


@pytest.fixture(scope="module")
def session_with_changes(api: Api, site: ForgeProject) -> dict[str, Any]:
    """A session with uncommitted changes."""
    made = api.create_session("Change by hand", site.id)
    _edit(api, made["sandboxId"], "src/app.py", "print('bye')\n")
    _edit(api, made["sandboxId"], "src/lib/new.py", "def new():\n    return 1\n")
    return made


@pytest.fixture(scope="module")
def task_in_review(api: Api, site: ForgeProject) -> str:
    """A task with an open pull request."""
    lines = (
        f"create src/hello.py: {PYTHON}",
        "replace src/data.txt: two -> zwei",
        "commit: feat: say hello to everybody who comes by and asks for it",
    )
    task = api.create_task("Say hello", *lines, project=site.id)
    api.wait_for_attempt(task, "in_review")
    return task


def _edit(api: Api, sandbox: str, path: str, text: str) -> None:
    where = {"path": f"workspace/{path}"}
    assert api.client.put(f"/sandboxes/{sandbox}/files", params=where, content=text.encode()).is_success


def _open_full_width(page: Page, address: str) -> None:
    """Open the page with one panel in full width."""
    page.set_viewport_size(WIDE)
    page.goto(address)
    page.get_by_role("button", name="Show conversation as a tab").click()
    expect(page.get_by_role("button", name="Show conversation side by side")).to_be_visible()


def _read_prompts(api: Api, session: str) -> str:
    found = api.get(f"/sessions/{session}/messages", limit=200)["items"]
    return "\n".join(json.dumps(candidate["parts"]) for candidate in found if candidate["role"] == "user")


def _comment(page: Page, line: int, text: str) -> None:
    page.get_by_role("button", name=f"Comment on line {line}", exact=True).first.click()
    page.get_by_role("textbox", name="Comment", exact=True).fill(text)
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("region", name=re.compile(f"^Comment on .*line {line}"))).to_contain_text(text)


def _dialog(page: Page) -> Locator:
    return page.get_by_role("alertdialog")


def test_a_diff_is_shown_unified_and_split(page: Page, task_in_review: str) -> None:
    _open_full_width(page, f"/tasks/{task_in_review}?tab=changes")
    tree = page.get_by_role("tree")
    expect(tree.get_by_role("treeitem", name=re.compile("hello.py"))).to_be_visible(timeout=SLOW_MS)
    expect(tree.get_by_role("treeitem", name=re.compile("data.txt"))).to_be_visible()
    expect(page.locator("code .hl-keyword", has_text="def").first).to_be_visible()
    expect(page.locator("code", has_text="zwei")).to_be_visible()
    expect(page.locator("code", has_text="two")).to_be_visible()
    plus = page.get_by_role("button", name="Comment on line 2", exact=True).locator("svg").last
    expect(plus).to_be_hidden()
    page.locator("code", has_text=re.compile("return")).hover()
    expect(plus).to_be_visible()
    expect_accessible(page)
    old = page.locator("code", has_text=re.compile("^two$"))
    new = page.locator("code", has_text=re.compile("^zwei$"))
    assert _top(old) < _top(new)
    page.get_by_role("button", name="Switch to split view").click()
    expect(page.get_by_role("button", name="Switch to unified view")).to_be_visible()
    assert _top(old) == _top(new)
    page.get_by_role("button", name="Switch to unified view").click()
    viewed = page.get_by_role("checkbox", name="Viewed src/hello.py")
    viewed.click()
    expect(page.locator("code .hl-keyword", has_text="def")).to_have_count(0)
    page.reload()
    expect(viewed).to_be_checked()


def _top(one: Locator) -> float:
    box = one.bounding_box()
    assert box
    return round(box["y"])


def test_comments_on_a_task_start_its_next_round(page: Page, api: Api, task_in_review: str) -> None:
    session = api.wait_for_attempt(task_in_review, "in_review")["sessionId"]
    page.goto(f"/tasks/{task_in_review}?tab=changes")
    _comment(page, 2, "create src/bye.py: def bye(): ...")
    page.reload()  # comments are kept until they are sent
    page.locator("header").get_by_role("button", name="Request changes").click()
    dialog = page.get_by_role("dialog", name="Request changes")
    expect(dialog.get_by_role("listitem")).to_contain_text("create src/bye.py")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Add a message").click()  # opens the same dialog
    expect(dialog.get_by_role("listitem")).to_contain_text("create src/bye.py")
    dialog.get_by_label("What should be different?").fill("Please be polite.")
    expect_accessible(page)
    dialog.get_by_role("button", name="Request changes").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Send 1 comment")).to_be_hidden()
    until(lambda: api.get(f"/tasks/{task_in_review}")["attempts"][0]["round"] == 2, 60)
    api.wait_for_attempt(task_in_review, "in_review")
    prompts = _read_prompts(api, session)
    assert "Please be polite." in prompts
    assert re.search(r"src/(data\.txt|hello\.py):2", prompts)
    assert "create src/bye.py" in prompts
    expect(page.locator("h3", has_text="bye.py")).to_be_visible(timeout=SLOW_MS)  # the diff updates without a reload


def test_on_a_phone_a_tap_on_a_line_opens_a_comment(phone: Page, task_in_review: str) -> None:
    phone.goto(f"/tasks/{task_in_review}?tab=changes")
    button = phone.get_by_role("button", name="Comment on line 2", exact=True).first
    expect(button.locator("svg")).to_be_visible(timeout=SLOW_MS)  # without hovering
    push = phone.get_by_role("button", name="Push", exact=True).bounding_box()
    assert push
    assert push["x"] + push["width"] > PHONE["width"] * 0.8, "the buttons are at the end of their line"
    box = button.bounding_box()
    assert box
    assert min(box["width"], box["height"]) >= MIN_TAP_PX, box
    phone.locator("code", has_text=re.compile("^zwei$")).tap()
    expect(phone.get_by_role("textbox", name="Comment", exact=True)).to_be_visible()
    expect_fitting_width(phone)
    phone.goto(f"/tasks/{task_in_review}?tab=pull")
    number = phone.get_by_role("tabpanel").locator("h2").get_by_text(re.compile(r"^#\d+$"))
    expect(number).to_be_visible(timeout=SLOW_MS)
    box = number.bounding_box()
    assert box
    assert box["height"] < MAX_ONE_LINE_PX, "the number must fit on one line"
    expect_fitting_width(phone)
    open_tab(phone, "sandbox")
    tabs = phone.get_by_role("tablist")
    end = tabs.evaluate("list => list.scrollWidth - list.clientWidth")
    assert end > 0
    expect(tabs).to_have_js_property("scrollLeft", end)  # the last tab is not below the fading edge


@pytest.mark.slow  # the test of comments on a task runs always
def test_comments_in_a_session_start_its_next_turn(page: Page, api: Api, session_with_changes: dict[str, Any]) -> None:
    page.goto(f"/sessions/{session_with_changes['id']}?tab=changes")
    _comment(page, 1, "say: heard-the-comment")
    page.get_by_role("button", name="Send 1 comment").click()
    expect(page.get_by_test_id("conversation").locator("p", has_text="heard-the-comment")).to_be_visible(
        timeout=SLOW_MS
    )
    assert re.search(r"src/(app|lib/new)\.py:1", _read_prompts(api, session_with_changes["id"]))
    _comment(page, 1, "say: heard-this-one-too")
    box = page.get_by_label("Message to the agent")
    box.fill("Read this:")
    expect(page.get_by_text("1 comment on the changes will be sent too.")).to_be_visible()
    box.press("Enter")
    expect(page.get_by_test_id("conversation").locator("p", has_text="heard-this-one-too")).to_be_visible(
        timeout=SLOW_MS
    )
    assert "Read this:" in _read_prompts(api, session_with_changes["id"])
    expect(page.get_by_role("button", name="Send 1 comment")).to_be_hidden()


def test_the_diff_and_the_status_load_without_waiting_for_the_git_summary(
    page: Page, session_with_changes: dict[str, Any]
) -> None:
    held_routes: list[Route] = []
    page.route(f"**/api/v1/git/{session_with_changes['sandboxId']}", lambda route: held_routes.append(route))  # noqa: PLW0108
    with page.expect_response("**/diff?against=base") as diff, page.expect_response("**/status") as status:
        page.goto(f"/sessions/{session_with_changes['id']}?tab=changes")
    assert (diff.value.status, status.value.status) == (200, 200)
    for route in held_routes:
        route.continue_()
    expect(page.get_by_role("button", name="Comment on line 1", exact=True).first).to_be_visible()


@pytest.mark.slow  # test_files_terminal.py tests terminals
def test_a_terminal_opens_in_the_checkout(page: Page, session_with_changes: dict[str, Any]) -> None:
    page.goto(f"/sessions/{session_with_changes['id']}?tab=terminal")
    rows = page.get_by_test_id("terminal").locator(".xterm-rows")
    expect(rows).to_contain_text("$", timeout=SLOW_MS)
    page.get_by_test_id("terminal").locator("textarea").focus()
    page.keyboard.type("test -f src/app.py && echo in-$((40+2))")
    page.keyboard.press("Enter")
    expect(rows).to_contain_text("in-42")


def test_changes_are_committed_with_the_suggested_message_and_discarded(
    page: Page, api: Api, session_with_changes: dict[str, Any]
) -> None:
    page.goto(f"/sessions/{session_with_changes['id']}?tab=changes")
    box = page.get_by_role("region", name="Uncommitted changes")
    expect(box).to_contain_text("2 files", timeout=SLOW_MS)
    page.get_by_role("button", name="Discard uncommitted changes in src/app.py").click()
    _dialog(page).get_by_role("button", name="Discard").click()
    expect(box).to_contain_text("1 file")
    box.get_by_role("button", name="Commit…").click()
    box.get_by_label("Commit message").fill("Added a new thing")
    box.get_by_role("button", name="Commit 1 file").click()
    box.get_by_role("button", name="Commit with this message").click()
    expect(box).to_be_hidden()
    (newest, *_) = api.get(f"/git/{session_with_changes['sandboxId']}/history")["items"]
    assert re.match(r"\w+(\(.*\))?: ", newest["subject"]), newest
    _edit(api, session_with_changes["sandboxId"], "src/loose.txt", "to be thrown away\n")
    page.get_by_role("button", name="Refresh").click()
    page.mouse.move(0, 0)  # the tooltip of the button under the mouse covers the next button
    box.get_by_role("button", name=re.compile("^Discard")).click()
    _dialog(page).get_by_role("button", name="Discard").click()
    expect(box).to_be_hidden()


@pytest.mark.slow  # tests/integration/platform/domain/git/test_service.py tests it without a browser
def test_a_checkpoint_is_saved_and_restored_into_a_new_sandbox(page: Page, api: Api, site: ForgeProject) -> None:
    made = api.create_session("Keep and restore", site.id)
    session, sandbox = made["id"], made["sandboxId"]
    _edit(api, sandbox, "KEPT.md", "as it was when it was kept\n")
    api.client.post("/git/commit", params={"wait": 60}, json={"sandboxId": sandbox, "message": "docs: keep"})
    page.goto(f"/sessions/{session}?tab=history")
    expect(page.get_by_role("button", name="docs: keep")).to_be_visible(timeout=SLOW_MS)
    expect_accessible(page)
    page.get_by_role("button", name="docs: keep").click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator("code", has_text="as it was when it was kept")).to_be_visible()
    expect(page.get_by_role("tooltip")).to_have_count(0)  # of the Close button
    sheet.get_by_role("button", name="Close").click()
    expect(sheet).to_be_hidden()
    _edit(api, sandbox, "LOOSE.md", "not committed\n")
    page.get_by_role("button", name="Save checkpoint").click()
    restore = page.get_by_role("button", name=re.compile("^Restore checkpoint from"))
    expect(restore.first).to_be_visible()
    _edit(api, sandbox, "LOOSE.md", "spoilt\n")
    restore.first.click()
    _dialog(page).get_by_role("button", name="Restore").click()
    expect(_dialog(page)).to_be_hidden(timeout=SLOW_MS)
    fresh = until(lambda: _new_id(api.get(f"/sessions/{session}")["sandboxId"], sandbox), 90)
    where = {"path": "workspace/LOOSE.md"}
    until(lambda: api.client.get(f"/sandboxes/{fresh}/files", params=where).text == "not committed\n", 90)
    expect(page.get_by_role("button", name="docs: keep")).to_be_visible(timeout=SLOW_MS)


def _new_id(now: str | None, before: str) -> str | None:
    return now if now != before else None


def test_a_draft_pull_request_is_reviewed_and_merged(
    page: Page, api: Api, draft_project: ForgeProject, github: GitHub
) -> None:
    task = api.create_task("Hand it in", "create NEW.md: new", "commit: docs: new", project=draft_project.id)
    api.wait_for_attempt(task, "in_review")
    pull = api.get(f"/tasks/{task}/pull-request")
    page.goto(f"/tasks/{task}?tab=pull")
    panel = page.get_by_role("tabpanel")
    expect(panel.get_by_text("Draft", exact=True)).to_be_visible(timeout=SLOW_MS)
    expect(panel.get_by_role("button", name="Merge", exact=True)).to_be_disabled()
    expect(panel.get_by_text("Verify: test -e NEW.md")).to_be_visible()
    expect(panel.get_by_text("passed in the sandbox")).to_be_visible()
    expect(panel.get_by_text(re.compile("^No checks"))).to_have_count(0)
    expect(panel.get_by_text(re.compile("· updated (just now|.* ago)"))).to_be_visible()
    expect(panel.get_by_role("button", name=re.compile("^Push"))).to_have_count(0)
    grace = github.colleague("grace")
    grace.check(draft_project.slug, pull["headCommit"], "success", name="the-build")
    expect(panel.get_by_text("the-build")).to_be_visible(timeout=SLOW_MS)
    expect(panel.get_by_text("Checks passed")).to_be_visible()
    grace.approve(draft_project.slug, pull["number"], "Looks right to me.")
    expect(panel.get_by_text("Looks right to me.")).to_be_visible(timeout=SLOW_MS)
    expect(panel.get_by_text("Approved").first).to_be_visible()
    expect_accessible(page)
    panel.get_by_role("button", name="Mark as ready for review").click()
    expect(panel.get_by_text("Draft", exact=True)).to_be_hidden(timeout=SLOW_MS)
    api.wait_for_attempt(task, "in_review")
    open_tab(page, "changes")
    _comment(page, 1, "say: heard-it-later")
    page.locator("header").get_by_role("button", name="Merge", exact=True).click()
    expect(_dialog(page)).to_contain_text("1 comment on the changes is not sent")
    expect(_dialog(page)).to_contain_text("Its sandbox is deleted")
    expect_accessible(page)
    confirm(page, "Go back")
    open_tab(page, "pull")
    panel.get_by_role("button", name="Merge", exact=True).click()
    expect(_dialog(page)).to_contain_text("1 comment on the changes is not sent")
    expect(_dialog(page)).to_contain_text("Its sandbox is deleted")
    _dialog(page).get_by_role("button", name="Merge").click()
    expect(panel.get_by_text("Merged").first).to_be_visible(timeout=SLOW_MS)
    until(lambda: api.get(f"/tasks/{task}")["status"] == "done", 60)
    expect(page.locator("header").get_by_text("Done").first).to_be_visible()

    open_tab(page, "history")
    expect(page.get_by_role("button", name="Save checkpoint")).to_have_count(0, timeout=SLOW_MS)
    open_tab(page, "changes")
    bar = page.get_by_role("region", name="Comments")
    expect(bar).to_contain_text("Merged. Start a new sandbox to continue")
    expect(bar.get_by_role("button", name="Send 1 comment")).to_have_count(0)
    expect_accessible(page)
    bar.get_by_role("button", name="Start new sandbox").click()
    bar.get_by_role("button", name="Send 1 comment").click(timeout=SLOW_MS)
    agent_message = page.get_by_test_id("conversation").locator("p", has_text="heard-it-later")
    expect(agent_message).to_be_visible(timeout=SLOW_MS)
    assert draft_project.repository.read("main", "NEW.md") == b"new\n"


@pytest.mark.slow  # the next test merges such a branch
def test_without_a_forge_a_pushed_branch_is_shown_with_its_diff(page: Page, api: Api) -> None:
    session = api.create_session("No forge", api.sample_project)
    _edit(api, session["sandboxId"], "PLAIN.md", "for a plain remote\n")
    body = {"sandboxId": session["sandboxId"], "message": "docs: plain"}
    assert api.client.post("/git/commit", params={"wait": 60}, json=body).is_success
    page.goto(f"/sessions/{session['id']}?tab=pull")
    expect(page.get_by_role("heading", name="Branch not pushed yet")).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Push branch").click()
    panel = page.get_by_role("tabpanel")
    expect(panel.get_by_text("Pushed", exact=True)).to_be_visible(timeout=SLOW_MS)
    expect(panel.locator("code", has_text="for a plain remote")).to_be_visible(timeout=SLOW_MS)
    expect(panel.get_by_text("1 commit", exact=True)).to_be_visible()
    expect_accessible(page)
    push = panel.get_by_role("button", name="Push new commits")
    expect(push).to_have_count(0)
    _edit(api, session["sandboxId"], "PLAIN.md", "for a plain remote, once more\n")
    assert api.client.post("/git/commit", params={"wait": 60}, json=body).is_success
    push.click()
    expect(push).to_have_count(0)
    expect(panel.get_by_text("2 commits", exact=True)).to_be_visible()


@pytest.mark.slow  # tests/integration/platform/domain/forge/test_service.py merges such a branch
def test_without_a_forge_a_task_is_merged_and_its_steps_show_their_results(
    page: Page, api: Api, github: GitHub
) -> None:
    remote = github.repository("acme/plain", files={"README.md": "# Plain\n"})
    token = github.tokens.make("sandyard-bot").text
    settings = {
        "verify": {"command": "date >log.txt; echo FAIL: test_it; grep -q right it.txt", "fixes": 0},
        "agent": {"default": "demo"},
    }
    body = {"name": "Plain", "repository": remote.url, "token": token, "settings": settings}
    project = api.post("/projects", **body, test=True)["id"]
    task = api.create_task("Right it", "create it.txt: wrong", "fix: replace it.txt: wrong -> right", project=project)
    api.wait_for_attempt(task, "failed")
    page.goto(f"/tasks/{task}?tab=pull")
    failure = page.get_by_role("alert").filter(has_text="fails (exit code 1)")
    failure.get_by_role("button", name="Tell the agent what to do").click()
    expect(page.get_by_role("textbox", name=re.compile("to the agent$"))).to_be_focused()
    failure.get_by_role("button", name="Change the agent").click()
    expect(page.get_by_role("dialog").get_by_label("Agent")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect_accessible(page)
    failure.get_by_role("link", name="Change the verify command").click()
    page.get_by_label("Automatic fix attempts").fill("1")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved", exact=True).first).to_be_visible()
    page.goto(f"/tasks/{task}?tab=pull")
    page.get_by_role("button", name="Retry").click()
    api.wait_for_attempt(task, "in_review")
    steps = page.get_by_role("region", name="Steps")
    expect(steps.get_by_role("listitem").filter(has_text="Verify")).to_contain_text("failed, then fixed by the agent")
    expect(steps.get_by_role("listitem").filter(has_text="Pull request")).to_contain_text("not applicable")
    panel = page.get_by_role("tabpanel")
    expect(panel.get_by_text("Pushed", exact=True)).to_be_visible(timeout=SLOW_MS)
    link = panel.get_by_role("note").get_by_role("link", name="Git and forge settings")
    expect(link).to_have_attribute("href", f"/projects/{project}?tab=forge")
    page.locator("header").first.get_by_role("button", name="Merge", exact=True).click()
    _dialog(page).get_by_role("button", name="Merge").click()
    expect(panel.get_by_text("Merged").first).to_be_visible(timeout=SLOW_MS)
    until(lambda: api.get(f"/tasks/{task}")["status"] == "done", 60)
    listing = subprocess.run(
        ["git", "-C", str(remote.path), "ls-tree", "--name-only", "main"], capture_output=True, check=True
    )
    assert b"it.txt" in listing.stdout.split()
    assert b"log.txt" not in listing.stdout.split(), "files written by the verify command are not committed"
    expect_accessible(page)
    page.goto(f"/tasks/{task}?tab=changes")
    expect(page.get_by_text("The sandbox is gone. Showing files from")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_text("resumes the sandbox")).to_have_count(0)
    expect(page.get_by_role("button", name="Update", exact=True)).to_be_disabled()
    expect(page.get_by_role("button", name=re.compile("^Comment on line"))).to_have_count(0)
    expect(page.get_by_role("button", name="Start over")).to_have_count(0)
    page.get_by_role("button", name="More actions").click()
    expect(page.get_by_role("menuitem", name="Start over")).to_be_visible()


def test_one_of_two_attempts_is_picked(page: Page, api: Api, site: ForgeProject) -> None:
    attempts = [{"agent": "demo"}, {"agent": "demo"}]
    task = api.create_task("Twice", "create TWICE.md: twice", "commit: docs: twice", project=site.id, attempts=attempts)
    until(lambda: [attempt["status"] for attempt in api.get(f"/tasks/{task}")["attempts"]] == ["ready", "ready"], 180)
    page.goto(f"/tasks/{task}")
    page.get_by_role("button", name="Pick an attempt").click()
    columns = page.get_by_role("article", name=re.compile("^Attempt "))
    expect(columns).to_have_count(2)
    one, other = (page.get_by_role("article", name=f"Attempt {number}", exact=True) for number in (1, 2))
    for column in (one, other):
        expect(column).to_contain_text("1 file")
    expect_accessible(page)
    other.get_by_role("button", name="Pick this attempt").click()
    _dialog(page).get_by_role("button", name="Pick").click()
    expect(one).to_contain_text("Archived", timeout=SLOW_MS)
    expect(other).to_contain_text("In review", timeout=SLOW_MS)
    statuses = {made["number"]: made["status"] for made in api.get(f"/tasks/{task}")["attempts"]}
    assert statuses == {1: "archived", 2: "in_review"}
    assert api.get(f"/tasks/{task}/pull-request")["state"] == "open"
