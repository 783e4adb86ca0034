"""A real Chromium, and what every page in it must not do: fail in silence, break its own policy, or scroll sideways."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
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

from tests.protocol.engine import ROOT

AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
DESK: ViewportSize = {"width": 1360, "height": 860}
PHONE: ViewportSize = {"width": 360, "height": 740}
PATIENCE_MS = 45_000
Theme = Literal["light", "dark"]
IMPACTS = ["serious", "critical"]
FIND = """async ([context, options, impacts]) => {
  const lesser = axe._audit.rules.filter(({ impact }) => impact && !impacts.includes(impact));
  const rules = { ...Object.fromEntries(lesser.map(({ id }) => [id, { enabled: false }])), ...options.rules };
  const { violations } = await axe.run(context, { ...options, rules });
  return violations.filter(({ impact }) => impacts.includes(impact));
}"""
"""Rules that never find anything of these impacts are not run at all."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
COLOURS = "color-contrast"
STORED = "local_storage,indexeddb,websql,service_workers,cache_storage,shared_storage"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium's headless shell. A full Chromium runs a second renderer per page, for its own window."""
    expect.set_options(timeout=PATIENCE_MS)
    # its own needs a library that a bare machine lacks
    os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", str(ROOT / ".venv-node/bin/node"))
    with sync_playwright() as playwright, _launched(playwright.chromium, "chromium-headless-shell") as browser:
        yield browser


@contextlib.contextmanager
def whole_chromium(browser: Browser) -> Iterator[Browser]:
    """A full Chromium, for notifications: the headless shell denies them."""
    with _launched(browser.browser_type, "chromium") as whole:
        yield whole


@contextlib.contextmanager
def _launched(kind: BrowserType, program: str) -> Iterator[Browser]:
    path = shutil.which(program) or shutil.which("google-chrome")
    assert path, f"{program} is not installed: scripts/system-packages tests brings it"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = kind.launch(executable_path=path, args=[*arguments, "--disable-dev-shm-usage"])
    try:
        yield browser
    finally:
        browser.close()


@contextlib.contextmanager
def browsing(browser: Browser, url: str, *, phone: bool = False, theme: Theme = "light") -> Iterator[BrowserContext]:
    """A browser of one's own: nothing in it is of another."""
    context = browser.new_context(
        base_url=url,
        viewport=PHONE if phone else DESK,
        color_scheme=theme,
        reduced_motion="reduce",
        has_touch=phone,
        accept_downloads=True,
    )
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield context
    finally:
        context.close()


@contextlib.contextmanager
def fresh_page(context: BrowserContext, url: str, token: str) -> Iterator[Page]:
    """A page of somebody who has this token. Of the tests before, the browser has kept nothing but the files it got and the process that
    showed them: a new process loads and compiles the application anew, which takes longer than most tests. At its end nothing may have gone
    wrong in it unseen."""
    page = _emptied(context, url) or context.new_page()
    login(context, url, token)
    with watched(page) as wrong:
        yield page
        assert not wrong, "the page complained:\n" + "\n".join(wrong)


def _emptied(context: BrowserContext, url: str) -> Page | None:
    """The first page of the context, as if it were new. None: there is none, or it is somewhere else."""
    context.clear_cookies()
    context.clear_permissions()
    page, *others = context.pages or [None]
    for other in others:
        if other is not None:
            other.close()
    if page is None or not page.url.startswith(url):
        return None
    page.unroute_all(behavior="ignoreErrors")
    page.goto(f"{url}/favicon.svg")  # where the application is not, which writes to what is emptied now
    page.evaluate("sessionStorage.clear()")
    devtools = context.new_cdp_session(page)
    devtools.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": STORED})
    devtools.detach()
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")
    return page


@contextlib.contextmanager
def signed_in(browser: Browser, url: str, token: str, *, phone: bool = False, theme: Theme = "light") -> Iterator[Page]:
    """The same, in a browser of their own."""
    with browsing(browser, url, phone=phone, theme=theme) as context, fresh_page(context, url, token) as page:
        yield page


def login(context: BrowserContext, url: str, token: str) -> None:
    answer = context.request.post(f"{url}/api/v1/login", data={"token": token}, headers={"X-Sandyard-CSRF": "1"})
    assert answer.ok, answer.text()


