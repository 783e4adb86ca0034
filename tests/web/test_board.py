"""The board: creating cards, moving them by mouse, keyboard and touch, filtering, stopping, retrying and requesting changes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Response, Route, ViewportSize, expect

from tests.acceptance.project_client import create_forge_project
from tests.forge import GitHub
from tests.harness.platform import Platform, ok, until
from tests.web.api import Api
from tests.web.board import (
    Board,
    card,
    choose_action,
    choose_option,
    column,
    drag,
    expect_cards,
    expect_toast,
    title_link,
)
from tests.web.browser import DESKTOP, PHONE, confirm, expect_accessible, expect_fitting_width, switch_to_dark

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 120_000
LAPTOP: ViewportSize = {"width": 1440, "height": 900}
WORK_UNTIL_STOPPED = "sleep: 300"
"""A task that works until it is stopped."""
LONG_REASON = (
    "Your OpenAI account has no quota left. Add credit with the provider, or use another key. "
    "It said: “You exceeded your current quota, please check your plan and billing details.”"
)


GO = "/tmp/go"
WAIT_TO_CONTINUE = f"run: until rm {GO} 2>/dev/null; do sleep 0.1; done"
"""A step that waits for _let_agent_continue."""
NewBoard = Callable[..., Board]


@pytest.fixture
def new_board(api: Api, tmp_path: Path) -> Iterator[NewBoard]:
    """Create the board of a new project with its own repository. Tasks that are still in progress are stopped after the test."""
    made: list[Board] = []

    def create(**tasks: Any) -> Board:
        folder = tmp_path / f"site-{len(made)}"
        for line in (
            f"git init --quiet --initial-branch main {folder}",
            f"git -C {folder} -c user.name=Ada -c user.email=ada@example.org commit --quiet --allow-empty -m first",
        ):
            subprocess.run(line.split(), check=True)
        body = {"name": f"{tmp_path.name} {len(made)}", "repository": str(folder), "settings": {"tasks": tasks}}
        made.append(Board(api, str(api.post("/projects", **body)["id"])))
        return made[-1]

    yield create
    for board in made:
        for task in api.get("/tasks", projectId=board.project)["items"]:
            if task["status"] == "in_progress":
                api.post(f"/tasks/{task['id']}/stop")


def _let_agent_continue(board: Board, task: str) -> None:
    sandbox = until(lambda: board.get_task(task)["attempts"][0]["sandboxId"])
    ok(board.api.client.put(f"/sandboxes/{sandbox}/files", params={"path": GO}, content=b""))


@pytest.fixture
def board(new_board: NewBoard) -> Board:
    return new_board()


def test_an_empty_board_offers_to_create_the_first_task(page: Page, board: Board) -> None:
    board.open(page)
    expect(page.get_by_text("No tasks yet")).to_be_visible()
    expect_accessible(page)
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
    choose_option(page, dialog.get_by_label("Agent"), "Demo agent")
    dialog.get_by_label("Start now").click()
    page.keyboard.press("Control+Enter")
    expect(dialog).to_be_hidden()
    expect_cards(page, "Backlog", "c is a letter here")
    board.open(page, "&new=true")
    expect(dialog.get_by_label("Title")).to_have_value("")


def test_a_task_is_created_with_every_field_of_the_form(page: Page, board: Board) -> None:
    first = board.create_task("The first step")
    board.open(page, "&new=true")
    dialog = page.get_by_role("dialog", name="New task")
    dialog.get_by_text("Branch, priority, budget, dependencies").click()
    dialog.get_by_label("Budget (USD)").fill("much")
    dialog.get_by_label("Title").press("Control+Enter")
    for label, fault in (("Title", "Enter a title"), ("Budget (USD)", "Enter an amount above 0")):
        expect(dialog.get_by_label(label)).to_have_attribute("aria-invalid", "true")
        expect(dialog.get_by_label(label)).to_have_accessible_description(re.compile(fault))
    expect(dialog.get_by_label("Title")).to_be_focused()
    dialog.get_by_label("Title").fill("The second step")
    dialog.get_by_label("Budget (USD)").fill("1.5")
    dialog.get_by_label("Budget (tokens)").fill("20000")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Priority").fill("")
    expect(dialog.get_by_label("Priority"), "the expanded section stays open").to_be_visible()
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Base branch").fill("no good..")
    choose_option(page, dialog.get_by_label("Agent"), "Claude Code")
    dialog.get_by_label("Model").fill("a-model")
    dialog.get_by_role("button", name="Add attempt").click()
    choose_option(page, dialog.get_by_label("Agent of attempt 2"), "Demo agent")
    expect(dialog.get_by_label("Model of attempt 2")).to_be_disabled()
    dialog.get_by_label("The first step").click()
    dialog.get_by_role("button", name="Create and start").click()
    expect(dialog.get_by_label("Base branch"), "the platform rejects the branch name").to_have_attribute(
        "aria-invalid", "true"
    )
    dialog.get_by_label("Base branch").fill("main")
    expect_accessible(page)
    dialog.get_by_role("button", name="Create and start").click()
    expect(dialog).to_be_hidden()
    shown_card = card(column(page, "Backlog"), "The second step")
    for text in ("Starts when unblocked", "Blocked by The first step", "2 attempts", "Priority 7"):
        expect(shown_card).to_contain_text(text)
    (made,) = (task for task in board.api.get("/tasks", projectId=board.project)["items"] if task["id"] != first)
    wanted = [{"agent": "claude", "model": "a-model"}, {"agent": "demo", "model": None}]
    assert made["wanted"] == wanted
    assert made["needs"] == [first]
    assert made["budget"] == {"usd": 1.5, "tokens": 20000}
    assert (made["priority"], made["baseBranch"], made["startWhenReady"]) == (7, "main", True)


def test_a_card_dragged_to_in_progress_starts_and_moves_to_review(page: Page, board: Board) -> None:
    """Requesting changes starts a second round, which also ends in review."""
    task = board.create_task("Write it", "create A.md: one", "commit: docs: one", WAIT_TO_CONTINUE)
    board.open(page)
    drag(page, "Write it", "In progress")
    shown_card = card(column(page, "In progress"), "Write it")
    expect(shown_card).to_contain_text("Agent working", timeout=SLOW_MS)
    expect(shown_card).to_contain_text("sandbox running")
    _let_agent_continue(board, task)
    review = card(column(page, "In review"), "Write it")
    expect(review).to_contain_text(board.api.wait_for_attempt(task, "in_review")["branch"], timeout=SLOW_MS)
    expect(review.get_by_title("Elapsed")).to_be_visible()

    drag(page, "Write it", "In progress")
    dialog = page.get_by_role("dialog", name="Request changes")
    dialog.get_by_role("button", name="Request changes").click()
    box = dialog.get_by_label("What should be different?")
    expect(box).to_have_accessible_description(re.compile("Write what the agent should do"))
    dialog.get_by_role("button", name="Cancel").click()
    expect_cards(page, "In review", "Write it")
    choose_action(page, "Write it", "In progress")
    box.fill(f"append A.md: two\ncommit: docs: two\n{WAIT_TO_CONTINUE}")
    box.press("Control+Enter")
    expect(shown_card).to_be_visible()
    _let_agent_continue(board, task)
    expect(review).to_be_visible(timeout=SLOW_MS)
    (attempt,) = board.get_task(task)["attempts"]
    assert (attempt["round"], attempt["status"]) == (2, "in_review")


def test_the_order_of_cards_is_kept(page: Page, board: Board) -> None:
    for words in ("One", "Two", "Three"):
        board.create_task(words)
    board.open(page)
    expect_cards(page, "Backlog", "One", "Two", "Three")
    drag(page, "Three", "Backlog", above="One")
    expect_cards(page, "Backlog", "Three", "One", "Two")
    title_link(page, "Three").focus()
    page.keyboard.press("Alt+ArrowDown")
    expect_cards(page, "Backlog", "One", "Three", "Two")
    expect(title_link(page, "Three")).to_be_focused()
    expect(page.get_by_test_id("announcements")).to_have_text("Three: position 2")
    page.keyboard.press("Alt+ArrowDown")
    expect_cards(page, "Backlog", "One", "Two", "Three")
    page.keyboard.press("Alt+ArrowDown")
    expect(title_link(page, "Three")).to_be_focused()
    until(lambda: board.list_titles() == ["One", "Two", "Three"])
    page.keyboard.press("Home")
    expect(title_link(page, "One")).to_be_focused()
    page.keyboard.press("Alt+ArrowDown")
    until(lambda: board.list_titles() == ["Two", "One", "Three"])
    page.reload()
    expect_cards(page, "Backlog", "Two", "One", "Three")


def test_the_board_can_be_used_with_the_keyboard_alone(page: Page, board: Board) -> None:
    board.create_task("Stays")
    moving = board.create_task("Goes", WORK_UNTIL_STOPPED)
    board.open(page)
    title_link(page, "Stays").focus()
    page.keyboard.press("ArrowDown")
    expect(title_link(page, "Goes")).to_be_focused()
    page.keyboard.press("Alt+ArrowRight")
    expect_cards(page, "In progress", "Goes")
    expect(title_link(page, "Goes")).to_be_focused()
    until(lambda: board.get_task(moving)["status"] == "in_progress")
    page.keyboard.press("ArrowLeft")
    expect(title_link(page, "Stays")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(title_link(page, "Goes")).to_be_focused()
    page.keyboard.press("Alt+ArrowRight")
    expect_toast(page, "Could not move “Goes”")
    expect_cards(page, "In progress", "Goes")
    expect(page.get_by_test_id("announcements")).to_contain_text("Goes is back in In progress.")
    expect(title_link(page, "Goes")).to_be_focused()
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
    collapsed = column(page, "Cancelled").get_by_role("button", name="Expand Cancelled 1")
    expect(collapsed, "the column is collapsed, and the focus follows the card").to_be_focused()
    page.keyboard.press("Enter")
    expect_cards(page, "Cancelled", "Goes")
    until(lambda: board.get_task(moving)["attempts"][0]["status"] == "cancelled")
    page.reload()
    expect_cards(page, "Cancelled", "Goes")
    column(page, "Cancelled").get_by_role("button", name="Collapse Cancelled").click()
    expect(collapsed).to_be_visible()
    title_link(page, "Stays").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/tasks/"))


def test_a_card_returns_to_its_column_when_its_move_is_rejected(page: Page, new_board: NewBoard) -> None:
    board = new_board(wipLimits={"in_progress": 1})
    board.create_task("Has the place", WORK_UNTIL_STOPPED, start=True)
    board.create_task("Wants it", WORK_UNTIL_STOPPED)
    board.open(page)
    expect(column(page, "In progress")).to_contain_text("full, limit 1")
    drag(page, "Wants it", "In progress")
    expect_toast(page, "Could not move “Wants it”", "is full (1 of 1 tasks). Move a task out of it")
    expect_cards(page, "Backlog", "Wants it")
    expect_cards(page, "In progress", "Has the place")
    board.create_task("Another")
    board.change_task_settings(wipLimits={"backlog": 1, "in_progress": 3})
    expect(column(page, "Backlog")).to_contain_text("over the limit of 1")
    expect(column(page, "In progress")).to_contain_text("limit 3")

    page.route("**/api/v1/tasks/*/move", lambda route: route.abort())
    drag(page, "Another", "Backlog", above="Wants it")
    expect_toast(page, "Could not move “Another”")
    expect_cards(page, "Backlog", "Wants it", "Another")
    drag(page, "Another", "Done")
    expect(page.get_by_test_id("announcements")).to_contain_text("Another is back in Backlog")
    expect_cards(page, "Backlog", "Wants it", "Another")
    expect_cards(page, "Done")
    page.unroute("**/api/v1/tasks/*/move")
    drag(page, "Another", "Cancelled")
    expect(page.get_by_role("button", name="Expand Cancelled 1")).to_be_visible()
    drag(page, "Wants it", "Done")
    expect_cards(page, "Done", "Wants it")
    until(lambda: board.list_titles("done") == ["Wants it"])
    assert board.list_titles("cancelled") == ["Another"]

    drag(page, "Has the place", "Cancelled")
    confirmation = page.get_by_role("alertdialog", name="Cancel this task?")
    confirmation.get_by_role("button", name="Keep it running").click()
    expect_cards(page, "In progress", "Has the place")
    drag(page, "Has the place", "Cancelled")
    confirmation.get_by_role("button", name="Cancel task").click()
    until(lambda: sorted(board.list_titles("cancelled")) == ["Another", "Has the place"])


def test_search_and_filters_are_kept_in_the_url(page: Page, board: Board) -> None:
    board.create_task("Mend the login", "create A.md: upper case")
    board.create_task("Paint the fence", agent="claude")
    board.create_task("Never ends", WORK_UNTIL_STOPPED, start=True)
    board.open(page)
    expect_cards(page, "Backlog", "Mend the login", "Paint the fence")
    page.get_by_label("Search cards").fill("CASE login")
    expect_cards(page, "Backlog", "Mend the login")
    expect(column(page, "Backlog")).to_contain_text("1 of 2")
    expect(page).to_have_url(re.compile(r"q=CASE(\+|%20)login"))
    expect(column(page, "In progress")).to_contain_text("No matching tasks.")
    other = page.context.new_page()
    other.goto(page.url)
    expect_cards(other, "Backlog", "Mend the login")
    expect(other.get_by_label("Search cards")).to_have_value("CASE login")
    other.close()
    page.get_by_role("button", name="Clear filters").click()
    expect(page).to_have_url(re.compile("/board$"))
    board.open(page)
    choose_option(page, page.get_by_role("combobox", name="Agent"), "Claude Code")
    expect_cards(page, "Backlog", "Paint the fence")
    expect_cards(page, "In progress")
    expect(page).to_have_url(re.compile("agent=claude"))
    choose_option(page, page.get_by_role("combobox", name="Agent"), "Any agent")
    choose_option(page, page.get_by_role("combobox", name="Show"), "Running")
    expect_cards(page, "Backlog")
    expect_cards(page, "In progress", "Never ends")
    page.reload()
    expect_cards(page, "Backlog")
    expect_cards(page, "In progress", "Never ends")


@pytest.mark.slow  # tests/unit/platform/api/test_tasks.py tests the pagination
def test_a_long_column_loads_more_cards_while_scrolling(page: Page, board: Board) -> None:
    """The first response holds one screen of cards; counts, search, moves and live updates cover all cards."""
    cards = [board.create_task(f"Card {number:02}") for number in range(60)]
    answers: list[Response] = []
    page.on("response", lambda candidate: answers.append(candidate) if "/api/v1/board?" in candidate.url else None)
    board.open(page)
    backlog = column(page, "Backlog")
    expect(title_link(page, "Card 00")).to_be_visible()
    expect(backlog.get_by_text("60", exact=True)).to_be_visible()
    assert len(answers[0].json()["columns"][0]["items"]) == 25
    assert len(answers[0].body()) < 150_000
    assert not any("Card 30" in answer.text() for answer in answers)

    def scroll_to(words: str) -> None:
        def scroll() -> bool:
            backlog.locator("[data-scrolls]").evaluate("one => { one.scrollTop = one.scrollHeight }")
            return title_link(page, words).is_visible()

        until(scroll, 30)

    scroll_to("Card 59")
    expect(backlog.get_by_role("button", name="Show more")).to_have_count(0)
    drag(page, "Card 59", "Done")
    expect_cards(page, "Done", "Card 59")
    expect(backlog.get_by_text("59", exact=True)).to_be_visible()
    until(lambda: board.get_task(cards[59])["status"] == "done")
    drag(page, "Card 58", "Backlog", above="Card 56")
    until(lambda: board.get_task(cards[58])["position"] == 56)
    board.api.post(f"/tasks/{cards[57]}/move", status="cancelled")
    expect(backlog.get_by_text("58", exact=True)).to_be_visible()
    expect(title_link(page, "Card 58"), "the loaded cards stay").to_be_visible()
    page.get_by_label("Search cards").fill("card 45")
    expect_cards(page, "Backlog", "Card 45")
    expect(backlog).to_contain_text("1 of 58")


def test_a_card_shows_that_its_agent_waits_for_an_answer(page: Page, board: Board) -> None:
    board.create_task("Quiet")
    task = board.create_task("Asks", "ask: Which colour?", "create C.md: {answer}", "commit: docs: colour", start=True)
    board.open(page)
    shown_card = card(column(page, "In progress"), "Asks")
    expect(shown_card).to_contain_text("Needs you", timeout=SLOW_MS)
    choose_option(page, page.get_by_role("combobox", name="Show"), "Needs you")
    expect_cards(page, "In progress", "Asks")
    expect_cards(page, "Backlog")
    (ask,) = board.api.get("/asks", taskId=task, status="pending")["items"]
    board.api.post(f"/asks/{ask['id']}/answer", content={"answer": "blue"})
    expect_cards(page, "In progress")
    choose_option(page, page.get_by_role("combobox", name="Show"), "All cards")
    expect(card(column(page, "In review"), "Asks")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_text("Needs you", exact=True)).to_have_count(0)
    # the repository has no pull requests: the branch links to the changes
    card(column(page, "In review"), "Asks").get_by_role("link", name=re.compile("^Branch ")).click()
    expect(page).to_have_url(re.compile(f"/tasks/{task}\\?tab=changes$"))
    expect(page.get_by_role("tab", name="Changes")).to_have_attribute("aria-selected", "true")


@pytest.mark.slow  # tests/integration/platform/domain/preparations tests the steps of an installation
def test_a_card_shows_that_its_agent_is_being_installed(page: Page, new_board: NewBoard) -> None:
    board = new_board()
    install = {"script": "echo fetching it; sleep 5; echo no such package; exit 1", "check": "false"}
    board.api.post("/agents", name="new-here", title="New Here", definition={"argv": ["true"], "install": install})
    board.open(page)
    board.create_task("With a new agent", start=True, agent="new-here")
    shown = card(page, "With a new agent")
    expect(shown).to_contain_text("Installing New Here (first time only)", timeout=SLOW_MS)
    shown.get_by_role("link").first.click()
    expect(page.get_by_text("fetching it")).to_be_visible()
    expect(page.locator("header").get_by_text("Installing New Here (first time only)")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("no such package", timeout=SLOW_MS)


@pytest.mark.slow
def test_the_budget_can_be_raised_from_the_over_budget_error(page: Page, new_board: NewBoard) -> None:
    board = new_board()
    task = board.create_task("Costs too much", "fail: no", start=True, budget={"usd": 0.1})
    until(lambda: board.get_task(task)["error"])

    def report_over_budget(route: Route) -> None:
        if route.request.method != "GET":
            route.continue_()
            return
        shown = board.get_task(task)
        if shown["attempts"][0]["status"] == "failed":
            shown["attempts"][0] |= {"error": "The task may spend 0.10 US dollars.", "errorCode": "over_budget"}
        route.fulfill(json=shown)

    page.route(f"**/api/v1/tasks/{task}", report_over_budget)
    page.goto(f"/tasks/{task}")
    page.get_by_role("button", name="Raise the budget").click()
    dialog = page.get_by_role("dialog", name="Raise the budget of this task")
    dialog.get_by_label("Budget (USD)").fill("0")
    dialog.get_by_role("button", name="Save and retry").click()
    expect(dialog.get_by_label("Budget (USD)")).to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Budget (USD)").fill("2.5")
    expect_accessible(page)
    dialog.get_by_role("button", name="Save and retry").click()
    expect(dialog).to_have_count(0)
    now = board.get_task(task)
    assert (now["budget"]["usd"], now["attempts"][0]["round"]) == (2.5, 2)


@pytest.mark.slow
def test_queued_tasks_are_listed_cancelled_retried_and_deleted(page: Page, new_board: NewBoard) -> None:
    board = new_board(parallel=1)
    first = board.create_task("First", WORK_UNTIL_STOPPED, start=True)
    until(lambda: board.is_agent_working(first))  # otherwise a retry would begin with the whole task
    second = board.create_task("Second", f"fail: {LONG_REASON}", start=True)
    until(lambda: board.get_task(second)["attempts"])
    third = board.create_task("Third", WORK_UNTIL_STOPPED, start=True)
    board.open(page)
    expect(card(page, "Second")).to_contain_text("Queued, next")
    expect(card(page, "Third")).to_contain_text("Queued, position 2")
    page.get_by_role("button", name="Queue 2 attempts waiting").click()
    waiting = page.get_by_role("dialog").get_by_role("listitem")
    expect(waiting).to_have_count(2)
    expect(waiting.nth(0)).to_contain_text(re.compile("Position 1.*Second", re.DOTALL))
    expect(waiting.nth(1)).to_contain_text(re.compile("Position 2.*Third.*limit of 1 parallel attempts", re.DOTALL))
    expect_accessible(page)
    page.keyboard.press("Escape")

    confirmation = page.get_by_role("alertdialog", name="Cancel this task?")
    choose_action(page, "First", "Cancelled")
    expect(confirmation).to_contain_text("Its sandbox is deleted")
    confirm(page, "Keep it running")
    choose_action(page, "First", "Cancel task")
    expect(confirmation).to_contain_text("Retry continues from them")
    confirmation.get_by_role("button", name="Cancel task").click()
    expect(page.get_by_role("button", name="Expand Cancelled 1")).to_be_visible()
    failed = card(column(page, "In progress"), "Second")
    expect(failed).to_contain_text("Failed", timeout=SLOW_MS)
    reason = failed.get_by_text(LONG_REASON)
    expect(reason).to_be_visible()
    assert reason.evaluate("shown => shown.scrollHeight <= shown.clientHeight"), "the reason must not be cut off"
    expect(column(page, "In progress").get_by_role("heading", name="In progress").locator("..")).to_contain_text(
        re.compile("In progress *1 active *1 failed")  # Third is running, Second failed
    )
    expect(card(page, "Third")).to_contain_text(re.compile("Agent working"), timeout=SLOW_MS)
    expect(page.get_by_role("button", name="Queue nothing waiting")).to_be_visible()
    page.set_viewport_size(PHONE)
    page.goto(f"/tasks/{second}")
    banner = page.locator("header").get_by_role("alert").locator("div").first
    expect(banner).to_contain_text(LONG_REASON)
    assert banner.evaluate("shown => shown.scrollHeight <= shown.clientHeight"), (
        "the banner must not cut off the reason"
    )
    page.set_viewport_size(DESKTOP)
    board.open(page)
    choose_action(page, "Second", "Retry")
    expect(failed).to_contain_text("Queued, next")
    page.get_by_role("button", name="Expand Cancelled 1").click()
    page.set_viewport_size(LAPTOP)
    expect(page.get_by_role("button", name=re.compile("^Expand"))).to_have_count(0)
    overflow = (
        page.locator("[data-column=backlog]").locator("..").evaluate("board => board.scrollWidth - board.clientWidth")
    )
    assert overflow == 0, f"five columns must fit the screen, and are {overflow} px too wide"
    choose_action(page, "First", "Retry")
    expect(card(column(page, "In progress"), "First")).to_contain_text("Queued, position 2")

    choose_action(page, "Third", "Delete")
    confirm(page, "Delete")
    expect(card(page, "Third")).to_have_count(0)
    assert board.api.client.get(f"/tasks/{third}").status_code == 404
    for name in ("Second", "First"):  # when it is asked to continue, the demo agent has no instructions left
        expect(card(column(page, "In progress"), name)).to_contain_text("The agent changed nothing", timeout=SLOW_MS)
    assert len(board.get_task(first)["attempts"]) == 1, "a retry continues the same attempt"


@pytest.mark.slow  # test_changes.py tests a pull request from draft to merge
def test_a_card_links_to_its_pull_request(page: Page, platform: Platform, github: GitHub, api: Api) -> None:
    site = create_forge_project(platform, github)
    board = Board(api, site.id)
    board.open(page)
    task = board.create_task("Greet", "create HELLO.md: hello", "commit: docs: hello", start=True)
    badge = card(column(page, "In review"), "Greet").get_by_role("link", name="Pull request #1 open")
    expect(badge).to_be_visible(timeout=SLOW_MS)
    assert badge.get_attribute("href") == board.get_task(task)["pullRequest"]["url"]
    expect(badge).to_have_attribute("rel", "noreferrer noopener")
    expect(card(column(page, "In review"), "Greet")).to_contain_text(re.compile("\\+1 \u22120.*Created"))
    github.colleague("grace").merge(site.slug, 1)
    done = card(column(page, "Done"), "Greet")
    expect(done.get_by_role("link", name="Pull request #1 merged")).to_be_visible(timeout=SLOW_MS)


def test_the_board_works_on_a_phone(phone: Page, board: Board) -> None:
    task = board.create_task("Was there")
    board.open(phone)
    phone.get_by_role("button", name="New task").click()
    dialog = phone.get_by_role("dialog", name="New task")
    dialog.get_by_label("Title").fill("From the train")
    dialog.get_by_label("Description").fill(WORK_UNTIL_STOPPED)
    choose_option(phone, dialog.get_by_label("Agent"), "Demo agent")
    expect_fitting_width(phone)
    dialog.get_by_label("Start now").click()
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(dialog).to_be_hidden()
    expect_cards(phone, "Backlog", "Was there", "From the train")
    expect_fitting_width(phone)
    expect_accessible(phone)
    choose_action(phone, "From the train", "In progress")
    expect_cards(phone, "Backlog", "Was there")
    columns = phone.get_by_role("navigation", name="Columns")
    columns.get_by_role("button", name="In progress 1").click()
    expect(title_link(phone, "From the train")).to_be_in_viewport(ratio=1)
    expect(columns.get_by_role("button", name="In progress 1")).to_have_attribute("aria-current", "true")
    columns.get_by_role("button", name="Cancelled 0").click()
    expect(column(phone, "Cancelled").get_by_role("heading")).to_be_in_viewport()
    columns.get_by_role("button", name="Backlog 1").click()
    choose_action(phone, "Was there", "Done")
    until(lambda: board.get_task(task)["status"] == "done")
    expect_fitting_width(phone)

    # the board opens at a column with cards, preferably one with running tasks
    phone.reload()
    expect(title_link(phone, "From the train")).to_be_in_viewport(ratio=1)
    title_link(phone, "From the train").click()
    steps = phone.get_by_label("Steps")
    for label in ("Setup", "Sandbox", "Verify", "Pull request"):
        box = steps.get_by_text(label, exact=True).bounding_box()
        assert box, label
        assert box["width"] > 20, f"{label} must be readable"
        assert 0 <= box["x"] <= box["x"] + box["width"] <= PHONE["width"], f"{label} must be in view"
    expect_fitting_width(phone)
    board.api.post(f"/tasks/{phone.url.rpartition('/')[2]}/stop")
    board.open(phone)
    expect(title_link(phone, "Was there")).to_be_in_viewport(ratio=1)


@pytest.mark.slow
def test_the_board_is_accessible_in_light_and_dark(page: Page, board: Board) -> None:
    task = board.create_task("Reviewed", "create A.md: one", "commit: docs: one", start=True)
    board.create_task("Blocked", needs=[task])
    board.create_task("Urgent", priority=9, attempts=[{"agent": "demo"}, {"agent": "demo"}])
    board.create_task("Broken", "fail: it rains", start=True)
    board.create_task("At work", WORK_UNTIL_STOPPED, start=True)
    board.open(page)
    expect(card(column(page, "In review"), "Reviewed")).to_be_visible(timeout=SLOW_MS)
    expect(card(page, "Broken")).to_contain_text("it rains", timeout=SLOW_MS)
    expect(card(page, "At work")).to_contain_text("Agent working", timeout=SLOW_MS)
    expect_accessible(page)
    page.get_by_role("button", name="Actions for At work").click()
    expect(page.get_by_role("menuitem", name="Cancel task")).to_be_visible()
    expect_accessible(page)
    page.keyboard.press("Escape")
    switch_to_dark(page)
    expect_accessible(page, colours=True)
    page.get_by_role("button", name="Actions for At work").click()
    expect(page.get_by_role("menuitem", name="Cancel task")).to_be_visible()
    expect_accessible(page, colours=True)
