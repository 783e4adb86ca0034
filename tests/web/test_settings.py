"""Settings in the web: projects, members, credentials, users, agents, model providers and schedules."""

from __future__ import annotations

import base64
import gzip
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from sandyard.platform.domain.agents.profiles.demo import build_program
from tests.acceptance.mcp_servers import url_server
from tests.forge import GitHub
from tests.harness.platform import Platform, ok, until
from tests.models import ModelServer
from tests.web.api import Api
from tests.web.browser import DESKTOP, confirm, expect_accessible, full_chromium, open_tab, signed_in_page

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 120_000
CHANGES = {
    "general": ("Pause idle sandboxes after (seconds)", "900", "idleSeconds", 900),
    "agent": ("Stuck after (minutes)", "42", "agent.stuckMinutes", 42),
    "setup": ("Setup command", "make setup", "setup.command", "make setup"),
    "forge": ("Reviewers", "ada\ngrace", "forge.reviewers", ["ada", "grace"]),
    "board": ("Card limit for In progress", "3", "tasks.wipLimits.in_progress", 3),
    "policy": ("Deny", "\\bsudo\\b", "commandPolicy.deny", ["\\bsudo\\b"]),
}
"""For each tab: a field, the text entered, and the setting and value that are stored."""
REFUSED_TOKEN = re.compile("The remote rejected the credential: .* Enter a new one.$")


@pytest.fixture(scope="module")
def platform(own_platform: Platform) -> Platform:
    return own_platform


def choose_option(page: Page, box: Locator, choice: str) -> None:
    box.click()
    page.get_by_role("option", name=re.compile(rf"^{re.escape(choice)}")).click()


def create_repository(folder: Path) -> str:
    """Create a repository with one commit and return its path."""
    for line in (
        f"git init --quiet --initial-branch main {folder}",
        f"git -C {folder} -c user.name=Ada -c user.email=ada@example.org commit --quiet --allow-empty -m first",
    ):
        subprocess.run(line.split(), check=True)
    return str(folder)


def test_a_project_is_added_from_a_local_folder(page: Page, api: Api, tmp_path: Path) -> None:
    page.goto("/projects")
    page.get_by_role("button", name="Add a project").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Repository").fill(str(tmp_path / "tools"))
    dialog.get_by_role("button", name="Test and add").click()
    expect(dialog.get_by_role("img", name="failed")).to_be_visible()
    assert "tools" not in {project["name"] for project in api.get("/projects")["items"]}, (
        "a project that failed its test is not stored"
    )
    create_repository(tmp_path / "tools")
    dialog.get_by_role("button", name="Test and add").click()
    expect(page).to_have_url(re.compile(r"/board\?project=prj_"))
    made = next(project for project in api.get("/projects")["items"] if project["name"] == "tools")
    (tmp_path / "tools").rename(tmp_path / "moved")
    assert not api.post(f"/projects/{made['id']}/test")["ok"]
    page.goto("/projects")
    expect(page.get_by_role("listitem").filter(has_text="tools")).to_contain_text("Can't reach the repository")


