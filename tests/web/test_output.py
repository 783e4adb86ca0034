"""Command output: live, coloured, searchable, and as light on the page with 100,000 lines as with ten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.harness.platform import until
from tests.web.api import Api
from tests.web.browser import expect_accessible

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 90_000
LINES = 100_000
COLOURED = "printf 'plain \\033[31mred\\033[0m \\033[1;32mgreen\\033[0m\\n'; echo to-stderr >&2"
COUNTING = (
    "touch /tmp/go; for i in $(seq 400); do echo count-$i; done; while [ -e /tmp/go ]; do echo tick; sleep 0.2; done"
)


@pytest.fixture(scope="module")
def sandbox(api: Api) -> str:
    return str(api.create_session("Where commands run")["sandboxId"])


def _run(page: Page, sandbox: str, command: str) -> Locator:
    """Start a command in the page. Returns the region with its output."""
    page.goto(f"/sandboxes/{sandbox}?tab=output")
    box = page.get_by_role("textbox", name="Command to run")
    box.fill(command)
    box.press("Enter")
    expect(box).to_have_value("", timeout=SLOW_MS)
    return page.get_by_role("region", name=f"Output of {command[:40]}")


def test_output_is_live_and_the_command_can_be_killed(page: Page, api: Api, sandbox: str) -> None:
    log = _run(page, sandbox, COUNTING)
    expect(log.get_by_text("tick", exact=True).last).to_be_in_viewport(timeout=SLOW_MS)
    log.hover()
    page.mouse.wheel(0, -2000)
    follow_button = page.get_by_role("button", name="Follow")
    expect(follow_button).to_be_visible()
    expect(log.get_by_text(re.compile(r"^count-\d+$")).first).to_be_visible()
    expect(page.get_by_role("navigation", name="Commands").locator("[aria-current=true]")).to_contain_text("Running")
    position = log.evaluate("one => one.scrollTop")
    lines = page.get_by_text(re.compile(r"^[\d,.\s]+ lines$"))
    count_before = lines.inner_text()
    expect(lines).not_to_have_text(count_before)  # more output has arrived
    assert log.evaluate("one => one.scrollTop") == position
    follow_button.click()
    expect(follow_button).to_be_hidden()
    expect(log.get_by_text("tick", exact=True).last).to_be_in_viewport()
    expect_accessible(page)
    page.get_by_role("button", name="Kill", exact=True).click()
    expect(page.get_by_role("button", name="Kill", exact=True)).to_be_hidden()
    command = api.get(f"/sandboxes/{sandbox}/commands")["items"][0]
    until(lambda: api.get(f"/commands/{command['id']}")["finishedAt"])


def test_output_shows_colours_and_can_be_filtered_by_stream(page: Page, sandbox: str) -> None:
    log = _run(page, sandbox, COLOURED)
    expect(log.locator("span", has_text=re.compile("^red$"))).to_have_class(re.compile("log-fg-"))
    expect(log.locator("span", has_text=re.compile("^green$"))).to_have_class(re.compile("font-semibold"))
    plain, red = (
        log.locator("span", has_text=re.compile(f"^{word}$")).evaluate("one => getComputedStyle(one).color")
        for word in ("plain ?", "red")
    )
    assert plain != red
    expect(log.get_by_text("to-stderr")).to_be_visible()
    streams = page.get_by_role("group", name="Streams")
    streams.get_by_role("button", name="stdout").click()
    expect(log.get_by_text("to-stderr")).to_have_count(0)
    streams.get_by_role("button", name="stderr").click()
    expect(log.get_by_text("to-stderr")).to_be_visible()
    expect(log.get_by_text("green")).to_have_count(0)
    streams.get_by_role("button", name="Both").click()
    expect(log.get_by_text("green")).to_be_visible()


def test_a_hundred_thousand_lines_can_be_scrolled_searched_and_downloaded(
    page: Page, sandbox: str, tmp_path: Path
) -> None:
    log = _run(page, sandbox, f"seq -f 'line %.0f of many' {LINES}; echo the-last-line")
    expect(log.get_by_text("the-last-line", exact=True)).to_be_in_viewport(timeout=SLOW_MS)
    rows = log.locator("[data-line]")
    assert rows.count() < 500
    log.focus()
    page.keyboard.press("Control+Home")
    expect(log.get_by_text("line 1 of many", exact=True)).to_be_in_viewport()
    assert rows.count() < 500
    page.keyboard.press("Control+f")
    find = page.get_by_role("searchbox", name="Search output")
    find.fill("line 77777 of")
    found = page.get_by_role("search")
    expect(found.get_by_text("1 of 1")).to_be_visible(timeout=SLOW_MS)
    expect(log.locator(".log-found-now")).to_have_text("line 77777 of")
    expect(log.locator(".log-found-now")).to_be_in_viewport()
    find.fill("9999 of")
    expect(found.get_by_text(re.compile(r"of 10$"))).to_be_visible(timeout=SLOW_MS)
    match_position = found.get_by_text(re.compile(r"^\d+ of 10$")).inner_text()
    find.press("Enter")
    expect(found.get_by_text(match_position, exact=True)).to_be_hidden()
    page.get_by_role("button", name="Previous match").click()
    expect(found.get_by_text(match_position, exact=True)).to_be_visible()
    assert rows.count() < 500
    find.press("Escape")
    page.get_by_role("button", name="Scroll to end").click()
    expect(log.get_by_text("the-last-line", exact=True)).to_be_in_viewport()
    page.get_by_role("button", name="Download").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=re.compile("^stdout")).click()
    file = tmp_path / "out"
    download.value.save_as(file)
    lines = file.read_text().splitlines()
    assert len(lines) == LINES + 1
    assert lines[-1] == "the-last-line"


def test_copy_all_copies_the_whole_output(page: Page, sandbox: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    log = _run(page, sandbox, "seq 3000")
    expect(log.get_by_text("3000", exact=True)).to_be_in_viewport()
    page.get_by_role("button", name="Copy all").click()
    copied = until(lambda: page.evaluate("navigator.clipboard.readText()"))
    assert copied.split("\n") == [str(number) for number in range(1, 3001)]


def test_a_command_has_its_own_url(page: Page, api: Api, sandbox: str) -> None:
    made = api.post(f"/sandboxes/{sandbox}/execute", command="echo before; exit 3", background=True)
    page.goto(f"/sandboxes/{sandbox}?tab=output&at={made['id']}")
    expect(page.get_by_role("region", name=re.compile("^Output of "))).to_contain_text("before")
    chosen = page.get_by_role("navigation", name="Commands").locator("[aria-current=true]")
    expect(chosen).to_contain_text("3")
