"""`make screenshots`: writes every page in light and dark to docs/screenshots, from a real platform with finished work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize

from tests.acceptance.project_client import create_forge_project
from tests.forge import forge
from tests.harness.engine import serving
from tests.harness.platform import ok, running, until
from tests.harness.processes import ROOT
from tests.web.api import Api
from tests.web.browser import Theme, chromium, expect_loaded, signed_in_page, take_screenshot
from tests.web.conftest import SETTINGS
from tests.web.pictures import shrink_all

FOLDER = ROOT / "docs/screenshots"
SETTLE_MS = 2500
"""Time for what cannot be waited for: the first points of a chart, the prompt of a terminal."""
SIZE: ViewportSize = {"width": 1280, "height": 800}
FIX = (
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
        api = Api(platform)
        project = create_forge_project(platform, github)
        ok(api.client.patch(f"/projects/{project.id}", json={"name": "website"}))
        pages = dict(_create_content(api, project.id))
        themes: tuple[Theme, ...] = ("light", "dark")
        for theme in themes:
            _capture_sign_in(browser, platform.url, theme)
            with signed_in_page(browser, platform.url, platform.token, theme=theme) as page:
                page.set_viewport_size(SIZE)
                for name, address in pages.items():
                    page.goto(address)
                    _capture(page, name, theme)
            with signed_in_page(browser, platform.url, platform.token, theme=theme, phone=True) as page:
                for name in ("board", "task-conversation"):
                    page.goto(pages[name])
                    _capture(page, f"{name}-phone", theme)
        shrink_all(browser, FOLDER)
    return 0


def _create_content(api: Api, project: str) -> Iterator[tuple[str, str]]:
    """Create cards in every column. Yields the name and the URL of each page."""
    done = api.create_task("Add the missing line to the data", *FIX, project=project)
    several = api.create_task(
        "Say hello in two ways",
        "create HELLO.md: Hello.",
        "run: ls -l",
        "commit: docs: say hello",
        project=project,
        attempts=[{"agent": "demo"}, {"agent": "demo"}],
    )
    asking = api.create_task(
        "Choose a colour for the page", "ask: Which colour shall the page have?", "hang", project=project
    )
    api.create_task("Write the change log", "create CHANGELOG.md: # Changes", project=project, start=False)
    api.create_task("Translate the front page", project=project, start=False, priority=2)
    failing = api.create_task("Move to the new API", "fail: The new API is not there yet.", project=project)
    session = api.create_session("Look around in the website", project)
    api.post(f"/sessions/{session['id']}/turns", text="run: ls\nsay: This is a small website in `src`.")
    sandbox = api.get(f"/sessions/{api.wait_for_attempt(done, 'in_review')['sessionId']}")["sandboxId"]
    api.post(f"/sandboxes/{sandbox}/execute", command="cd workspace && git log --stat --format='%h %s' && wc -l src/*")
    api.wait_for_attempt(failing, "failed")
    until(lambda: api.get("/asks", taskId=asking, status="pending")["items"], 180)
    until(lambda: all(attempt["status"] == "ready" for attempt in api.get(f"/tasks/{several}/attempts")["items"]), 180)
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


def _capture_sign_in(browser: Browser, url: str, theme: Theme) -> None:
    context = browser.new_context(base_url=url, viewport=SIZE, color_scheme=theme)
    page = context.new_page()
    page.goto("/sign-in")
    page.get_by_role("button", name="Sign in", exact=True).wait_for()
    _capture(page, "sign-in", theme)
    context.close()


def _capture(page: Page, name: str, theme: Theme) -> None:
    path: Path = FOLDER / f"{name}-{theme}.png"
    expect_loaded(page)
    if name == "task-sandbox":
        page.locator("polyline").first.wait_for(state="attached")
    page.wait_for_timeout(SETTLE_MS)
    take_screenshot(page, path)
    print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    sys.exit(main())
