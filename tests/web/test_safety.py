"""Hostile output of agents is shown and never executed."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Error, Page, Response, expect

from tests.harness.platform import Platform
from tests.web.api import Api
from tests.web.browser import expect_loaded, open_tab

pytestmark = pytest.mark.timeout(300)

EVIL = [
    "say: <img src=x onerror=\"window.owned='img'\"><script>window.owned='script'</script>",
    "say: [click](javascript:window.owned='link') and [data](data:text/html,<script>alert(1)</script>)",
    "say: ![pixel](http://203.0.113.9/track.png)",
    "run: printf '\\033]0;owned\\007<script>window.owned=1</script>\\n'",
    "create evil.html: <script>window.owned='file'</script>",
    "commit: docs: <b onmouseover=alert(1)>bold</b>",
    "run: echo the key is $API_KEY",
    "say: It is out.",
]
SECRET = "planted-secret-value-0123456789"
SHOWN = {
    "conversation": "<img src=x onerror=",
    "output": "<script>window.owned=1</script>",
    "changes": "<script>window.owned='file'</script>",
    "files": "evil.html",
    "history": "<b onmouseover=",
    "pull": "task/evil-img-src-x-onerror-window-owned-1-",
}
"""The text expected on each tab: the markup itself, as plain text."""


@pytest.fixture(scope="module")
def task(api: Api) -> str:
    """A finished task whose agent wrote hostile output and then a secret of its owner."""
    api.client.put("/secrets/API_KEY", json={"value": SECRET}).raise_for_status()
    task = api.create_task("Evil <img src=x onerror=window.owned=1>", *EVIL)
    api.wait_for_attempt(task)
    return task


def test_pages_have_a_strict_content_security_policy(platform: Platform) -> None:
    answer = httpx.get(f"{platform.url}/board")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script>" not in answer.text
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", answer.text), "inline scripts are not allowed"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_output_of_an_agent_is_never_executed(page: Page, task: str) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"/tasks/{task}?tab=conversation")
    for tab, words in SHOWN.items():
        if tab != "conversation":
            open_tab(page, tab)
        expect(page.get_by_role("heading", name=re.compile("Evil <img"))).to_be_visible()
        expect_loaded(page, words)
        assert page.evaluate("window.owned") is None
        hrefs: list[str] = page.evaluate("[...document.querySelectorAll('a')].map((one) => one.href)")
        assert not [href for href in hrefs if re.match("(javascript|data|vbscript):", href)]
    assert not [candidate for candidate in requested if "203.0.113.9" in candidate], (
        "no URL in the output of an agent is fetched"
    )


def _read_body(answer: Response, api: Api) -> str:
    """Return the body of a response. It is requested again if it arrived during a navigation: the browser does not keep those bodies."""
    try:
        return answer.text()
    except Error:
        if answer.request.method != "GET":
            raise
        return api.client.get(answer.url).text


def test_secrets_are_never_shown(page: Page, api: Api, task: str) -> None:
    """A stored value appears neither on a page nor in a response that the page received."""
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))  # noqa: PLW0108 - Playwright needs a function written in Python
    shown = {
        "/settings?tab=secrets": "API_KEY",
        f"/projects/{api.sample_project}?tab=secrets": "Project secrets",
        "/audit": "secret",
        f"/tasks/{task}?tab=output": "the key is",
        f"/tasks/{task}?tab=conversation": "It is out",
    }
    for address, words in shown.items():
        page.goto(address)
        expect_loaded(page, words)
        assert SECRET not in page.content()
        for answer in answers:
            if "/api/" in answer.url and "text/event-stream" not in answer.headers.get("content-type", ""):
                assert SECRET not in _read_body(answer, api), answer.url
        answers.clear()
