"""`make screenshots`: every page in light and dark under docs/screenshots, from a real platform on which real work was done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize

from tests.acceptance.conftest import serving
from tests.acceptance.platform import ok, running, until
from tests.acceptance.workshop import work
from tests.forge import forge
from tests.protocol.engine import ROOT
from tests.web.browser import Theme, chromium, picture, signed_in, there
from tests.web.conftest import SETTINGS
from tests.web.pictures import pack
from tests.web.yard import Yard

FOLDER = ROOT / "docs/screenshots"
SETTLED_MS = 2500
"""For what has no end to wait for: a chart's first points, a terminal's prompt."""
SIZE: ViewportSize = {"width": 1280, "height": 800}
MEND = (
    "plan: Look at the data; Add the missing line; Prove it with the tests",
    "think: The list ends too early.",
    "append src/data.txt: four\\n",
    "run: cat src/data.txt",
    "say: The list has **four** lines now.",
    "commit: fix: add the missing line",
)


def main() -> int:
    with (
        serving(POOL_SIZE="2", DEFAULT_MEMORY_MB="256", DEFAULT_DISK_MB="512") as engine,
        forge() as github,
        running(engine, **SETTINGS) as platform,
        chromium() as browser,
    ):
        yard = Yard(platform)
        own = work(platform, github)
        ok(yard.client.patch(f"/projects/{own.id}", json={"name": "website"}))
        pages = dict(_made(yard, own.id))
        themes: tuple[Theme, ...] = ("light", "dark")
        for theme in themes:
            _door(browser, platform.url, theme)
            with signed_in(browser, platform.url, platform.token, theme=theme) as page:
                page.set_viewport_size(SIZE)
                for name, address in pages.items():
                    page.goto(address)
                    _taken(page, name, theme)
            with signed_in(browser, platform.url, platform.token, theme=theme, phone=True) as page:
                for name in ("board", "task-conversation"):
                    page.goto(pages[name])
                    _taken(page, f"{name}-phone", theme)
        pack(browser, FOLDER)
    return 0


def _made(yard: Yard, project: str) -> Iterator[tuple[str, str]]:
    """Cards in every column, and where each page is."""
    done = yard.task("Add the missing line to the data", *MEND, project=project)
    several = yard.task(
        "Say hello in two ways",
        "create HELLO.md: Hello.",
        "run: ls -l",
        "commit: docs: say hello",
        project=project,
        attempts=[{"agent": "demo"}, {"agent": "demo"}],
    )
    asking = yard.task(
        "Choose a colour for the page", "ask: Which colour shall the page have?", "hang", project=project
    )
    yard.task("Write the change log", "create CHANGELOG.md: # Changes", project=project, start=False)
    yard.task("Translate the front page", project=project, start=False, priority=2)
    failing = yard.task("Move to the new API", "fail: The new API is not there yet.", project=project)
    session = yard.session("Look around in the website", project)
    yard.post(f"/sessions/{session['id']}/turns", text="run: ls\nsay: This is a small website in `src`.")
    sandbox = yard.get(f"/sessions/{yard.rests(done, 'in_review')['sessionId']}")["sandboxId"]
    yard.post(f"/sandboxes/{sandbox}/execute", command="cd workspace && git log --stat --format='%h %s' && wc -l src/*")
    yard.rests(failing, "failed")
    until(lambda: yard.get("/asks", taskId=asking, status="pending")["items"], 180)
    until(lambda: all(one["status"] == "ready" for one in yard.get(f"/tasks/{several}/attempts")["items"]), 180)
    yield "welcome", "/welcome"
    yield "board", "/board"
    for tab in ("conversation", "output", "changes", "files", "terminal", "history", "pull", "sandbox"):
        yield f"task-{tab}", f"/tasks/{done}?tab={tab}"
    yield "task-question", f"/tasks/{asking}"
    yield "task-attempts", f"/tasks/{several}?tab=attempts"
    yield "sessions", "/sessions"
    yield "session", f"/sessions/{session['id']}"
    yield "sandboxes", "/sandboxes"
    yield "projects", "/projects"
    yield "project", f"/projects/{project}"
    yield "agents", "/agents"
    yield "schedules", "/schedules"
    yield "usage", "/usage"
    yield "audit", "/audit"
    yield "settings", "/settings"


def _door(browser: Browser, url: str, theme: Theme) -> None:
    context = browser.new_context(base_url=url, viewport=SIZE, color_scheme=theme)
    page = context.new_page()
    page.goto("/sign-in")
    page.get_by_role("button", name="Sign in", exact=True).wait_for()
    _taken(page, "sign-in", theme)
    context.close()


def _taken(page: Page, name: str, theme: Theme) -> None:
    path: Path = FOLDER / f"{name}-{theme}.png"
    there(page)
    if name == "task-sandbox":
        page.locator("polyline").first.wait_for(state="attached")
    page.wait_for_timeout(SETTLED_MS)
    picture(page, path)
    print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    sys.exit(main())
