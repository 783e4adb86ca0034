"""The list of sandboxes, the page of a sandbox, its previews and its editor links."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.harness.platform import until
from tests.web.api import Api
from tests.web.browser import confirm, expect_accessible

pytestmark = pytest.mark.timeout(300)

SERVE = (
    "mkdir -p /tmp/site && echo '<h1 id=who>hello from inside</h1>' > /tmp/site/index.html"
    " && echo '<a href=/more/?page=2>more</a>' > /tmp/site/links.html"
    " && mkdir /tmp/site/more && echo '<p id=more>more from inside</p>' > /tmp/site/more/index.html"
    # browsers guess that a file that was not changed for a day stays the same for hours
    " && touch --date '1 day ago' /tmp/site/more/index.html"
    " && cd /tmp/site && exec python3 -m http.server 3000"
)


@pytest.mark.slow  # each action has its own test
def test_several_sandboxes_are_paused_resumed_and_destroyed_at_once(page: Page, api: Api) -> None:
    made = [api.create_session(f"Bulk {number}", api.sample_project)["sandboxId"] for number in range(2)]
    page.goto("/sandboxes")
    row = page.get_by_role("listitem").filter(has_text="Bulk 0")
    expect(row).to_contain_text(api.get(f"/projects/{api.sample_project}")["name"])
    expect(row).not_to_contain_text(made[0])
    for number in range(2):
        page.get_by_role("checkbox", name=f"Select Bulk {number}").check()
    page.get_by_role("button", name="Pause 2").click()
    until(lambda: all(api.get(f"/sandboxes/{item}")["status"] == "paused" for item in made))
    page.get_by_role("button", name="Resume 2").click()
    until(lambda: all(api.get(f"/sandboxes/{item}")["status"] == "running" for item in made))
    page.get_by_role("button", name="Delete 2").click()
    expect(page.get_by_role("alertdialog")).to_contain_text("Branches, checkpoints and conversations are kept")
    confirm(page, "Delete")
    until(lambda: all(api.get(f"/sandboxes/{item}")["status"] == "destroyed" for item in made))
    page.goto("/sandboxes?status=destroyed")
    expect(page.get_by_role("link", name="Bulk 0")).to_be_visible()
    expect_accessible(page)


def test_a_sandbox_is_paused_resumed_forked_and_destroyed(page: Page, api: Api) -> None:
    session = api.create_session("The panel")
    sandbox = session["sandboxId"]
    page.goto(f"/sandboxes/{sandbox}")
    # attached, not visible: the flat line of an idle sandbox has no height, so the browser reports it as hidden
    expect(page.get_by_role("img", name="Memory usage over the last minutes").locator("polyline")).to_be_attached()
    expect(page.get_by_role("link", name="Open in VS Code")).to_have_attribute(
        "href", re.compile("^vscode://vscode-remote/ssh-remote")
    )
    expect_accessible(page)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_text("The fork is running")).to_be_visible()
    assert len(api.get("/sandboxes", status="running")["items"]) >= 2
    page.get_by_role("button", name="Delete").click()
    confirm(page, "Delete")
    expect(page.get_by_text("Deleted").first).to_be_visible()


def test_a_preview_opens_on_another_origin(page: Page, api: Api) -> None:
    sandbox = api.create_session("A preview")["sandboxId"]
    api.post(f"/sandboxes/{sandbox}/execute", command=SERVE, background=True)
    page.goto(f"/sandboxes/{sandbox}")
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Open", exact=True).click()
    tab = opened.value
    expect(tab.locator("#who")).to_have_text("hello from inside")
    assert tab.evaluate("location.origin") != page.evaluate("location.origin")
    assert tab.evaluate("window.opener") is None
    assert "sandyard_ticket" not in tab.url
    assert "sandyard_session" not in tab.evaluate("document.cookie")
    tab.close()


def test_a_preview_opens_beside_the_page(page: Page, api: Api) -> None:
    sandbox = api.create_session("Beside")["sandboxId"]
    api.post(f"/sandboxes/{sandbox}/execute", command=SERVE, background=True)
    page.goto(f"/sandboxes/{sandbox}")
    page.get_by_role("button", name="Open to the side").click()
    beside = page.get_by_role("complementary", name="Preview: Port 3000")
    frame = beside.frame_locator("iframe")
    address = beside.get_by_label("Preview address")
    expect(frame.locator("#who")).to_have_text("hello from inside")
    expect(address).to_have_value("/")
    shown, main = beside.bounding_box(), page.get_by_role("main").bounding_box()
    assert shown
    assert main
    assert main["x"] + main["width"] <= shown["x"], "the preview must not cover the page"
    expect_accessible(page, ignore=("iframe",))

    address.fill("links.html")
    address.press("Enter")
    expect(address).to_have_value("/links.html")
    frame.get_by_role("link", name="more").click()
    expect(frame.locator("#more")).to_have_text("more from inside")
    expect(address).to_have_value("/more/?page=2")
    api.post(f"/sandboxes/{sandbox}/execute", command="echo '<p id=more>changed</p>' > /tmp/site/more/index.html")
    beside.get_by_role("button", name="Reload preview").click()
    expect(frame.locator("#more")).to_have_text("changed")
    with page.context.expect_page() as opened:
        beside.get_by_role("button", name="Open in a new tab").click()
    expect(opened.value.locator("#more")).to_have_text("changed")
    opened.value.close()
    page.get_by_role("link", name="Sandboxes").first.click()
    expect(page.get_by_role("heading", name="Sandboxes")).to_be_visible()
    expect(frame.locator("#more"), "the preview stays open during navigation").to_have_text("changed")
    page.set_viewport_size({"width": 900, "height": 800})
    drawer = page.get_by_role("dialog", name="Port 3000")
    expect(drawer.frame_locator("iframe").locator("#who")).to_have_text("hello from inside")
    drawer.get_by_role("button", name="Close").click()
    expect(page.locator("iframe")).to_have_count(0)