def test_a_project_is_added_from_a_url_with_its_credentials(page: Page, api: Api, github: GitHub) -> None:
    remote = github.repository("acme/private", files={"README.md": "# Private\n"})
    token = github.tokens.make("sandyard-bot")
    page.goto("/projects")
    page.get_by_role("button", name="Add a project").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Repository").fill(remote.url)
    dialog.get_by_label("Name", exact=True).fill("Private")
    dialog.get_by_label("Token", exact=True).fill("ghp_of_somebody_else")
    dialog.get_by_role("button", name="Test and add").click()
    expect(dialog.get_by_role("img", name="failed").first).to_be_visible()
    expect(dialog.get_by_label("Token", exact=True)).to_have_accessible_description(REFUSED_TOKEN)
    assert "Private" not in {project["name"] for project in api.get("/projects")["items"]}
    dialog.get_by_role("button", name="Add anyway").click()
    page.get_by_role("button", name="Replace the Token").click()
    dialog.get_by_label("Token", exact=True).fill("ghp_of_nobody")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog.get_by_text("Nothing was saved.")).to_be_visible()
    dialog.get_by_label("Token", exact=True).fill(token.text)
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Test connection").click()
    found = page.get_by_role("list", name="Test results")
    expect(found.get_by_role("img", name="passed", exact=True).first).to_be_visible()
    expect(found.get_by_text("Base branch", exact=True)).to_have_css("text-transform", "none")
    expect(found.get_by_role("img", name="failed")).to_have_count(0)
    assert token.text not in page.content()
    made = next(project for project in api.get("/projects")["items"] if project["name"] == "Private")
    page.goto(f"/projects/{made['id']}")
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm(page, "Delete project")
    expect(page).to_have_url(re.compile("/projects$"))
    assert api.client.get(f"/projects/{made['id']}").status_code == 404

    page.get_by_role("button", name="Add a project").click()
    dialog.get_by_label("Repository").fill(remote.url)
    dialog.get_by_label("Token", exact=True).fill(token.text)
    dialog.get_by_role("button", name="Test and add").click()
    expect(page).to_have_url(re.compile(r"/projects/prj_\w+\?tab=forge"))
    without_pulls = page.get_by_role("note").filter(has_text="branches are pushed without pull requests")
    expect(without_pulls).to_be_visible()
    expect_accessible(page)
    page.goto("/welcome")
    page.get_by_label("Repository").fill(remote.url)
    page.get_by_label("Token").fill("ghp_of_somebody_else")
    page.get_by_role("button", name="Test and add").click()
    expect(page.get_by_label("Token")).to_have_accessible_description(REFUSED_TOKEN)
    expect(page.get_by_label("Repository")).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Token").fill(token.text)
    page.get_by_role("button", name="Test and add").click()
    expect(page.get_by_role("radiogroup", name="Agent")).to_be_visible()
    without_pulls.get_by_role("link", name="Git and forge settings").click()
    wrong_url = github.api_url.replace("/api/v3", "/nothing/here")
    page.get_by_label("API URL").fill(wrong_url)
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_label("API URL")).to_have_accessible_description(re.compile(re.escape(wrong_url)))
    expect(page.get_by_role("button", name="Save without testing")).to_be_visible()
    page.get_by_label("API URL").fill(github.api_url)
    page.get_by_role("button", name="Save", exact=True).press("Enter")
    expect(without_pulls).to_be_hidden()
    for project in api.get("/projects")["items"]:
        if project["name"] == "private":
            api.client.delete(f"/projects/{project['id']}")


def test_changed_settings_are_saved_and_the_others_stay(page: Page, api: Api, tmp_path: Path) -> None:
    settings = {"verify": {"command": "make test"}, "forge": {"labels": ["agent"]}, "tasks": {"issueLabel": "do it"}}
    body = {"name": "Settings", "repository": create_repository(tmp_path / "settings"), "settings": settings}
    before = api.post("/projects", **body)
    address = f"/projects/{before['id']}"
    page.goto(address)
    for tab, (label, text, _, _) in CHANGES.items():
        open_tab(page, tab)
        page.get_by_label(label, exact=True).fill(text)
        if tab == "setup":
            choose_option(page, page.get_by_label("Isolation"), "gVisor")
        page.get_by_role("button", name="Save").press("Enter")  # the toast of the previous save may cover the button
        expect(page.get_by_text("Saved", exact=True).first).to_be_visible()
        expect(page.get_by_role("button", name="Save")).to_have_count(0)
    page.goto(address)
    for tab, (label, text, _, _) in CHANGES.items():
        open_tab(page, tab)
        expect(page.get_by_label(label, exact=True)).to_have_value(text)
        expect(page.get_by_role("button", name="Save")).to_have_count(0)
    after = api.get(address)
    wanted = before["settings"]
    for _, _, path, value in CHANGES.values():
        *parts, last = path.split(".")
        inner: dict[str, Any] = wanted
        for part in parts:
            inner = inner[part]
        inner[last] = value
    assert after["settings"] == {**wanted, "isolation": "gvisor"}


def test_invalid_settings_are_marked_and_leaving_unsaved_changes_asks_first(page: Page, api: Api) -> None:
    page.goto(f"/projects/{api.sample_project}?tab=policy")
    page.get_by_label("Deny", exact=True).fill("(")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Deny", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_role("link", name="Members").click()
    confirmation = page.get_by_role("alertdialog")
    expect(confirmation).to_contain_text("Leave without saving?")
    confirmation.get_by_role("button", name="Cancel").click()
    expect(page.get_by_label("Deny", exact=True)).to_have_value("(")
    page.get_by_role("link", name="Members").click()
    confirmation.get_by_role("button", name="Leave").click()
    expect(page).to_have_url(re.compile("tab=members"))
    assert api.get(f"/projects/{api.sample_project}")["settings"]["commandPolicy"]["deny"] == []


