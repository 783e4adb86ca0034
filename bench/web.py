"""The web in a real Chromium: what the first page weighs, and how evenly frames come while much is on the screen; beside a page on
which nothing happens."""

from __future__ import annotations

import time
from typing import Any

import httpx
from playwright.sync_api import Page
from tests.web.browser import chromium, signed_in_page

from bench.platform import platform
from bench.processes import engine
from bench.report import Row, percentile

CARDS = 500
LINES_PER_SECOND = 2000
SECONDS = 10
FRAMES = """async ([selector, seconds]) => {
  const frames = [];
  const found = selector ? [...document.querySelectorAll(selector)].filter((one) => one.scrollHeight > one.clientHeight + 50) : [];
  const end = performance.now() + seconds * 1000;
  let last = performance.now(), way = 1;
  await new Promise((done) => {
    const step = (now) => {
      frames.push(now - last);
      last = now;
      for (const one of found) {
        one.scrollTop += 24 * way;
        if (one.scrollTop + one.clientHeight >= one.scrollHeight - 1 || one.scrollTop <= 0) way = -way;
      }
      now < end ? requestAnimationFrame(step) : done();
    };
    requestAnimationFrame(step);
  });
  return { frames: frames.slice(5), scrolled: found.length };
}"""
PRINT = (
    'python3 -u -c "import time,sys\nb=time.time()\nfor n in range({count}):\n'
    " sys.stdout.write(f'\\033[32m{{n:06d}}\\033[0m a line of output such as a build tool prints, with a colour\\n')\n"
    ' if n % 100 == 0: sys.stdout.flush(); time.sleep(max(0, b + n / {rate} - time.time()))"'
)


def measure(_rounds: int) -> list[Row]:
    with engine("--pool-size", "4") as endpoint, platform(endpoint) as served, chromium() as browser:
        client = httpx.Client(
            base_url=f"{served.url}/api/v1", headers={"Authorization": f"Bearer {served.token}"}, timeout=60
        )
        project = client.post("/projects/sample").raise_for_status().json()["project"]["id"]
        with signed_in_page(browser, served.url, served.token) as page:
            weight = _weight(page)
        with signed_in_page(browser, served.url, served.token) as page:
            page.goto("/usage")
            page.wait_for_timeout(1000)
            still = _frames(page, None)
            for number in range(CARDS):
                body = {"projectId": project, "title": f"Card {number}", "description": "", "start": False}
                client.post("/tasks", json=body).raise_for_status()
            page.goto("/board")
            page.get_by_text("Card 0", exact=True).first.wait_for()
            page.wait_for_timeout(1000)
            board = _frames(page, "[data-scrolls]")
            log = _log(client, page)
    low = percentile(still, 0.95)
    return [
        Row("first load of the board, compressed", weight / 1000, "kB", None, 250),
        Row(f"frame on the board, {CARDS} cards scrolling, p95", percentile(board, 0.95), "ms", low, 17),
        Row("the same, p50", percentile(board, 0.5), "ms", percentile(still, 0.5), 17),
        Row(f"frame beside a log of {LINES_PER_SECOND} lines/s, p95", percentile(log, 0.95), "ms", low, 17),
        Row("the same, p50", percentile(log, 0.5), "ms", percentile(still, 0.5), 17),
    ]


def _weight(page: Page) -> float:
    """Return the bytes that are transferred until the board is shown."""
    seen: list[float] = []

    def finished(request: Any) -> None:
        if "/api/" not in request.url:
            seen.append(request.sizes()["responseBodySize"])

    page.on("requestfinished", finished)
    page.goto("/board")
    page.get_by_role("heading", name="Board").first.wait_for()
    page.wait_for_timeout(1000)
    return sum(seen)


def _frames(page: Page, selector: str | None) -> list[float]:
    found = page.evaluate(FRAMES, [selector, SECONDS])
    assert selector is None or found["scrolled"], f"nothing scrolls under {selector}"
    return [float(frame) for frame in found["frames"]]


def _log(client: httpx.Client, page: Page) -> list[float]:
    """While a command in a sandbox prints, and the page follows it."""
    sandbox = client.post("/sandboxes", json={}).raise_for_status().json()["id"]
    command = PRINT.format(count=LINES_PER_SECOND * SECONDS * 3, rate=LINES_PER_SECOND)
    begun = client.post(f"/sandboxes/{sandbox}/execute", json={"command": command, "background": True})
    begun.raise_for_status()
    page.goto(f"/sandboxes/{sandbox}?tab=output")
    page.get_by_text("a line of output").first.wait_for()
    time.sleep(2)
    return _frames(page, None)
