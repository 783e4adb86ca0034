"""What a person does on the board: cards are made, moved by mouse, keyboard and finger, filtered, stopped and sent back."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Response, Route, ViewportSize, expect

from tests.acceptance.platform import Platform, ok, until
from tests.acceptance.workshop import work
from tests.forge import GitHub
from tests.web.board import Board, act, card, choose, column, drag, shows, title, told
from tests.web.browser import DESK, PHONE, accessible, confirm, darken, fits
from tests.web.yard import Yard

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 120_000
LAPTOP: ViewportSize = {"width": 1440, "height": 900}
LONG = "sleep: 300"
LONG_REASON = (
    "Your OpenAI account has no quota left. Add credit with the provider, or use another key. "
    "It said: You exceeded your current quota, please check your plan and billing details."
)
"""Works until it is stopped."""


GO = "/tmp/go"
WAIT = f"run: until rm {GO} 2>/dev/null; do sleep 0.1; done"
"""Works until it may go on."""
NewBoard = Callable[..., Board]


@pytest.fixture
def new_board(yard: Yard, tmp_path: Path) -> Iterator[NewBoard]:
    """Of a project with a repository of its own. What is at work on it ends with the test."""
    made: list[Board] = []

    def create(**tasks: Any) -> Board:
        folder = tmp_path / f"site-{len(made)}"
        for line in (
            f"git init --quiet --initial-branch main {folder}",
            f"git -C {folder} -c user.name=Ada -c user.email=ada@example.org commit --quiet --allow-empty -m first",
        ):
            subprocess.run(line.split(), check=True)
        body = {"name": f"{tmp_path.name} {len(made)}", "repository": str(folder), "settings": {"tasks": tasks}}
        made.append(Board(yard, str(yard.post("/projects", **body)["id"])))
        return made[-1]

    yield create
    for board in made:
        for task in yard.get("/tasks", projectId=board.project)["items"]:
            if task["status"] == "in_progress":
                yard.post(f"/tasks/{task['id']}/stop")


def _go_on(board: Board, task: str) -> None:
    sandbox = until(lambda: board.get(task)["attempts"][0]["sandboxId"])
    ok(board.yard.client.put(f"/sandboxes/{sandbox}/files", params={"path": GO}, content=b""))


@pytest.fixture
def board(new_board: NewBoard) -> Board:
    return new_board()


def test_an_empty_board_says_how_to_begin(page: Page, board: Board) -> None:
    board.open(page)
    expect(page.get_by_text("No tasks yet")).to_be_visible()
    accessible(page)
    page.get_by_role("button", name="Create your first task").click()
    dialog = page.get_by_role("dialog", name="New task")
    expect(page).to_have_url(re.compile("new=true"))
    expect(dialog.get_by_label("Title")).to_be_focused()
    dialog.get_by_label("Title").fill("Half a thought")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page).not_to_have_url(re.compile("new="))
    page.keyboard.press("c")
    expect(dialog.get_by_label("Title")).to_have_value("Half a thought")
    dialog.get_by_label("Title").fill("c is a letter here")
    choose(page, dialog.get_by_label("Agent"), "Demo agent")
    dialog.get_by_label("Start now").click()
    page.keyboard.press("Control+Enter")
    expect(dialog).to_be_hidden()
    shows(page, "Backlog", "c is a letter here")
    board.open(page, "&new=true")
    expect(dialog.get_by_label("Title")).to_have_value("")


def test_a_task_with_all_that_can_be_said_of_it(page: Page, board: Board) -> None:
    first = board.task("The first step")
    board.open(page, "&new=true")
    dialog = page.get_by_role("dialog", name="New task")
    dialog.get_by_text("Branch, priority, budget, dependencies").click()
    dialog.get_by_label("Budget in dollars").fill("much")
    dialog.get_by_label("Title").press("Control+Enter")
    for label, fault in (("Title", "Enter a title"), ("Budget in dollars", "Enter an amount above 0")):
        expect(dialog.get_by_label(label)).to_have_attribute("aria-invalid", "true")
        expect(dialog.get_by_label(label)).to_have_accessible_description(re.compile(fault))
    expect(dialog.get_by_label("Title")).to_be_focused()
    dialog.get_by_label("Title").fill("The second step")
    dialog.get_by_label("Budget in dollars").fill("1.5")
    dialog.get_by_label("Budget in tokens").fill("20000")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Priority").fill("")
    expect(dialog.get_by_label("Priority"), "what was opened stays so").to_be_visible()
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Base branch").fill("no good..")
    choose(page, dialog.get_by_label("Agent"), "Claude Code")
    dialog.get_by_label("Model").fill("a-model")
    dialog.get_by_role("button", name="Add attempt").click()
    choose(page, dialog.get_by_label("Agent of attempt 2"), "Demo agent")
    expect(dialog.get_by_label("Model of attempt 2")).to_be_disabled()
    dialog.get_by_label("The first step").click()
    dialog.get_by_role("button", name="Create and start").click()
    expect(dialog.get_by_label("Base branch"), "the platform's word").to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Base branch").fill("main")
    accessible(page)
    dialog.get_by_role("button", name="Create and start").click()
    expect(dialog).to_be_hidden()
    mine = card(column(page, "Backlog"), "The second step")
    for words in ("Starts when unblocked", "Blocked by The first step", "2 attempts", "Priority 7"):
        expect(mine).to_contain_text(words)
    (made,) = (one for one in board.yard.get("/tasks", projectId=board.project)["items"] if one["id"] != first)
    wanted = [{"agent": "claude", "model": "a-model"}, {"agent": "demo", "model": None}]
    assert made["wanted"] == wanted
    assert made["needs"] == [first]
    assert made["budget"] == {"usd": 1.5, "tokens": 20000}
    assert (made["priority"], made["baseBranch"], made["startWhenReady"]) == (7, "main", True)


def test_a_card_that_is_dragged_starts_and_arrives_by_itself(page: Page, board: Board) -> None:
    """And goes back to the agent with words, to arrive again."""
    task = board.task("Write it", "create A.md: one", "commit: docs: one", WAIT)
    board.open(page)
    drag(page, "Write it", "In progress")
    mine = card(column(page, "In progress"), "Write it")
    expect(mine).to_contain_text("Agent working", timeout=SLOW_MS)
    expect(mine).to_contain_text("sandbox running")
    _go_on(board, task)
    review = card(column(page, "In review"), "Write it")
    expect(review).to_contain_text(board.yard.rests(task, "in_review")["branch"], timeout=SLOW_MS)
    expect(review.get_by_title("Elapsed")).to_be_visible()

    drag(page, "Write it", "In progress")
    dialog = page.get_by_role("dialog", name="Request changes")
    dialog.get_by_role("button", name="Request changes").click()
    box = dialog.get_by_label("What should be different?")
    expect(box).to_have_accessible_description(re.compile("Write what the agent should do"))
    dialog.get_by_role("button", name="Cancel").click()
    shows(page, "In review", "Write it")
    act(page, "Write it", "In progress")
    box.fill(f"append A.md: two\ncommit: docs: two\n{WAIT}")
    box.press("Control+Enter")
    expect(mine).to_be_visible()
    _go_on(board, task)
    expect(review).to_be_visible(timeout=SLOW_MS)
    (attempt,) = board.get(task)["attempts"]
    assert (attempt["round"], attempt["status"]) == (2, "in_review")


def test_an_order_is_kept(page: Page, board: Board) -> None:
    for words in ("One", "Two", "Three"):
        board.task(words)
    board.open(page)
    shows(page, "Backlog", "One", "Two", "Three")
    drag(page, "Three", "Backlog", above="One")
    shows(page, "Backlog", "Three", "One", "Two")
    title(page, "Three").focus()
    page.keyboard.press("Alt+ArrowDown")
    shows(page, "Backlog", "One", "Three", "Two")
    expect(title(page, "Three")).to_be_focused()
    expect(page.get_by_test_id("announcements")).to_have_text("Three: position 2")
    page.keyboard.press("Alt+ArrowDown")
    shows(page, "Backlog", "One", "Two", "Three")
    page.keyboard.press("Alt+ArrowDown")
    expect(title(page, "Three")).to_be_focused()
    until(lambda: board.tasks() == ["One", "Two", "Three"])
    page.keyboard.press("Home")
    expect(title(page, "One")).to_be_focused()
    page.keyboard.press("Alt+ArrowDown")
    until(lambda: board.tasks() == ["Two", "One", "Three"])
    page.reload()
    shows(page, "Backlog", "Two", "One", "Three")


def test_all_of_it_by_the_keyboard(page: Page, board: Board) -> None:
    board.task("Stays")
    going = board.task("Goes", LONG)
    board.open(page)
    title(page, "Stays").focus()
    page.keyboard.press("ArrowDown")
    expect(title(page, "Goes")).to_be_focused()
    page.keyboard.press("Alt+ArrowRight")
    shows(page, "In progress", "Goes")
    expect(title(page, "Goes")).to_be_focused()
    until(lambda: board.get(going)["status"] == "in_progress")
    page.keyboard.press("ArrowLeft")
    expect(title(page, "Stays")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(title(page, "Goes")).to_be_focused()
    page.keyboard.press("Alt+ArrowRight")
    told(page, "Could not move “Goes”")
    shows(page, "In progress", "Goes")
    expect(page.get_by_test_id("announcements")).to_contain_text("Goes is back in In progress.")
    expect(title(page, "Goes")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Actions for Goes")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Open")).to_be_focused()
    page.keyboard.type("Cancelled")
    expect(page.get_by_role("menuitem", name="Cancelled")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep it running")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    folded = column(page, "Cancelled").get_by_role("button", name="Expand Cancelled 1")
    expect(folded, "the column is folded, and the focus follows the card").to_be_focused()
    page.keyboard.press("Enter")
    shows(page, "Cancelled", "Goes")
    until(lambda: board.get(going)["attempts"][0]["status"] == "cancelled")
    page.reload()
    shows(page, "Cancelled", "Goes")
    column(page, "Cancelled").get_by_role("button", name="Collapse Cancelled").click()
    expect(folded).to_be_visible()
    title(page, "Stays").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/tasks/"))


def test_a_card_that_may_not_move_comes_back(page: Page, new_board: NewBoard) -> None:
    board = new_board(wipLimits={"in_progress": 1})
    board.task("Has the place", LONG, start=True)
    board.task("Wants it", LONG)
    board.open(page)
    expect(column(page, "In progress")).to_contain_text("full, limit 1")
    drag(page, "Wants it", "In progress")
    told(page, "Could not move “Wants it”", "is full (1 of 1 tasks). Move a task out of it")
    shows(page, "Backlog", "Wants it")
    shows(page, "In progress", "Has the place")
    board.task("Another")
    board.settings(wipLimits={"backlog": 1, "in_progress": 3})
    expect(column(page, "Backlog")).to_contain_text("over the limit of 1")
    expect(column(page, "In progress")).to_contain_text("limit 3")

    page.route("**/api/v1/tasks/*/move", lambda route: route.abort())
    drag(page, "Another", "Backlog", above="Wants it")
    told(page, "Could not move “Another”")
    shows(page, "Backlog", "Wants it", "Another")
    drag(page, "Another", "Done")
    expect(page.get_by_test_id("announcements")).to_contain_text("Another is back in Backlog")
    shows(page, "Backlog", "Wants it", "Another")
    shows(page, "Done")
    page.unroute("**/api/v1/tasks/*/move")
    drag(page, "Another", "Cancelled")
    expect(page.get_by_role("button", name="Expand Cancelled 1")).to_be_visible()
    drag(page, "Wants it", "Done")
    shows(page, "Done", "Wants it")
    until(lambda: board.tasks("done") == ["Wants it"])
    assert board.tasks("cancelled") == ["Another"]

    drag(page, "Has the place", "Cancelled")
    asked = page.get_by_role("alertdialog", name="Cancel this task?")
    asked.get_by_role("button", name="Keep it running").click()
    shows(page, "In progress", "Has the place")
    drag(page, "Has the place", "Cancelled")
    asked.get_by_role("button", name="Cancel task").click()
    until(lambda: sorted(board.tasks("cancelled")) == ["Another", "Has the place"])


def test_what_is_looked_for_is_in_the_address(page: Page, board: Board) -> None:
    board.task("Mend the login", "create A.md: upper case")
    board.task("Paint the fence", agent="claude")
    board.task("Never ends", LONG, start=True)
    board.open(page)
    shows(page, "Backlog", "Mend the login", "Paint the fence")
    page.get_by_label("Search cards").fill("CASE login")
    shows(page, "Backlog", "Mend the login")
    expect(column(page, "Backlog")).to_contain_text("1 of 2")
    expect(page).to_have_url(re.compile(r"q=CASE(\+|%20)login"))
    expect(column(page, "In progress")).to_contain_text("No matching tasks.")
    other = page.context.new_page()
    other.goto(page.url)
    shows(other, "Backlog", "Mend the login")
    expect(other.get_by_label("Search cards")).to_have_value("CASE login")
    other.close()
    page.get_by_role("button", name="Clear filters").click()
    expect(page).to_have_url(re.compile("/board$"))
    board.open(page)
    choose(page, page.get_by_role("combobox", name="Agent"), "Claude Code")
    shows(page, "Backlog", "Paint the fence")
    shows(page, "In progress")
    expect(page).to_have_url(re.compile("agent=claude"))
    choose(page, page.get_by_role("combobox", name="Agent"), "Any agent")
    choose(page, page.get_by_role("combobox", name="Show"), "Running")
    shows(page, "Backlog")
    shows(page, "In progress", "Never ends")
    page.reload()
    shows(page, "Backlog")
    shows(page, "In progress", "Never ends")


@pytest.mark.slow  # tests/unit/platform/api/test_tasks.py has the pages
def test_a_long_column_is_loaded_as_it_is_scrolled(page: Page, board: Board) -> None:
    """The first answer has what fits on a screen; counts, search, moves and what happens meanwhile are of all cards."""
    cards = [board.task(f"Card {number:02}") for number in range(60)]
    answers: list[Response] = []
    page.on("response", lambda one: answers.append(one) if "/api/v1/board?" in one.url else None)
    board.open(page)
    backlog = column(page, "Backlog")
    expect(title(page, "Card 00")).to_be_visible()
    expect(backlog.get_by_text("60", exact=True)).to_be_visible()
    assert len(answers[0].json()["columns"][0]["items"]) == 25
    assert len(answers[0].body()) < 150_000
    assert not any("Card 30" in one.text() for one in answers)

    def reach(words: str) -> None:
        def look() -> bool:
            backlog.locator("[data-scrolls]").evaluate("one => { one.scrollTop = one.scrollHeight }")
            return title(page, words).is_visible()

        until(look, 30)

    reach("Card 59")
    expect(backlog.get_by_role("button", name="Show more")).to_have_count(0)
    drag(page, "Card 59", "Done")
    shows(page, "Done", "Card 59")
    expect(backlog.get_by_text("59", exact=True)).to_be_visible()
    until(lambda: board.get(cards[59])["status"] == "done")
    drag(page, "Card 58", "Backlog", above="Card 56")
    until(lambda: board.get(cards[58])["position"] == 56)
    board.yard.post(f"/tasks/{cards[57]}/move", status="cancelled")
    expect(backlog.get_by_text("58", exact=True)).to_be_visible()
    expect(title(page, "Card 58"), "what was scrolled to stays").to_be_visible()
    page.get_by_label("Search cards").fill("card 45")
    shows(page, "Backlog", "Card 45")
    expect(backlog).to_contain_text("1 of 58")


def test_a_card_says_that_it_needs_a_person(page: Page, board: Board) -> None:
    board.task("Quiet")
    task = board.task("Asks", "ask: Which colour?", "create C.md: {answer}", "commit: docs: colour", start=True)
    board.open(page)
    mine = card(column(page, "In progress"), "Asks")
    expect(mine).to_contain_text("Needs you", timeout=SLOW_MS)
    choose(page, page.get_by_role("combobox", name="Show"), "Needs you")
    shows(page, "In progress", "Asks")
    shows(page, "Backlog")
    (ask,) = board.yard.get("/asks", taskId=task, status="pending")["items"]
    board.yard.post(f"/asks/{ask['id']}/answer", content={"answer": "blue"})
    shows(page, "In progress")
    choose(page, page.get_by_role("combobox", name="Show"), "All cards")
    expect(card(column(page, "In review"), "Asks")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_text("Needs you", exact=True)).to_have_count(0)
    # a repository without pull requests: its branch leads to the changes
    card(column(page, "In review"), "Asks").get_by_role("link", name=re.compile("^Branch ")).click()
    expect(page).to_have_url(re.compile(f"/tasks/{task}\\?tab=changes$"))
    expect(page.get_by_role("tab", name="Changes")).to_have_attribute("aria-selected", "true")


def test_a_card_says_that_its_agent_is_being_installed(page: Page, new_board: NewBoard) -> None:
    board = new_board()
    install = {"script": "echo fetching it; sleep 5; echo no such package; exit 1", "check": "false"}
    board.yard.post("/agents", name="new-here", title="New Here", definition={"argv": ["true"], "install": install})
    board.open(page)
    board.task("With a new agent", start=True, agent="new-here")
    shown = card(page, "With a new agent")
    expect(shown).to_contain_text("Installing New Here (first time only)", timeout=SLOW_MS)
    shown.get_by_role("link").first.click()
    expect(page.get_by_text("fetching it")).to_be_visible()
    expect(page.locator("header").get_by_text("Installing New Here (first time only)")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("no such package", timeout=SLOW_MS)


@pytest.mark.slow
def test_a_spent_budget_is_raised_where_it_is_told(page: Page, new_board: NewBoard) -> None:
    board = new_board()
    task = board.task("Costs too much", "fail: no", start=True, budget={"usd": 0.1})
    until(lambda: board.get(task)["error"])

    def spent(route: Route) -> None:
        if route.request.method != "GET":
            route.continue_()
            return
        told = board.get(task)
        if told["attempts"][0]["status"] == "failed":
            told["attempts"][0] |= {"error": "The task may spend 0.10 US dollars.", "errorCode": "over_budget"}
        route.fulfill(json=told)

    page.route(f"**/api/v1/tasks/{task}", spent)
    page.goto(f"/tasks/{task}")
    page.get_by_role("button", name="Raise the budget").click()
    dialog = page.get_by_role("dialog", name="Raise the budget of this task")
    dialog.get_by_label("Budget in dollars").fill("0")
    dialog.get_by_role("button", name="Save and retry").click()
    expect(dialog.get_by_label("Budget in dollars")).to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Budget in dollars").fill("2.5")
    accessible(page)
    dialog.get_by_role("button", name="Save and retry").click()
    expect(dialog).to_have_count(0)
    now = board.get(task)
    assert (now["budget"]["usd"], now["attempts"][0]["round"]) == (2.5, 2)


@pytest.mark.slow
def test_the_queue_and_what_is_stopped_retried_and_deleted(page: Page, new_board: NewBoard) -> None:
    board = new_board(parallel=1)
    first = board.task("First", LONG, start=True)
    until(lambda: board.get(first)["attempts"][0]["status"] == "running")
    second = board.task("Second", f"fail: {LONG_REASON}", start=True)
    until(lambda: board.get(second)["attempts"])
    third = board.task("Third", LONG, start=True)
    board.open(page)
    expect(card(page, "Second")).to_contain_text("Queued, next")
    expect(card(page, "Third")).to_contain_text("Queued, position 2")
    page.get_by_role("button", name="Queue 2 attempts waiting").click()
    waiting = page.get_by_role("dialog").get_by_role("listitem")
    expect(waiting).to_have_count(2)
    expect(waiting.nth(0)).to_contain_text(re.compile("Position 1.*Second", re.DOTALL))
    expect(waiting.nth(1)).to_contain_text(re.compile("Position 2.*Third.*limit of 1 parallel attempts", re.DOTALL))
    accessible(page)
    page.keyboard.press("Escape")

    asked = page.get_by_role("alertdialog", name="Cancel this task?")
    act(page, "First", "Cancelled")
    expect(asked).to_contain_text("Its sandbox is deleted")
    confirm(page, "Keep it running")
    act(page, "First", "Cancel task")
    expect(asked).to_contain_text("Retry continues from them")
    asked.get_by_role("button", name="Cancel task").click()
    expect(page.get_by_role("button", name="Expand Cancelled 1")).to_be_visible()
    failed = card(column(page, "In progress"), "Second")
    expect(failed).to_contain_text("Failed", timeout=SLOW_MS)
    reason = failed.get_by_text(LONG_REASON)
    expect(reason).to_be_visible()
    assert reason.evaluate("shown => shown.scrollHeight <= shown.clientHeight"), "the reason is cut off"
    expect(column(page, "In progress").get_by_role("heading", name="In progress").locator("..")).to_contain_text(
        re.compile("In progress *1 *1 failed")  # Third works, Second does not
    )
    expect(card(page, "Third")).to_contain_text(re.compile("Agent working"), timeout=SLOW_MS)
    expect(page.get_by_role("button", name="Queue nothing waiting")).to_be_visible()
    page.set_viewport_size(PHONE)
    page.goto(f"/tasks/{second}")
    banner = page.locator("header").get_by_role("alert").locator("div").first
    expect(banner).to_contain_text(LONG_REASON)
    assert banner.evaluate("shown => shown.scrollHeight <= shown.clientHeight"), "the banner cuts the reason off"
    page.set_viewport_size(DESK)
    board.open(page)
    act(page, "Second", "Retry")
    expect(failed).to_contain_text("Queued, next")
    page.get_by_role("button", name="Expand Cancelled 1").click()
    page.set_viewport_size(LAPTOP)
    expect(page.get_by_role("button", name=re.compile("^Expand"))).to_have_count(0)
    over = (
        page.locator("[data-column=backlog]").locator("..").evaluate("board => board.scrollWidth - board.clientWidth")
    )
    assert over == 0, f"five columns are {over} px wider than the screen"
    act(page, "First", "Retry")
    expect(card(column(page, "In progress"), "First")).to_contain_text("Queued, position 2")

    act(page, "Third", "Delete")
    confirm(page, "Delete")
    expect(card(page, "Third")).to_have_count(0)
    assert board.yard.client.get(f"/tasks/{third}").status_code == 404
    for name in ("Second", "First"):  # told to continue, the demo agent writes a note
        expect(card(column(page, "In review"), name)).to_be_visible(timeout=SLOW_MS)
    assert len(board.get(first)["attempts"]) == 1, "it goes on with the work it has done"


@pytest.mark.slow  # test_changes.py has it from draft to merge
def test_the_pull_request_of_a_card(page: Page, platform: Platform, github: GitHub, yard: Yard) -> None:
    site = work(platform, github)
    board = Board(yard, site.id)
    board.open(page)
    task = board.task("Greet", "create HELLO.md: hello", "commit: docs: hello", start=True)
    badge = card(column(page, "In review"), "Greet").get_by_role("link", name="Pull request #1 open")
    expect(badge).to_be_visible(timeout=SLOW_MS)
    assert badge.get_attribute("href") == board.get(task)["pullRequest"]["url"]
    expect(badge).to_have_attribute("rel", "noreferrer noopener")
    expect(card(column(page, "In review"), "Greet")).to_contain_text(re.compile("\\+1 \u22120.*Created"))
    github.colleague("grace").merge(site.slug, 1)
    done = card(column(page, "Done"), "Greet")
    expect(done.get_by_role("link", name="Pull request #1 merged")).to_be_visible(timeout=SLOW_MS)


def test_on_a_phone(phone: Page, board: Board) -> None:
    task = board.task("Was there")
    board.open(phone)
    phone.get_by_role("button", name="New task").click()
    dialog = phone.get_by_role("dialog", name="New task")
    dialog.get_by_label("Title").fill("From the train")
    dialog.get_by_label("Description").fill(LONG)
    choose(phone, dialog.get_by_label("Agent"), "Demo agent")
    fits(phone)
    dialog.get_by_label("Start now").click()
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(dialog).to_be_hidden()
    shows(phone, "Backlog", "Was there", "From the train")
    fits(phone)
    accessible(phone)
    act(phone, "From the train", "In progress")
    shows(phone, "Backlog", "Was there")
    columns = phone.get_by_role("navigation", name="Columns")
    columns.get_by_role("button", name="In progress 1").click()
    expect(title(phone, "From the train")).to_be_in_viewport(ratio=1)
    expect(columns.get_by_role("button", name="In progress 1")).to_have_attribute("aria-current", "true")
    columns.get_by_role("button", name="Cancelled 0").click()
    expect(column(phone, "Cancelled").get_by_role("heading")).to_be_in_viewport()
    columns.get_by_role("button", name="Backlog 1").click()
    act(phone, "Was there", "Done")
    until(lambda: board.get(task)["status"] == "done")
    fits(phone)

    # it opens where something is: at work, or else anywhere
    phone.reload()
    expect(title(phone, "From the train")).to_be_in_viewport(ratio=1)
    title(phone, "From the train").click()
    steps = phone.get_by_label("Steps")
    for label in ("Setup", "Sandbox", "Verify", "Pull request"):
        box = steps.get_by_text(label, exact=True).bounding_box()
        assert box, label
        assert box["width"] > 20, f"{label} cannot be read"
        assert 0 <= box["x"] <= box["x"] + box["width"] <= PHONE["width"], f"{label} is out of sight"
    fits(phone)
    board.yard.post(f"/tasks/{phone.url.rpartition('/')[2]}/stop")
    board.open(phone)
    expect(title(phone, "Was there")).to_be_in_viewport(ratio=1)


@pytest.mark.slow
def test_everybody_can_read_it(page: Page, board: Board) -> None:
    task = board.task("Reviewed", "create A.md: one", "commit: docs: one", start=True)
    board.task("Blocked", needs=[task])
    board.task("Urgent", priority=9, attempts=[{"agent": "demo"}, {"agent": "demo"}])
    board.task("Broken", "fail: it rains", start=True)
    board.task("At work", LONG, start=True)
    board.open(page)
    expect(card(column(page, "In review"), "Reviewed")).to_be_visible(timeout=SLOW_MS)
    expect(card(page, "Broken")).to_contain_text("it rains", timeout=SLOW_MS)
    expect(card(page, "At work")).to_contain_text("Agent working", timeout=SLOW_MS)
    accessible(page)
    page.get_by_role("button", name="Actions for At work").click()
    expect(page.get_by_role("menuitem", name="Cancel task")).to_be_visible()
    accessible(page)
    page.keyboard.press("Escape")
    darken(page)
    accessible(page, colours=True)
    page.get_by_role("button", name="Actions for At work").click()
    expect(page.get_by_role("menuitem", name="Cancel task")).to_be_visible()
    accessible(page, colours=True)