def test_a_member_is_added_and_removed(page: Page, api: Api) -> None:
    api.post("/users", name="ada", role="member")
    held: list[Route] = []
    page.route("**/api/v1/users?*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright inspects its signature
    page.goto(f"/projects/{api.sample_project}?tab=members")
    adding = page.get_by_label("Add a member")
    expect(adding).to_contain_text("Loading…")
    for route in held:
        route.continue_()
    page.unroute("**/api/v1/users?*")
    choose_option(page, adding, "ada")
    page.get_by_role("button", name="Add", exact=True).click()
    row = page.get_by_role("listitem").filter(has_text="ada")
    row.get_by_role("button", name="Remove").click()
    confirm(page, "Remove")
    expect(row).to_have_count(0)
    assert api.get(f"/projects/{api.sample_project}/members")["items"] == []


@pytest.mark.parametrize("whose", ["own", "project"])
def test_secrets_are_write_only(whose: str, page: Page, api: Api) -> None:
    page.goto("/settings?tab=secrets" if whose == "own" else f"/projects/{api.sample_project}?tab=secrets")
    page.get_by_role("button", name="Add a secret").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("1ST")
    expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    dialog.get_by_label("Name").fill("NPM_TOKEN")
    dialog.get_by_label("Value").fill("npm_only_going_in")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("NPM_TOKEN", exact=True)).to_be_visible()
    page.get_by_role("button", name="Replace NPM_TOKEN").click()
    expect(dialog.get_by_label("Value")).to_have_value("")
    dialog.get_by_role("button", name="Cancel").click()
    assert "npm_only_going_in" not in page.content()
    page.get_by_role("button", name="Delete NPM_TOKEN").click()
    confirm(page, "Delete")
    expect(page.get_by_text("NPM_TOKEN", exact=True)).to_have_count(0)


def test_a_token_is_shown_once_and_stops_working_when_revoked(page: Page, platform: Platform) -> None:
    def status() -> int:
        return httpx.get(f"{platform.url}/api/v1/me", headers={"Authorization": f"Bearer {value}"}).status_code

    page.goto("/settings?tab=tokens")
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Create token").click()
    value = page.get_by_test_id("token-value").inner_text()
    assert status() == 200
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert value not in page.content()
    page.reload()
    page.get_by_role("button", name="Revoke laptop").click()
    assert value not in page.content()
    confirm(page, "Revoke")
    expect(page.get_by_role("button", name="Revoke laptop")).to_have_count(0)
    assert status() == 401


def test_a_user_is_added_signs_in_and_is_disabled(page: Page, browser: Browser, platform: Platform) -> None:
    page.goto("/settings?tab=people")
    page.get_by_role("button", name="Add a person").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("linus")
    dialog.get_by_label("Password").fill("short")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_label("Password")).to_have_accessible_description("Use at least 10 characters.")
    dialog.get_by_label("Password").fill("a long enough password")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("button", name="Disable linus")).to_be_visible()
    context = browser.new_context(base_url=platform.url, viewport=DESKTOP)
    user_page = context.new_page()
    user_page.goto("/sign-in")
    user_page.get_by_label("Name").fill("linus")
    user_page.get_by_label("Password").fill("a wrong password")
    user_page.get_by_role("button", name="Sign in", exact=True).click()
    expect(user_page.get_by_role("alert")).to_contain_text("An administrator can set a new password for you.")
    user_page.get_by_label("Password").fill("a long enough password")
    user_page.get_by_role("button", name="Sign in", exact=True).click()
    navigation = user_page.get_by_role("navigation", name="Main navigation")
    expect(navigation.get_by_role("link", name="Board")).to_be_visible()
    expect(navigation.get_by_role("link", name="Audit log")).to_have_count(0)
    user_page.goto("/settings")
    user_page.get_by_label("Current password").fill("a wrong password")
    user_page.get_by_label("New password").fill("a longer password than before")
    user_page.get_by_label("Confirm password").fill("a longer password than before")
    user_page.get_by_role("button", name="Change password").click()
    expect(user_page.get_by_role("alert")).to_contain_text("The current password is wrong.")
    user_page.get_by_label("Current password").fill("a long enough password")
    user_page.get_by_role("button", name="Change password").click()
    expect(user_page.get_by_text("Password changed.")).to_be_visible()
    login = {"name": "linus", "password": "a longer password than before"}
    response = httpx.post(f"{platform.url}/api/v1/login", json=login)
    assert response.status_code == 200
    user_page.goto("/settings?tab=people")
    expect(user_page.get_by_role("heading", name="Settings")).to_be_visible()
    expect(user_page.get_by_role("button", name="Add a person")).to_have_count(0)
    page.get_by_role("button", name="Disable linus").click()
    confirm(page, "Disable")
    expect(page.get_by_role("button", name="Enable linus")).to_be_visible()
    user_page.goto("/board")
    expect(user_page).to_have_url(re.compile("/sign-in"))
    context.close()


