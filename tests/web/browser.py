"""A real Chromium, and the checks for every page: no console errors, no CSP violations, no horizontal scrolling."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import (
    Browser,
    BrowserContext,
    BrowserType,
    ConsoleMessage,
    Error,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.harness import without_netlink
from tests.harness.processes import ROOT

AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
DESKTOP: ViewportSize = {"width": 1360, "height": 860}
PHONE: ViewportSize = {"width": 360, "height": 740}
TIMEOUT_MS = 45_000
Theme = Literal["light", "dark"]
_NETWORK_ERRORS = (
    "net::ERR_CONNECTION_REFUSED",
    "net::ERR_CONNECTION_RESET",
    "net::ERR_EMPTY_RESPONSE",
)
_CHUNK_ERRORS = ("Failed to fetch dynamically imported module", "Unable to preload CSS")
IMPACTS = ["serious", "critical"]
RUN_AXE = """async ([context, options, impacts]) => {
  const lesser = axe._audit.rules.filter(({ impact }) => impact && !impacts.includes(impact));
  const rules = { ...Object.fromEntries(lesser.map(({ id }) => [id, { enabled: false }])), ...options.rules };
  const { violations } = await axe.run(context, { ...options, rules });
  return violations.filter(({ impact }) => impacts.includes(impact));
}"""
"""Rules that never report one of these impacts are disabled."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
CONTRAST_RULE = "color-contrast"
BLANK = "/favicon.svg"
"""An address of the platform that is not a page of the application, which would write to local storage."""
STORAGE_TYPES = "local_storage,indexeddb,websql,service_workers,cache_storage,shared_storage"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium's headless shell. A full Chromium runs a second renderer per page, for its own window."""
    expect.set_options(timeout=TIMEOUT_MS)
    # Playwright's own Node.js needs a library that a minimal machine lacks
    os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", str(ROOT / ".venv-node/bin/node"))
    with sync_playwright() as playwright, _launch(playwright.chromium, "chromium-headless-shell") as browser:
        yield browser


@contextlib.contextmanager
def full_chromium(browser: Browser) -> Iterator[Browser]:
    """Start a full Chromium, for notifications: the headless shell denies them."""
    with _launch(browser.browser_type, "chromium") as full:
        yield full


