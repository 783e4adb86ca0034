"""The board of one project, and the actions of a user on its page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.harness.platform import ok, until
from tests.web.api import Api


@dataclass
class Board:
    """The board of one project. It may be open in several pages."""

    api: Api
    project: str

    def create_task(self, title: str, *lines: str, start: bool = False, **body: Any) -> str:
        return self.api.create_task(title, *lines, project=self.project, start=start, **body)

    def get_task(self, task: str) -> dict[str, Any]:
        return dict(self.api.get(f"/tasks/{task}"))

    def is_agent_working(self, task: str) -> bool:
        """Return whether the agent of the task's first attempt has begun to work on its prompt."""
        session = self.get_task(task)["attempts"][0]["sessionId"]
        if session is None:
            return False
        turns = ok(self.api.client.get(f"/sessions/{session}/turns"))
        return any(turn["status"] == "running" for turn in turns["items"])

    def change_task_settings(self, **tasks: Any) -> None:
        path = f"/projects/{self.project}"
        known = self.api.get(path)["settings"]
        ok(self.api.client.patch(path, json={"settings": {**known, "tasks": {**known["tasks"], **tasks}}}))

    def list_titles(self, column: str = "") -> list[str]:
        """List the titles of the tasks, in board order."""
        query = {"projectId": self.project, **({"status": column} if column else {})}
        return [task["title"] for task in self.api.get("/tasks", **query)["items"]]

    def open(self, page: Page, more: str = "") -> None:
        """Open the board and wait until live updates are connected, so that no later event is missed."""
        page.goto(f"/board?project={self.project}{more}")
        expect(page.locator("h1")).to_have_text("Board")
        expect(page.locator("[data-live=live]")).to_be_attached()


def column(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def card(inside: Page | Locator, text: str) -> Locator:
    return inside.get_by_test_id("card").filter(has_text=text)


def title_link(page: Page, text: str) -> Locator:
    return page.get_by_role("link", name=text, exact=True)


def expect_cards(page: Page, name: str, *titles: str) -> None:
    """Expect exactly these cards in the column, in this order."""
    expect(column(page, name).locator("[data-card]")).to_have_text(list(titles))


def choose_action(page: Page, text: str, item: str) -> None:
    """Choose an item in the menu of a card."""
    page.get_by_role("button", name=f"Actions for {text}", exact=True).click()
    # with the keyboard: cards and their menus move while tasks run, and a click could miss the item
    page.get_by_role("menuitem", name=item, exact=True).press("Enter")


def drag(page: Page, text: str, name: str, above: str | None = None) -> None:
    """Drag a card to the end of a column with few cards, or above another card."""
    card(page, text).scroll_into_view_if_needed()  # also waits until the card no longer moves
    start = card(page, text).bounding_box()
    target = (card(page, above) if above else column(page, name)).bounding_box()
    assert start
    assert target
    page.mouse.move(start["x"] + 40, start["y"] + start["height"] - 6)
    page.mouse.down()
    page.mouse.move(start["x"] + 48, start["y"] + start["height"] - 2, steps=3)
    x, y = target["x"] + target["width"] / 2, target["y"] + (4 if above else target["height"] / 2)
    page.mouse.move(x, y, steps=8)
    target_column = column(page, name)

    def is_over_column() -> bool:
        """Move the mouse a little: the column reacts only to movement."""
        page.mouse.move(x + 1, y)
        page.mouse.move(x, y)
        return "border-accent" in (target_column.get_attribute("class") or "").split()

    until(is_over_column, 30)
    page.mouse.up()


def choose_option(page: Page, box: Locator, choice: str) -> None:
    box.click()
    page.get_by_role("option", name=re.compile(rf"^{re.escape(choice)}")).click()


def expect_toast(page: Page, *texts: str) -> None:
    """Expect a toast with each of these texts."""
    toast = page.locator("[data-sonner-toast]")
    for text in texts:
        expect(toast.filter(has_text=text).first).to_be_visible()
