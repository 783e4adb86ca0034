"""The board of one project, and what a hand does on it in a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.acceptance.platform import ok, until
from tests.web.yard import Yard


@dataclass
class Board:
    """One project's, in a page or in several."""

    yard: Yard
    project: str

    def task(self, title: str, *lines: str, start: bool = False, **body: Any) -> str:
        return self.yard.task(title, *lines, project=self.project, start=start, **body)

    def get(self, task: str) -> dict[str, Any]:
        return dict(self.yard.get(f"/tasks/{task}"))

    def settings(self, **tasks: Any) -> None:
        path = f"/projects/{self.project}"
        known = self.yard.get(path)["settings"]
        ok(self.yard.client.patch(path, json={"settings": {**known, "tasks": {**known["tasks"], **tasks}}}))

    def tasks(self, column: str = "") -> list[str]:
        """Titles, in order."""
        query = {"projectId": self.project, **({"status": column} if column else {})}
        return [one["title"] for one in self.yard.get("/tasks", **query)["items"]]

    def open(self, page: Page, more: str = "") -> None:
        """When what happens is followed: nothing that comes after is missed."""
        page.goto(f"/board?project={self.project}{more}")
        expect(page.locator("h1")).to_have_text("Board")
        expect(page.locator("[data-live=live]")).to_be_attached()


def column(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def card(inside: Page | Locator, words: str) -> Locator:
    return inside.get_by_test_id("card").filter(has_text=words)


def title(page: Page, words: str) -> Locator:
    return page.get_by_role("link", name=words, exact=True)


def shows(page: Page, name: str, *titles: str) -> None:
    """The column has these cards, in this order, and no other."""
    expect(column(page, name).locator("[data-card]")).to_have_text(list(titles))


def act(page: Page, words: str, item: str) -> None:
    """By the menu of a card."""
    page.get_by_role("button", name=f"Actions for {words}", exact=True).click()
    # by its key: cards move while tasks go on, their menus with them, and a click would land where the item was
    page.get_by_role("menuitem", name=item, exact=True).press("Enter")


def drag(page: Page, words: str, name: str, above: str | None = None) -> None:
    """A card to the end of a column with few cards, or above another card."""
    card(page, words).scroll_into_view_if_needed()  # and stands still
    start = card(page, words).bounding_box()
    target = (card(page, above) if above else column(page, name)).bounding_box()
    assert start
    assert target
    page.mouse.move(start["x"] + 40, start["y"] + start["height"] - 6)
    page.mouse.down()
    page.mouse.move(start["x"] + 48, start["y"] + start["height"] - 2, steps=3)
    x, y = target["x"] + target["width"] / 2, target["y"] + (4 if above else target["height"] / 2)
    page.mouse.move(x, y, steps=8)
    place = column(page, name)

    def held() -> bool:
        """A hand is never quite still: only what moves is noticed."""
        page.mouse.move(x + 1, y)
        page.mouse.move(x, y)
        return "border-accent" in (place.get_attribute("class") or "").split()

    until(held, 30)
    page.mouse.up()


def choose(page: Page, box: Locator, choice: str) -> None:
    box.click()
    page.get_by_role("option", name=re.compile(rf"^{re.escape(choice)}")).click()


def told(page: Page, *words: str) -> None:
    """In a note at the edge of the page."""
    note = page.locator("[data-sonner-toast]")
    for some in words:
        expect(note.filter(has_text=some).first).to_be_visible()