@contextlib.contextmanager
def _launch(kind: BrowserType, program: str) -> Iterator[Browser]:
    """Start a browser that does not notice when other tests change the network interfaces of this machine."""
    path = shutil.which(program) or shutil.which("google-chrome")
    assert path, f"{program} is not installed: run scripts/system-packages tests"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="sandyard-browser-") as folder:
        launcher = Path(folder) / program
        command = shlex.join([sys.executable, str(Path(without_netlink.__file__)), path])
        launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        launcher.chmod(0o700)
        browser = kind.launch(executable_path=launcher, args=[*arguments, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_context(
    browser: Browser, url: str, *, phone: bool = False, theme: Theme = "light"
) -> Iterator[BrowserContext]:
    """Open a separate browser context, which shares nothing with others."""
    context = browser.new_context(
        base_url=url,
        viewport=PHONE if phone else DESKTOP,
        color_scheme=theme,
        reduced_motion="reduce",
        has_touch=phone,
        accept_downloads=True,
    )
    context.set_default_timeout(TIMEOUT_MS)
    try:
        yield context
    finally:
        context.close()


@contextlib.contextmanager
def fresh_page(context: BrowserContext, url: str, token: str) -> Iterator[Page]:
    """Open a page that is signed in with this token. From earlier tests, the browser keeps only its cache and its renderer process: a new
    process would load and compile the application again, which takes longer than most tests. Fails at the end if the console has errors."""
    page = _reset_first_page(context, url) or context.new_page()
    login(page, url, token=token)
    with console_errors(page) as errors:
        yield page
        assert not errors, "the console has errors:\n" + "\n".join(errors)


def _reset_first_page(context: BrowserContext, url: str) -> Page | None:
    """Reset the first page of the context to the state of a new one. None: the context has no page, or it shows another site."""
    context.clear_cookies()
    context.clear_permissions()
    page, *others = context.pages or [None]
    for other in others:
        if other is not None:
            other.close()
    if page is None or not page.url.startswith(url):
        return None
    page.unroute_all(behavior="ignoreErrors")
    page.goto(f"{url}{BLANK}")
    page.evaluate("sessionStorage.clear()")
    devtools = context.new_cdp_session(page)
    devtools.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": STORAGE_TYPES})
    devtools.detach()
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light")
    return page


@contextlib.contextmanager
def signed_in_page(
    browser: Browser, url: str, token: str, *, phone: bool = False, theme: Theme = "light"
) -> Iterator[Page]:
    """Like fresh_page, in a separate browser context."""
    with open_context(browser, url, phone=phone, theme=theme) as context, fresh_page(context, url, token) as page:
        yield page


def login(page: Page, url: str, **credentials: str) -> None:
    """Sign in without the form. If Playwright reuses an idle connection just as the platform closes it, it tries again, like a browser."""
    answer = page.context.request.post(f"{url}/api/v1/login", data=credentials, max_retries=2)
    assert answer.ok, answer.text()
    if page.url != f"{url}{BLANK}":
        page.goto(f"{url}{BLANK}")
    page.evaluate("key => localStorage.setItem('sandyard.key', key)", answer.json()["key"])


@contextlib.contextmanager
def console_errors(page: Page) -> Iterator[list[str]]:
    """Collect the console errors of the page. Error responses of the platform do not count."""
    errors: list[str] = []
    interrupted = False

    def console(message: ConsoleMessage) -> None:
        nonlocal interrupted
        # the test has killed the platform
        interrupted = interrupted or any(error in message.text for error in _NETWORK_ERRORS)
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            record_error(message.text)

    def record_error(text: str) -> None:
        will_reload = interrupted and any(error in text for error in _CHUNK_ERRORS)
        if not will_reload:
            errors.append(text)

    def fail(error: Error) -> None:
        record_error(str(error))

    page.on("console", console)
    page.on("pageerror", fail)
    try:
        yield errors
    finally:
        page.remove_listener("console", console)
        page.remove_listener("pageerror", fail)


def expect_loaded(page: Page, words: str | None = None) -> None:
    """Expect that the page has loaded: a heading, a text that matches the regular expression `words`, and no loading indicator."""
    expect(page.get_by_role("heading").first).to_be_visible()
    if words:
        expect(page.get_by_text(re.compile(words)).locator("visible=true").first).to_be_visible()
    expect(page.locator("[role=status][aria-label^=Loading]")).to_have_count(0)


def navigate(page: Page, address: str) -> None:
    """Navigate like a link in the page. Loading the application again takes a second of CPU time, and loading axe another half."""
    page.evaluate("address => history.pushState({}, '', address)", address)


def visit(page: Page, address: str) -> None:
    """Navigate like a link if the application is loaded already, else load the URL."""
    if page.url == "about:blank" or page.url.endswith(BLANK):
        page.goto(address)
    else:
        navigate(page, address)


def open_tab(page: Page, tab: str) -> None:
    """Open another tab of the current page."""
    navigate(page, f"?tab={tab}")
    chosen = f"[role=tab][aria-selected=true][id$='-{tab}'], a[aria-current=page][href$='?tab={tab}']"
    expect(page.locator(chosen)).to_be_attached()


def confirm(page: Page, answer: str) -> None:
    """Answer the page's dialog and wait until it is closed: elements behind an open dialog have no role."""
    dialog = page.get_by_role("alertdialog")
    dialog.get_by_role("button", name=answer).click()
    expect(dialog).to_be_hidden()


def expect_accessible(page: Page, *, ignore: tuple[str, ...] = (), colours: bool | None = None) -> None:
    """Expect that axe finds no serious violation. `ignore`: selectors of foreign content; `colours`: only contrast, or all but contrast."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{_axe()}; undefined")  # without `undefined`, Playwright would serialize the whole axe object
    options: dict[str, Any] = {"resultTypes": ["violations"], "runOnly": RULES}
    if colours is True:
        options["runOnly"] = {"type": "rule", "values": [CONTRAST_RULE]}
    elif colours is False:
        options["rules"] = {CONTRAST_RULE: {"enabled": False}}
    found: list[dict[str, Any]] = page.evaluate(RUN_AXE, [{"exclude": [[item] for item in ignore]}, options, IMPACTS])
    serious = [
        {"rule": item["id"], "help": item["help"], "where": [_describe_node(node) for node in item["nodes"][:5]]}
        for item in found
    ]
    assert not serious, f"{page.url}: {json.dumps(serious, indent=2)}"


@functools.cache
def _axe() -> str:
    return AXE.read_text()


def _describe_node(node: dict[str, Any]) -> str:
    return f"{node['html'][:200]}: {' '.join(check['message'] for check in node['any'])}"


def switch_to_dark(page: Page) -> None:
    """Switch the system to dark mode, without transitions: elements that inherit a fading colour start to fade themselves, frame after
    frame, and the end of all transitions cannot be detected."""
    page.evaluate(
        """() => {
          const style = new CSSStyleSheet();
          style.replaceSync("*, *::before, *::after { transition: none !important }");
          document.adoptedStyleSheets = [...document.adoptedStyleSheets, style];
        }"""
    )
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def expect_fitting_width(page: Page) -> None:
    """Expect that nothing makes the page wider than the screen."""
    wide = page.evaluate(
        """() => {
          const room = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= room) return [];
          return [...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > room + 1)
            .slice(0, 5).map((one) => one.outerHTML.slice(0, 160));
        }"""
    )
    assert not wide, f"{page.url} must not be wider than the screen: {wide}"


def take_screenshot(page: Page, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, animations="disabled", caret="hide")