def test_limits_are_set_and_shown_next_to_what_is_used(
    page: Page, browser: Browser, platform: Platform, api: Api
) -> None:
    user = ok(platform.client.post("/users", json={"name": "grete", "password": "a long enough password"}))
    page.goto("/settings?tab=people")
    page.get_by_role("button", name="Limits of grete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("0 of 100")).to_be_visible()
    dialog.get_by_role("spinbutton", name="Processors").fill("8")
    dialog.get_by_role("spinbutton", name="Running sandboxes").fill("0")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    own = ok(platform.client.get(f"/users/{user['id']}/quotas"))["own"]
    assert (own["cpus"], own["runningSandboxes"], own["memoryMb"]) == (8, 0, None)
    page.get_by_role("button", name="Limits of grete").click()
    expect(dialog.get_by_text("0 of 8")).to_be_visible()
    expect(dialog.get_by_text("0, no limit").first).to_be_visible()
    page.keyboard.press("Escape")
    page.goto("/settings?tab=limits")
    expect(page.get_by_role("heading", name="Your limits")).to_be_visible()
    expect_accessible(page)


def test_the_status_page_shows_what_takes_the_disk(page: Page) -> None:
    page.goto("/settings?tab=status")
    row = page.get_by_role("row").filter(has_text="Database of the platform")
    expect(row).to_contain_text(re.compile("[KM]iB"))
    expect(page.get_by_text("free of").first).to_be_visible()


def test_a_custom_agent_is_added_tested_edited_and_deleted(page: Page, api: Api) -> None:
    packed = base64.b64encode(gzip.compress(build_program(), mtime=0)).decode()
    page.goto("/agents")
    page.get_by_role("button", name="Add an agent").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("my-own")
    dialog.get_by_label("Title", exact=True).fill("My own")
    dialog.get_by_label("Command", exact=True).fill("python3\n{home}/my-own.pyz")
    dialog.get_by_label("Install script").fill(f"base64 -d <<'END' | gunzip > ~/my-own.pyz\n{packed}\nEND\n")
    dialog.get_by_label("Skip the install if this command succeeds").fill("test -s ~/my-own.pyz")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Test My own").click()
    row = page.get_by_role("listitem").filter(has_text="My own").first
    expect(row.get_by_text(re.compile("Test passed. Reply:"))).to_be_visible(timeout=SLOW_MS)
    page.get_by_role("button", name="Edit My own").click()
    dialog.get_by_label("Command", exact=True).fill("no-such-program")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Test My own").click()
    expect(row.get_by_role("img", name="failed")).to_be_visible(timeout=SLOW_MS)
    stored = api.get("/agents/my-own")["definition"]
    assert stored["argv"] == ["no-such-program"]
    assert stored["install"]["check"] == "test -s ~/my-own.pyz"
    page.get_by_role("button", name="Delete My own").click()
    confirm(page, "Delete")
    expect(page.get_by_role("button", name="Test My own")).to_have_count(0)


def test_a_model_provider_is_added_tested_edited_and_deleted(page: Page, api: Api) -> None:
    with ModelServer(keys=["sk-the-real-key"]) as models:
        page.goto("/agents?tab=providers")
        page.get_by_role("button", name="Add a provider").click()
        dialog = page.get_by_role("dialog")
        choose_option(page, dialog.get_by_label("Preset"), "OpenRouter")
        expect(dialog.get_by_label("Base URL")).to_have_value("https://openrouter.ai/api/v1")
        expect(dialog.get_by_label("Models")).to_have_value(re.compile("anthropic/claude-"))
        expect(dialog.get_by_label("Prices")).to_have_value(re.compile("openai/gpt-"))
        dialog.get_by_label("Name").fill("house")
        dialog.get_by_label("Base URL").fill(models.url)
        dialog.get_by_label("Key", exact=True).fill("sk-a-wrong-key")
        dialog.get_by_label("Models").fill("scripted")
        dialog.get_by_label("Prices").fill("scripted 1 2")
        dialog.get_by_role("button", name="Test and save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("house rejected the API key (401).")
        assert "house" not in [model_provider["name"] for model_provider in api.get("/model-providers")["items"]]
        dialog.get_by_role("button", name="Save without testing").click()
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Test house").click()
        row = page.get_by_role("listitem").filter(has_text="house").first
        expect(row.get_by_role("img", name="failed")).to_be_visible()
        page.get_by_role("button", name="Edit house").click()
        dialog.get_by_label("Key", exact=True).fill("sk-the-real-key")
        dialog.get_by_role("button", name="Test and save").click()
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Test house").click()
        expect(row.get_by_role("img", name="passed", exact=True)).to_be_visible()
        assert "sk-the-real-key" not in page.content()
        stored = next(
            model_provider
            for model_provider in api.get("/model-providers")["items"]
            if model_provider["name"] == "house"
        )
        assert stored["models"] == ["scripted"]
        assert set(stored["prices"]) == {"scripted"}
    page.get_by_role("button", name="Delete house").click()
    confirm(page, "Delete")
    expect(page.get_by_role("button", name="Test house")).to_have_count(0)


def test_mcp_servers_of_a_project_are_added_tested_and_removed(page: Page, api: Api) -> None:
    project = ok(api.client.post("/projects", json={"name": "with tools"}), 201)
    path = f"/projects/{project['id']}/mcp-servers"
    with url_server("mcp-the-real-key-of-it", "elderberry") as server:
        page.goto(f"/projects/{project['id']}?tab=agent")
        page.get_by_role("button", name="Add a server").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("issues")
        dialog.get_by_label("URL").fill(server.url)
        dialog.get_by_role("button", name="Add a header").click()
        dialog.get_by_label("Header", exact=True).fill("X-Api-Key")
        dialog.get_by_label("Value of X-Api-Key").fill("mcp-a-wrong-key")
        dialog.get_by_role("button", name="Test and save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("issues rejected the configured headers (401).")
        assert api.get(path)["items"] == []
        expect(dialog.get_by_role("button", name="Save without testing")).to_be_visible()
        choose_option(page, dialog.get_by_label("Type"), "Command")
        expect(dialog.get_by_role("alert")).to_have_count(0)
        expect(dialog.get_by_role("button", name="Save without testing")).to_have_count(0)
        choose_option(page, dialog.get_by_label("Type"), "URL")
        dialog.get_by_label("Value of X-Api-Key").fill("mcp-the-real-key-of-it")
        dialog.get_by_role("button", name="Test and save").click()
        expect(dialog).to_be_hidden()
        row = page.get_by_role("list", name="MCP servers").get_by_role("listitem").filter(has_text="issues")
        expect(row).to_contain_text("X-Api-Key …f-it")
        page.get_by_role("button", name="Test issues").click()
        expect(row.get_by_role("img", name="passed", exact=True)).to_be_visible()
        expect(row).to_contain_text("1 tool")
        expect(row).to_contain_text("outer_word")
        page.get_by_role("button", name="Edit issues").click()
        expect(dialog.get_by_label("Value of X-Api-Key")).to_have_attribute("placeholder", "…f-it (unchanged)")
        dialog.get_by_label("Header", exact=True).fill("X-Other")
        expect(dialog.get_by_label("Value of X-Other")).to_have_attribute("placeholder", "Bearer …")
        dialog.get_by_label("Header", exact=True).fill("X-Api-Key")
        dialog.get_by_role("button", name="Add a header").click()
        dialog.get_by_label("Header", exact=True).last.fill("x-api-key")
        expect(dialog.get_by_text("Duplicate header: x-api-key")).to_be_visible()
        expect(dialog.get_by_role("button", name="Test and save")).to_be_disabled()
        dialog.get_by_role("button", name="Remove x-api-key", exact=True).click()
        dialog.get_by_label("Name").fill("tracker")
        dialog.get_by_role("button", name="Save", exact=True).click()
        expect(dialog).to_be_hidden()
        row = page.get_by_role("list", name="MCP servers").get_by_role("listitem").filter(has_text="tracker")
        # a changed server counts as untested
        expect(row.get_by_role("img", name="passed", exact=True)).to_have_count(0)
        page.get_by_role("button", name="Test tracker").click()
        expect(row.get_by_role("img", name="passed", exact=True)).to_be_visible()
        assert "mcp-the-real-key-of-it" not in page.content()
    page.get_by_role("button", name="Add a server").click()
    dialog.get_by_label("Name").fill("my notes")
    choose_option(page, dialog.get_by_label("Type"), "Command")
    expect(dialog.get_by_text("Not secret: visible to everyone in the project")).to_be_visible()
    dialog.get_by_label("Command").fill("npx")
    dialog.get_by_label("Arguments").fill("-y\n@example/notes@1.2.3")
    dialog.get_by_label("Environment variables").fill("LEVEL=info")
    dialog.get_by_role("button", name="Save", exact=True).click()
    rule = "Use letters, digits and hyphens; start and end with a letter or digit."
    expect(dialog.get_by_label("Name")).to_have_accessible_description(rule)
    dialog.get_by_label("Name").fill("notes")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Edit notes")).to_be_visible()
    expect(page.get_by_role("button", name="Test notes")).to_have_count(0)
    notes = next(item for item in api.get(path)["items"] if item["name"] == "notes")
    assert (notes["command"], notes["args"], notes["env"]) == ("npx", ["-y", "@example/notes@1.2.3"], {"LEVEL": "info"})
    page.get_by_role("button", name="Remove tracker").click()
    confirm(page, "Remove")
    expect(page.get_by_role("button", name="Edit tracker")).to_have_count(0)


def test_a_schedule_is_created_run_disabled_and_deleted(page: Page, api: Api) -> None:
    assert api.sample_project
    page.goto("/schedules")
    page.get_by_role("button", name="New schedule").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("mondays")
    dialog.get_by_label("Cron expression").fill("61 * * * *")
    dialog.get_by_label("Task title").fill("The weekly one")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not a valid cron expression")
    dialog.get_by_role("button", name="Mondays at 9").click()
    dialog.get_by_label("What should the agent do?").fill("create WEEK.md: 1\ncommit: docs: week")
    choose_option(page, dialog.get_by_label("Agent", exact=True), "Demo agent")
    dialog.get_by_label("Start immediately instead of adding it to the backlog").click()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Run mondays now").click()
    page.get_by_role("link", name="Open task").click()
    expect(page).to_have_url(re.compile("/tasks/tsk_"))
    expect(page.get_by_role("heading", name="The weekly one")).to_be_visible()
    page.goto("/schedules")
    page.get_by_role("switch", name="mondays enabled").click()
    expect(page.get_by_text("disabled")).to_be_visible()
    assert [schedule["enabled"] for schedule in api.get("/schedules")["items"] if schedule["name"] == "mondays"] == [
        False
    ]
    page.get_by_role("button", name="Delete mondays").click()
    confirm(page, "Delete")
    expect(page.get_by_role("button", name="Run mondays now")).to_have_count(0)


def test_the_audit_log_is_filtered_and_exported(page: Page, api: Api) -> None:
    api.post("/users", name="barbara", role="member")
    page.goto("/audit")
    page.get_by_label("Action").fill("user.create")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page).to_have_url(re.compile("action=user.create"))
    entries = page.get_by_role("list", name="Entries, newest first")
    expect(entries.get_by_text("user.create", exact=True).first).to_be_visible()
    shown = entries.locator("summary code").all_inner_texts()
    assert set(shown) == {"user.create"}
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) >= len(shown)
    assert all('"user.create"' in line for line in lines)
    page.get_by_label("Action").fill("no.such.action")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No matching entries")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(entries).to_be_visible()


def test_the_chosen_theme_is_kept(page: Page) -> None:
    html = page.locator("html")
    page.goto("/settings?tab=appearance")
    page.get_by_role("radio", name="Dark").click()
    expect(html).to_have_attribute("data-theme", "dark")
    page.goto("/board")
    expect(html).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name=re.compile("^Account: ")).click()
    page.get_by_role("menuitem", name="Light theme").click()
    expect(html).to_have_attribute("data-theme", "light")
    page.goto("/settings?tab=appearance")
    page.get_by_role("radio", name="System").click()
    page.emulate_media(color_scheme="dark")
    expect(html).to_have_attribute("data-theme", "dark")