@contextlib.contextmanager
def watched(page: Page) -> Iterator[list[str]]:
    """What the page's console complains of meanwhile. Answers of the platform that refuse something are no complaint of the page's."""
    wrong: list[str] = []
    changed = False

    def console(message: ConsoleMessage) -> None:
        nonlocal changed
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            complain(message.text)
        # another engine has put its gateway on the loopback, or taken it off: Chromium ends all that is under way then
        changed = changed or "net::ERR_NETWORK_CHANGED" in message.text

    def complain(text: str) -> None:
        loads_again = changed and "Failed to fetch dynamically imported module" in text
        if not loads_again:
            wrong.append(text)

    def fail(error: Error) -> None:
        complain(str(error))

    page.on("console", console)
    page.on("pageerror", fail)
    try:
        yield wrong
    finally:
        page.remove_listener("console", console)
        page.remove_listener("pageerror", fail)


def there(page: Page, words: str | None = None) -> None:
    """All of the page is: a heading, what it is about (an expression that fits some text of it), and nothing on its way."""
    expect(page.get_by_role("heading").first).to_be_visible()
    if words:
        expect(page.get_by_text(re.compile(words)).locator("visible=true").first).to_be_visible()
    expect(page.locator("[role=status][aria-label^=Loading]")).to_have_count(0)


def follow(page: Page, address: str) -> None:
    """Go there as a link in the page does. To load the application again costs a second of a processor, and axe again another half."""
    page.evaluate("address => history.pushState({}, '', address)", address)


def visit(page: Page, address: str) -> None:
    """Go there: as a link does if the application is in the page already, by the address else."""
    if page.url == "about:blank":
        page.goto(address)
    else:
        follow(page, address)


def open_tab(page: Page, tab: str) -> None:
    """Another tab of the page that is shown."""
    follow(page, f"?tab={tab}")
    chosen = f"[role=tab][aria-selected=true][id$='-{tab}'], a[aria-current=page][href$='?tab={tab}']"
    expect(page.locator(chosen)).to_be_attached()


def confirm(page: Page, answer: str) -> None:
    """Gives the page's question this answer, and waits until it has been carried out: what lies behind it has no role till then."""
    asked = page.get_by_role("alertdialog")
    asked.get_by_role("button", name=answer).click()
    expect(asked).to_be_hidden()


def accessible(page: Page, *, ignore: tuple[str, ...] = (), colours: bool | None = None) -> None:
    """axe finds nothing serious. `ignore`: selectors of what is not ours; `colours`: look at nothing else, or at all else."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{_axe()}; undefined")  # its own value is all of axe, which Playwright would pack and send
    options: dict[str, Any] = {"resultTypes": ["violations"], "runOnly": RULES}
    if colours is True:
        options["runOnly"] = {"type": "rule", "values": [COLOURS]}
    elif colours is False:
        options["rules"] = {COLOURS: {"enabled": False}}
    found: list[dict[str, Any]] = page.evaluate(FIND, [{"exclude": [[one] for one in ignore]}, options, IMPACTS])
    serious = [
        {"rule": one["id"], "help": one["help"], "where": [_spot(node) for node in one["nodes"][:5]]} for one in found
    ]
    assert not serious, f"{page.url}: {json.dumps(serious, indent=2)}"


@functools.cache
def _axe() -> str:
    return AXE.read_text()


def _spot(node: dict[str, Any]) -> str:
    return f"{node['html'][:200]}: {' '.join(check['message'] for check in node['any'])}"


def darken(page: Page) -> None:
    """The system turns dark, and the open page with it, at once: what inherits a colour that fades begins to fade itself, frame after
    frame, and there is no moment in which all of it is known to be over."""
    page.evaluate(
        """() => {
          const still = new CSSStyleSheet();
          still.replaceSync("*, *::before, *::after { transition: none !important }");
          document.adoptedStyleSheets = [...document.adoptedStyleSheets, still];
        }"""
    )
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def fits(page: Page) -> None:
    """Nothing makes the page wider than the screen."""
    wide = page.evaluate(
        """() => {
          const room = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= room) return [];
          return [...document.querySelectorAll("body *")]
            .filter((one) => one.getBoundingClientRect().right > room + 1)
            .slice(0, 5).map((one) => one.outerHTML.slice(0, 160));
        }"""
    )
    assert not wide, f"{page.url} is wider than the screen: {wide}"


def picture(page: Page, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, animations="disabled", caret="hide")
