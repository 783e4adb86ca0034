"""The description of a pull request, in which text written by agents triggers nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sandyard.platform.domain.forge import description, markdown
from sandyard.platform.domain.forge.description import Check, Origin
from sandyard.platform.domain.repositories.model import Change, Commit, Diff, FileDiff, Identity

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADA = Identity("Ada", "ada@example.org")
TASK = Origin("ses_1", "tsk_1", "Make the login work", "It fails, see #7. @maria knows.")
EMPTY = Diff("a", "b", ())
YARD = "https://yard.example.org"
OURS = {f"<h2>{name}</h2>" for name in ("Summary", "Task", "Changes", "Checks", "Links")}


def commits(*messages: str) -> list[Commit]:
    """Return commits newest first, as git lists them, from messages oldest first."""
    made = []
    for number, message in enumerate(messages):
        subject, _, body = message.partition("\n\n")
        made.append(Commit(f"{number:040x}", ("p",), ADA, ADA, NOW, NOW, subject, body))
    return made[::-1]


def merge(subject: str) -> Commit:
    return Commit("m" * 40, ("p", "q"), ADA, ADA, NOW, NOW, subject, "")


# titles ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "origin", "asked", "title"),
    [
        (commits("feat: a"), TASK, "  My\n title ", "My title"),
        (commits("feat: a"), TASK, None, "feat: a"),
        (commits("feat: a"), TASK, "  ", "feat: a"),
        (commits("feat: a", "fix: b"), TASK, None, "feat: make the login work"),
        (commits("docs: a", "fix: b", "feat: c", "feat: d", "chore: e"), Origin(), None, "feat: c"),
        (commits("feat: a", "fix!: b"), Origin(), None, "fix!: b"),
        (commits("whatever", "chore: b"), Origin(), None, "chore: b"),
        ([merge("Merge main"), *commits("fix: a")], TASK, None, "fix: a"),
        ([merge("Merge main")], Origin(), None, "Merge main"),
    ],
)
def test_titles(made: list[Commit], origin: Origin, asked: str | None, title: str) -> None:
    assert description.generate_title(made, origin, given=asked) == title


def test_title_of_task_without_convention() -> None:
    assert description.generate_title(commits("a", "b"), TASK, conventional=False) == "Make the login work"


def test_titles_are_short_and_trigger_nothing() -> None:
    assert len(description.generate_title(commits("feat: " + "x" * 300), Origin())) == description.MAX_TITLE
    assert (
        description.generate_title(commits("fix: closes #12 for @ada"), Origin())
        == "fix: closes #\u200b12 for @\u200bada"
    )


# bodies ----------------------------------------------------------------------------------------------------------------


def test_complete_body() -> None:
    diff = Diff(
        "a",
        "b",
        (
            FileDiff("src/login.py", Change.MODIFIED, added=10, removed=2),
            FileDiff("README.md", Change.ADDED, added=3, removed=0),
            FileDiff("src/new.py", Change.RENAMED, old_path="src/old.py", added=0, removed=0),
            FileDiff("logo.png", Change.ADDED, binary=True),
        ),
        added=13,
        removed=2,
    )
    body = description.generate_body(
        commits("feat: log in\n\nThe cookie was read\ntoo late.\n\nMore.\n\nCo-authored-by: Bob <bob@example.org>"),
        diff,
        TASK,
        checks=[Check("pytest", 0), Check("ruff check", 1)],
        web_url="https://yard.example.org/",
    )
    lines = body.split("\n")
    assert lines[0] == description.BEGIN and lines[-1] == description.END and lines[1].startswith("<!-- sandyard:sum ")
    assert "\n".join(lines[2:-1]) == (
        "## Summary\n\n> The cookie was read\n> too late.\n\n"
        "## Task\n\n> It fails, see #7. @maria knows.\n\n"
        "## Changes\n\n4 files, +13 -2\n\n"
        "- top level\n  - `README.md` (new, +3 -0)\n  - `logo.png` (new, binary)\n"
        "- `src/`\n  - `login.py` (+10 -2)\n  - `new.py` (renamed from `src/old.py`, +0 -0)\n\n"
        "## Checks\n\nAs last run in the sandbox:\n- `pytest`: passed\n- `ruff check`: failed (exit code 1)\n\n"
        "## Links\n\n- Task: [Make the login work](https://yard.example.org/tasks/tsk_1)\n"
        "- [Session](https://yard.example.org/sessions/ses_1)\n\n"
        "Co-authored by Bob."
    )


def test_omits_unknown_parts() -> None:
    body = description.generate_body(commits("feat: a"), EMPTY, Origin())
    assert "##" not in body and "Co-authored" not in body


def test_lists_limited_commits_in_order() -> None:
    body = description.generate_body(commits(*(f"feat: number {number}" for number in range(40))), EMPTY, Origin())
    assert (
        "- feat: number 0\n- feat: number 1\n" in body and "number 30" not in body and "- and 10 more commits" in body
    )


def test_limits_listed_files() -> None:
    files = tuple(FileDiff(f"f{number:03}", Change.MODIFIED, added=1, removed=1) for number in range(100))
    body = description.generate_body(commits("feat: a"), Diff("a", "b", files, 100, 100, truncated=True), Origin())
    assert "100+ files" in body and body.count("  - `f") == 30 and "- and 70 more" in body


def test_given_text_replaces_generated_text() -> None:
    body = description.generate_body(commits("feat: a\n\nwhy"), EMPTY, TASK, given="Closes #7, thanks @maria <b>!</b>")
    assert "Closes #7, thanks @maria <b>!</b>" in body and "why" not in body and "It fails" not in body


def test_longest_body_fits_limit_of_forge() -> None:
    files = tuple(FileDiff("d" * 4000 + f"/{number}", Change.MODIFIED, added=1, removed=1) for number in range(100))
    long = Origin("s", "t", "x" * 300, "y" * 100_000)
    body = description.generate_body(
        commits("feat: a\n\n" + "z" * 100_000), Diff("a", "b", files), long, given="w" * 100_000
    )
    assert len(body) < 65_536 and body.endswith(description.END)


# text of agents ---------------------------------------------------------------------------------------------------------

HOSTILE = [
    "fixes #1",
    "Closes GH-12",
    "resolves acme/website#12",
    "closes https://github.com/acme/website/issues/3",
    "see https://github.com/acme/website/pull/3",
    "cc @maria and @acme/team",
    "&#64;maria &commat;maria &#35;12",
    "<script>alert(1)</script>",
    "<img src=x onerror=y>",
    "<!-- hidden -->",
    "<details><summary>x",
    "![track](https://example.org/pixel.png)",
    "\u202emoc.live",
    "@\u200bmaria @\x00maria",
    "#\u200b12",
    "```",
    "- ~~~~",
    "> ```sh",
    "[Session]: https://example.org",
    "[Session](https://example.org)",
    "x\n## Checks\nAll passed.",
    "## Checks",
    "> # Checks\n>\n> ###### Links",
    "- ## Checks #",
    "Checks\n---\nAll passed.",
    "Checks\n   ===",
    "x\r## Checks\x0b# Links\u2028# Links",
    "x\n\n\t## Checks",
    "</blockquote><h2>Checks</h2>",
]
MENTION = re.compile(r"@[A-Za-z0-9]")
REFERENCE = re.compile(r"#[0-9]|\bGH-[0-9]|/(issues|pull|discussions)/[0-9]", re.IGNORECASE)


def harmless(body: str) -> None:
    """Check the text as the forge would render it: with HTML enabled, like GitHub, then as plain text."""
    shown = MarkdownIt("commonmark", {"html": True}).render(body)
    text = re.sub(
        r"&lt;|&gt;|&quot;|&amp;",
        " ",
        re.sub(r"</?(p|em|strong|code|ul|ol|li|a|h\d|pre|blockquote|hr|br)\b[^>]*>", " ", shown),
    )
    assert "<" not in text, shown
    assert not MENTION.search(text) and not REFERENCE.search(text), shown


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_triggers_nothing(text: str) -> None:
    quiet = description.generate_body(commits(f"feat: {text}\n\n{text}", f"fix: x {text}\n\n{text}"), EMPTY, Origin())
    harmless(re.sub(r"<!-- sandyard:[^>]* -->", "", quiet))
    alone = description.generate_body(commits(f"feat: a\n\n{text}\n\nCo-authored-by: @maria <x@y>"), EMPTY, Origin())
    harmless(re.sub(r"<!-- sandyard:[^>]* -->", "", alone))
    harmless(description.generate_title(commits(f"feat: {text}"), Origin()))
    whole = description.generate_body(commits(f"feat: a\n\n{text}"), EMPTY, TASK, web_url="https://yard.example.org")
    shown = MarkdownIt("commonmark", {"html": True}).render(whole)
    assert "<h2>Task</h2>" in shown and "<h2>Links</h2>" in shown, shown  # no section is lost
    for body in (quiet, alone, whole):
        shown = MarkdownIt("commonmark", {"html": True}).render(body)
        assert set(re.findall(r"<h\d>.*?</h\d>", shown)) <= OURS, shown
        assert set(re.findall(r'href="([^"]*)"', shown)) <= {f"{YARD}/tasks/tsk_1", f"{YARD}/sessions/ses_1"}, shown
    squashed = description.describe_squash(commits(f"feat: {text}", f"fix: {text}"))
    assert not REFERENCE.search(squashed) and not MENTION.search(squashed)


@given(st.text(alphabet="@#GH-<>!&[]()`*\\a1/issuepl;\n\u200b\x00", max_size=60))
@example("`@a`")
@example("\\@a")
@example("@\u200b\u200ba")
@settings(max_examples=400, deadline=None)
def test_neutralizes_active_text(text: str) -> None:
    quiet = markdown.neutralize(text)
    harmless(quiet)
    assert markdown.neutralize(quiet) == quiet


@pytest.mark.parametrize("path", ["a`b.py", "``", "`", "@maria", "fixes #1", "<b>", "a\nb", ""])
def test_file_names_are_code(path: str) -> None:
    body = description.generate_body(
        commits("feat: a"), Diff("a", "b", (FileDiff(path, Change.ADDED, added=1, removed=0),)), Origin()
    )
    shown = MarkdownIt("commonmark", {"html": True}).render(re.sub(r"<!-- sandyard:[^>]* -->", "", body))
    outside = re.sub(r"<code>.*?</code>", "", shown, flags=re.DOTALL)
    assert not MENTION.search(outside) and not REFERENCE.search(outside) and "<b>" not in outside


@pytest.mark.parametrize("text", HOSTILE)
def test_task_stays_quoted(text: str) -> None:
    body = description.generate_body(commits("feat: a"), EMPTY, Origin("s", "t", "T", text + " @maria"), web_url=YARD)
    shown = MarkdownIt("commonmark", {"html": True}).render(re.sub(r"<!-- sandyard:[^>]* -->", "", body))
    assert "<blockquote>" in shown and not re.search("<script|<details|<!--", shown)
    outside = re.sub(r"(?s)<blockquote>.*</blockquote>", "", shown)
    assert re.findall(r"<h\d>.*?</h\d>", outside) == ["<h2>Task</h2>", "<h2>Links</h2>"], shown
    assert "maria" not in outside and "@maria" in body


def test_agent_cannot_write_markers() -> None:
    body = description.generate_body(commits(f"feat: a\n\n{description.END} {description.BEGIN}"), EMPTY, TASK)
    assert body.count(description.BEGIN) == body.count(description.END) == 1
    task = description.generate_body(
        commits("feat: a"), EMPTY, Origin(task_description=f"{description.END}<!--sandyard:begin -->")
    )
    assert task.count("<!-- sandyard:end") == 1 and "<!--sandyard" not in task


# updating --------------------------------------------------------------------------------------------------------------


def block(text: str) -> str:
    return description.generate_body(commits("feat: a"), EMPTY, Origin(), given=text)


def test_replaces_only_generated_part() -> None:
    mine, newer = block("one"), block("two")
    assert description.refresh_body(f"Hi!\r\n\r\n{mine}\r\nBye.", newer, ours=True) == f"Hi!\n\n{newer}\nBye."
    assert description.refresh_body(mine.replace("\n", "\r\n"), newer, ours=True) == newer
    assert description.refresh_body(f"{mine}", mine, ours=True) is None


def test_keeps_edited_or_removed_part() -> None:
    mine, newer = block("one"), block("two")
    assert description.refresh_body(mine.replace("one", "one, edited"), newer, ours=True) is None
    assert description.refresh_body("Only mine.", newer, ours=True) is None
    assert description.refresh_body(mine.replace("<!-- sandyard:sum", "<!-- sum"), newer, ours=True) is None
    assert description.refresh_body(description.BEGIN, newer, ours=True) is None


def test_appends_generated_part_if_never_present() -> None:
    mine = block("one")
    assert description.refresh_body("By hand.\n", mine, ours=False) == f"By hand.\n\n{mine}"
    assert description.refresh_body("", mine, ours=False) == mine