@pytest.mark.slow
def test_a_disabled_notification_is_only_listed(browser: Browser, platform: Platform, api: Api) -> None:
    with full_chromium(browser) as full, signed_in_page(full, platform.url, platform.token) as page:
        page.context.grant_permissions(["notifications"], origin=platform.url)
        page.goto("/settings?tab=notifications")
        expect(page.get_by_text("Allowed", exact=True)).to_be_visible()
        failures = page.get_by_role("switch", name="An attempt has failed")
        failures.click()
        page.reload()
        expect(failures).not_to_be_checked()
        expect(page.get_by_role("switch", name="An agent needs an answer")).to_be_checked()
        expect(page.locator("[data-live=live]")).to_be_attached()
        failing = api.create_task("Fails unseen", "fail: It cannot be done.")
        api.wait_for_attempt(failing, "failed")
        bell = page.get_by_role("button", name=re.compile("^Inbox [1-9]"))
        expect(bell).to_be_visible()  # it is listed, but nothing popped up
        expect(page.get_by_text("An attempt failed")).to_have_count(0)


def test_the_command_palette_finds_tasks_pages_and_settings(page: Page, api: Api) -> None:
    task = api.create_task("Find the needle", start=False)
    page.goto("/usage")
    expect(page.get_by_role("heading", name="Usage and cost")).to_be_visible()
    typed = page.get_by_role("dialog").get_by_role("combobox")

    # text typed before the palette has loaded is kept, and Enter waits for its results
    held_routes: list[Route] = []
    holding = True

    def hold(route: Route) -> None:
        if holding:
            held_routes.append(route)
        else:
            route.continue_()

    page.route("**/assets/*.js", hold)
    # also the searches for the first letters: they could find the task before Enter
    page.route("**/api/v1/tasks?*", hold)
    page.keyboard.press("Control+k")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    expect(typed).to_have_value("needle")
    until(lambda: any("q=needle" in item.request.url for item in held_routes))
    holding = False
    for route in held_routes:
        route.continue_()
    expect(page).to_have_url(re.compile(f"/tasks/{task}"))

    # the first match of the current text is selected, not one of the previous text
    option = page.get_by_role("option")
    page.keyboard.press("Control+k")
    expect(option.filter(has_text="Find the needle")).to_be_visible()
    expect_accessible(page)
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_have_text("New session")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page).to_have_url(re.compile(f"/tasks/{task}"))
    page.keyboard.press("Control+k")
    page.keyboard.type("se")
    expect(page.get_by_role("option", selected=True)).to_have_text("New session")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/sessions$"))
    page.keyboard.press("Control+k")
    typed.fill("audit")
    expect(page.get_by_role("option", name="Audit log")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/audit"))
    page.keyboard.press("Control+k")
    for words, found in (
        ("key", "Model providers and keys"),
        ("password", "Profile and password"),
        ("people", "People"),
        ("token", "API tokens"),
        ("budget", "Board and budgets"),
        ("mcp", "Agent and MCP servers"),
        ("docs", "Help"),
    ):
        typed.fill(words)
        expect(option.filter(has_text=found).first).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Sandyard", level=1)).to_be_visible()  # the heading of the first document
    page.keyboard.press("Control+k")
    typed.fill("no such thing at all")
    expect(page.get_by_text("No results.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_an_archived_project_can_be_unarchived(page: Page, api: Api, tmp_path: Path) -> None:
    made = api.post("/projects", name="Old things", repository=create_repository(tmp_path / "old"))
    page.goto(f"/projects/{made['id']}")
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.get_by_role("button", name="Unarchive")).to_be_visible()
    page.goto("/projects")
    expect(page.get_by_role("heading", name="Projects")).to_be_visible()
    expect(page.get_by_role("link", name="Old things", exact=True)).to_have_count(0)
    page.get_by_role("switch", name="Archived").click()
    page.get_by_role("link", name="Settings for Old things").click()
    page.get_by_role("button", name="Unarchive").click()
    expect(page.get_by_role("button", name="Archive", exact=True)).to_be_visible()
    until(lambda: ok(api.client.get(f"/projects/{made['id']}"))["archivedAt"] is None)
