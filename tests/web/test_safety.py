"""What agents write is hostile: it is shown, and does nothing."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Error, Page, Response, expect

from tests.acceptance.platform import Platform
from tests.web.browser import open_tab, there
from tests.web.yard import Yard

pytestmark = pytest.mark.timeout(300)

EVIL = [
    "say: <img src=x onerror=\"window.owned='img'\"><script>window.owned='script'</script>",
    "say: [click](javascript:window.owned='link') and [data](data:text/html,<script>alert(1)</script>)",
    "say: ![pixel](http://203.0.113.9/track.png)",
    "run: printf '\\033]0;owned\\007<script>window.owned=1</script>\\n'",
    "create evil.html: <script>window.owned='file'</script>",
    "commit: docs: <b onmouseover=alert(1)>bold</b>",
]
SHOWN = {
    "conversation": "<img src=x onerror=",
    "output": "<script>window.owned=1</script>",
    "changes": "<script>window.owned='file'</script>",
    "files": "evil.html",
    "history": "<b onmouseover=",
    "pull": "task/evil-img-src-x-onerror-window-owned-1-",
}
"""What is read on each tab: the very words, for they are only words."""


def test_the_pages_policy(platform: Platform) -> None:
    answer = httpx.get(f"{platform.url}/board")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script>" not in answer.text
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", answer.text), "no script is inline"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_an_agent_writes_does_nothing(page: Page, yard: Yard) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    task = yard.task("Evil <img src=x onerror=window.owned=1>", *EVIL)
    yard.rests(task)
    page.goto(f"/tasks/{task}?tab=conversation")
    for tab, words in SHOWN.items():
        if tab != "conversation":
            open_tab(page, tab)
        expect(page.get_by_role("heading", name=re.compile("Evil <img"))).to_be_visible()
        there(page, words)
        assert page.evaluate("window.owned") is None
        hrefs: list[str] = page.evaluate("[...document.querySelectorAll('a')].map((one) => one.href)")
        assert not [one for one in hrefs if re.match("(javascript|data|vbscript):", one)]
    assert not [one for one in asked if "203.0.113.9" in one], "nothing is fetched for an agent"


def _text(answer: Response, yard: Yard) -> str:
    """What the page got; asked for again where it came while the page was being left, for the browser keeps none of those."""
    try:
        return answer.text()
    except Error:
        if answer.request.method != "GET":
            raise
        return yard.client.get(answer.url).text


def test_secrets_are_never_shown(page: Page, yard: Yard) -> None:
    """A value that was stored comes back nowhere: not in a page, not in an answer the page got."""
    planted = "planted-secret-value-0123456789"
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))  # noqa: PLW0108 - it wants a function written in Python
    yard.client.put("/secrets/API_KEY", json={"value": planted}).raise_for_status()
    task = yard.task("Tells it", "run: echo the key is $API_KEY", "say: It is out.")
    yard.rests(task)
    shown = {
        "/settings?tab=secrets": "API_KEY",
        f"/projects/{yard.sample}?tab=secrets": "Project secrets",
        "/audit": "secret",
        f"/tasks/{task}?tab=output": "the key is",
        f"/tasks/{task}?tab=conversation": "It is out",
    }
    for address, words in shown.items():
        page.goto(address)
        there(page, words)
        assert planted not in page.content()
        for answer in answers:
            if "/api/" in answer.url and "text/event-stream" not in answer.headers.get("content-type", ""):
                assert planted not in _text(answer, yard), answer.url
        answers.clear()
