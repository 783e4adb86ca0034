"""The file browser and the terminal of a sandbox."""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.harness.platform import until
from tests.web.api import Api
from tests.web.browser import confirm, expect_accessible, expect_fitting_width

pytestmark = pytest.mark.timeout(300)

SLOW_MS = 90_000
HOME = "/home/user"
SCRIPT = "<!doctype html><script>document.title = 'owned'; parent.owned = true</script><h1>hello</h1>"


@pytest.fixture(scope="module")
def sandbox(api: Api) -> str:
    made = str(api.create_session("Files and shells")["sandboxId"])
    files = {
        "notes.txt": b"first line\n",
        "src/app.py": b"def hello():\n    return 'hello'\n",
        "raw.bin": bytes(range(256)),
        "page.html": SCRIPT.encode(),
        "dot.png": _png(),
    }
    for path, content in files.items():
        _write(api, made, path, content)
    return made


def _png() -> bytes:
    """Return an image of one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def _write(api: Api, sandbox: str, path: str, content: bytes) -> None:
    answer = api.client.put(f"/sandboxes/{sandbox}/files", params={"path": f"{HOME}/{path}"}, content=content)
    assert answer.is_success, answer.text


def _read(api: Api, sandbox: str, path: str) -> bytes:
    answer = api.client.get(f"/sandboxes/{sandbox}/files", params={"path": f"{HOME}/{path}"})
    assert answer.is_success, answer.text
    return bytes(answer.content)


def _open(page: Page, sandbox: str, path: str = "") -> None:
    page.goto(f"/sandboxes/{sandbox}?tab=files" + (f"&at={HOME}/{path}" if path else ""))
    expect(_tree(page).get_by_role("button", name="notes.txt")).to_be_visible(timeout=SLOW_MS)


def _tree(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Folders and files")


def _editor(page: Page, name: str) -> Locator:
    return page.get_by_role("textbox", name=f"Text of {HOME}/{name}")


def _replace_text(page: Page, name: str, text: str) -> None:
    """Replace the content of the open file."""
    _editor(page, name).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def test_a_file_is_found_opened_edited_and_saved(page: Page, api: Api, sandbox: str) -> None:
    _open(page, sandbox)
    _tree(page).get_by_role("button", name="src", exact=True).click()
    _tree(page).get_by_role("button", name="app.py").click()
    expect(page).to_have_url(re.compile(r"app\.py"))
    expect(_editor(page, "src/app.py")).to_contain_text("def hello")
    coloured = _editor(page, "src/app.py").locator("span", has_text=re.compile("^def$"))
    expect(coloured).to_be_visible()
    expect_accessible(page)
    _replace_text(page, "src/app.py", "def hello():\n    return 'changed'\n")
    expect(page.get_by_text("Unsaved changes", exact=True)).to_be_visible()
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Unsaved changes", exact=True)).to_be_hidden()
    assert b"'changed'" in _read(api, sandbox, "src/app.py")


def test_unsaved_changes_are_kept_until_they_are_discarded(page: Page, api: Api, sandbox: str) -> None:
    _write(api, sandbox, "notes.txt", b"first line\n")
    _open(page, sandbox, "notes.txt")
    _replace_text(page, "notes.txt", "half a thought")
    _tree(page).get_by_role("button", name="raw.bin").click()  # another file, and back
    expect(_tree(page).get_by_role("img", name="Unsaved changes")).to_be_visible()
    _tree(page).get_by_role("button", name="notes.txt").click()
    expect(_editor(page, "notes.txt")).to_have_text("half a thought")
    with page.expect_event("dialog") as asked:
        page.evaluate("() => { setTimeout(() => location.reload()) }")
    assert asked.value.type == "beforeunload"
    asked.value.dismiss()
    expect(_editor(page, "notes.txt")).to_have_text("half a thought")
    page.get_by_role("button", name="Discard", exact=True).click()
    confirm(page, "Discard")
    expect(_editor(page, "notes.txt")).to_contain_text("first line")


def test_saving_a_file_that_the_agent_has_changed_asks_first(page: Page, api: Api, sandbox: str) -> None:
    _write(api, sandbox, "notes.txt", b"as it was\n")
    _open(page, sandbox, "notes.txt")
    _replace_text(page, "notes.txt", "mine")
    _write(api, sandbox, "notes.txt", b"as the agent has it now\n")
    page.get_by_role("button", name="Save", exact=True).click()
    question = page.get_by_role("alertdialog")
    expect(question).to_contain_text("The file has changed in the sandbox")
    question.get_by_role("button", name="Cancel").click()
    assert _read(api, sandbox, "notes.txt") == b"as the agent has it now\n"
    page.get_by_role("button", name="Save", exact=True).click()
    question.get_by_role("button", name="Overwrite").click()
    expect(page.get_by_text("Unsaved changes", exact=True)).to_be_hidden()
    assert _read(api, sandbox, "notes.txt") == b"mine"


def test_files_are_uploaded_downloaded_created_and_deleted(page: Page, api: Api, sandbox: str, tmp_path: Path) -> None:
    _open(page, sandbox)
    local_file = tmp_path / "brought.txt"
    local_file.write_text("brought from outside")
    picker = page.get_by_label("Files to upload")
    picker.set_input_files(local_file)
    expect(_tree(page).get_by_role("button", name="brought.txt")).to_be_visible()
    assert _read(api, sandbox, "brought.txt") == b"brought from outside"
    local_file.write_text("brought once more")
    picker.set_input_files(local_file)
    confirm(page, "Replace")
    until(lambda: _read(api, sandbox, "brought.txt") == b"brought once more")
    _tree(page).get_by_role("button", name="brought.txt").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert Path(download.value.path()).read_text() == "brought once more"
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm(page, "Delete")
    expect(_tree(page).get_by_role("button", name="brought.txt")).to_have_count(0)
    page.get_by_role("button", name="New file").click()
    page.get_by_role("dialog").get_by_label("Name").fill("made/here.md")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    _replace_text(page, "made/here.md", "# made")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Unsaved changes", exact=True)).to_be_hidden()
    assert _read(api, sandbox, "made/here.md") == b"# made"


def test_no_file_is_rendered_as_a_page(page: Page, api: Api, sandbox: str) -> None:
    """Images are shown, binary files can only be downloaded, and HTML is shown as text."""
    _open(page, sandbox, "dot.png")
    image = page.get_by_role("img", name="dot.png")
    expect(image).to_be_visible()
    assert image.evaluate("one => one.naturalWidth") == 1
    _tree(page).get_by_role("button", name="raw.bin").click()
    expect(page.get_by_text("Not a text file")).to_be_visible()
    expect(page.get_by_role("textbox", name=re.compile("^Text of"))).to_have_count(0)
    _tree(page).get_by_role("button", name="page.html").click()
    expect(_editor(page, "page.html")).to_contain_text("<h1>hello</h1>")
    expect(page.locator("iframe")).to_have_count(0)
    assert not page.evaluate("'owned' in window")
    headers = api.client.get(f"/sandboxes/{sandbox}/files", params={"path": f"{HOME}/page.html"}).headers
    assert headers["content-disposition"].startswith("attachment")
    assert headers["x-content-type-options"] == "nosniff"


# shells ----------------------------------------------------------------------------------------------------------------------


def _open_shell(page: Page, sandbox: str) -> Locator:
    page.goto(f"/sandboxes/{sandbox}?tab=terminal")
    return _wait_for_prompt(page)


def _wait_for_prompt(page: Page) -> Locator:
    screen = page.get_by_test_id("terminal")
    expect(page.get_by_text("The shell is open")).to_be_attached(timeout=SLOW_MS)
    expect(screen.locator(".xterm-rows")).to_contain_text("$", timeout=SLOW_MS)
    return screen


def _enter(page: Page, line: str) -> None:
    page.get_by_test_id("terminal").locator("textarea").focus()
    page.keyboard.type(line)
    page.keyboard.press("Enter")


def test_a_shell_survives_a_reload(page: Page, api: Api, sandbox: str) -> None:
    screen = _open_shell(page, sandbox)
    rows = screen.locator(".xterm-rows")
    _enter(page, "kept=$((40+2)); echo answer:$kept")
    expect(rows).to_contain_text("answer:42")
    expect_accessible(page, ignore=(".xterm",))
    page.reload()
    _wait_for_prompt(page)
    expect(rows).to_contain_text("answer:42")  # the screen content is restored
    _enter(page, "echo again:$kept")
    expect(rows).to_contain_text("again:42")
    page.get_by_role("tab", name="Files").click()
    expect(_tree(page)).to_be_visible()
    page.get_by_role("tab", name="Terminal").click()
    _wait_for_prompt(page)
    expect(screen.locator("textarea")).to_be_focused()  # also when everything is loaded already
    (shell,) = api.get(f"/sandboxes/{sandbox}/terminals")["items"]
    page.set_viewport_size({"width": 1360, "height": 500})
    probes = itertools.count()
    small = _ask_height(page, rows, next(probes))
    page.set_viewport_size({"width": 1360, "height": 900})
    until(lambda: _ask_height(page, rows, next(probes)) > small)
    page.get_by_role("button", name="New shell").first.click()
    until(lambda: len(api.get(f"/sandboxes/{sandbox}/terminals")["items"]) == 2)
    _wait_for_prompt(page)
    _enter(page, "echo other:${kept:-nothing}")
    expect(rows).to_contain_text("other:nothing")
    page.get_by_role("combobox", name="Shell").click()
    page.get_by_role("option", name=re.compile("Shell 1")).click()
    expect(rows).to_contain_text("size:")
    _enter(page, "echo still:$kept")
    expect(rows).to_contain_text("still:42")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Close shell").click()
    confirm(page, "Close shell")
    expect(page.get_by_text(re.compile("^The shell exited"))).to_be_visible()
    assert shell["id"] not in [terminal["id"] for terminal in api.get(f"/sandboxes/{sandbox}/terminals")["items"]]


def _ask_height(page: Page, rows: Locator, probe: int) -> int:
    """Ask the shell for the number of lines of its terminal. Returns when it has answered this question and shows its prompt again."""
    _enter(page, f"echo size:{probe}:$(stty size | tr ' ' x)")
    answer = re.compile(rf"size:{probe}:(\d+)x\d+.*\$\s*$", re.DOTALL)
    expect(rows).to_contain_text(answer)
    found = answer.search(rows.inner_text())
    assert found
    return int(found[1])


def test_a_new_shell_can_be_opened_after_one_exited(page: Page, api: Api) -> None:
    sandbox = str(api.create_session("One shell")["sandboxId"])
    _open_shell(page, sandbox)
    _enter(page, "exit 7")
    expect(page.get_by_text("The shell exited with code 7.")).to_be_visible()
    page.get_by_role("button", name="New shell").last.click()
    _wait_for_prompt(page)
    _enter(page, "echo fresh-$((1+1))")
    expect(page.get_by_test_id("terminal").locator(".xterm-rows")).to_contain_text("fresh-2")


def test_a_phone_shows_terminal_keys(phone: Page, sandbox: str) -> None:
    screen = _open_shell(phone, sandbox)
    keys = phone.get_by_role("toolbar", name="Terminal keys")
    _enter(phone, "sleep 300")
    keys.get_by_role("button", name="Ctrl+C").tap()
    expect(screen).to_contain_text("^C")
    phone.keyboard.type("echo tapped:$((6*7))")
    phone.keyboard.press("Enter")
    expect(screen).to_contain_text("tapped:42")
    _enter(phone, "clear")
    expect(screen).not_to_contain_text("tapped:42")
    keys.get_by_role("button", name="Up").tap()
    keys.get_by_role("button", name="Up").tap()
    phone.keyboard.press("Enter")
    expect(screen).to_contain_text("tapped:42")
    expect_fitting_width(phone)
