"""Conventional commits: valid messages, suggestions for invalid ones, and trailers."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.git.errors import CommitMessageError
from sandyard.platform.domain.repositories.model import Commit, Identity

AGENT = Identity("Agent", "agent@example.org")
NOW = datetime(2026, 1, 1, tzinfo=UTC)

texts = st.text(max_size=300) | st.text(alphabet="feat(x)!: .-[]\n\t\rAb#\x00\x0b\u2028é", max_size=80)
near_misses = st.builds(
    lambda kind, scope, mark, gap, rest: f"{kind}{scope}{mark}{gap}{rest}",
    st.sampled_from([*commit_messages.TYPES, "Feat", "FIX", "bugfix", "feature", "nonsense", "[fix]", ""]),
    st.sampled_from(["", "()", "(api)", "( api )", "(a(b))", "(" + "x" * 200 + ")"]),
    st.sampled_from(["", "!", "!!"]),
    st.sampled_from([":", ": ", " : ", " - ", " ", "", ":  "]),
    texts,
)


def commit(subject: str, *, parents: int = 1, number: int = 1) -> Commit:
    return Commit(f"{number:040x}", ("p",) * parents, AGENT, AGENT, NOW, NOW, subject, "")


@pytest.mark.parametrize(
    "message",
    [
        "feat: x",
        "fix(api): answer 404",
        "refactor(core)!: split the module\n\nBecause it held two things.\n",
        "\n\nchore: after blank lines",
        "docs: " + "x" * 100,
        "test: ünïcode ✓",
        "ci: trailing blanks   \n",
        "build: windows\r\n\r\nlines\r\n",
        "perf: a tab\tis no harm",
    ],
)
def test_valid_messages_pass(message: str) -> None:
    commit_messages.check_message(message)


@pytest.mark.parametrize(
    ("message", "suggestion"),
    [
        ("Add a login page", "feat: add a login page"),
        ("Fixed the crash on start.", "fix: fixed the crash on start"),
        ("FEAT: Dark mode", "feat: dark mode"),
        ("feature(ui): dark mode", "feat(ui): dark mode"),
        ("fix:crash", "fix: crash"),
        ("fix : crash", "fix: crash"),
        ("[bugfix] API answers 500", "fix: API answers 500"),
        ("feat!:drop Python 3.10", "feat!: drop Python 3.10"),
        ("Rename Foo to Bar", "refactor: rename Foo to Bar"),
        ("Add tests for the parser", "test: add tests for the parser"),
        ("Update README", "docs: update README"),
        ("Bump httpx to 0.28", "build: bump httpx to 0.28"),
        ("Optimise the query", "perf: optimise the query"),
        ("something", "chore: something"),
        ("nonsense: something", "chore: nonsense: something"),
        ('Revert "feat: x"', 'revert: revert "feat: x"'),
        ("", "chore: update"),
        ("fix:", "fix: update"),
        ("feat(api):", "feat(api): update"),
        ("feat: two\nlines\n\nbody", "feat: two lines\n\nbody"),
    ],
)
def test_invalid_messages_get_a_suggestion(message: str, suggestion: str) -> None:
    if commit_messages.CONVENTIONAL.fullmatch(commit_messages.get_subject(message)):
        # git joins the lines of the first paragraph
        assert commit_messages.get_subject(message) == commit_messages.get_subject(suggestion)
        commit_messages.check_message(message)
        return
    with pytest.raises(CommitMessageError) as refused:
        commit_messages.check_message(message)
    assert (refused.value.suggestion, refused.value.status) == (suggestion, 400)
    assert suggestion.split("\n", maxsplit=1)[0] in refused.value.message
    commit_messages.check_message(suggestion)


def test_a_long_subject_is_cut_at_a_word_and_kept_in_the_body() -> None:
    long = "feat: " + " ".join(f"word{number}" for number in range(30))
    with pytest.raises(CommitMessageError, match="more than 100 characters") as refused:
        commit_messages.check_message(long + "\n\nThe body.")
    suggestion = refused.value.suggestion
    assert suggestion is not None
    subject, whole, body = suggestion.split("\n\n")
    assert long.startswith(subject + " ") and len(subject) <= 106
    assert (whole, body) == (long, "The body.")


def test_unprintable_characters_are_rejected_and_removed_in_the_suggestion() -> None:
    with pytest.raises(CommitMessageError, match="unprintable") as refused:
        commit_messages.check_message("feat: a\x00b\n\nbody\x1b[31m")
    assert refused.value.suggestion == "feat: a b\n\nbody[31m"


@given(texts | near_misses)
@example("feat: \u2028")
@example("fix(" + "\ud800" + "): x")
@example("feat:\x0b")
@settings(max_examples=200, deadline=None)
def test_every_suggestion_passes(text: str) -> None:
    suggestion = commit_messages.suggest_subject(text)
    assert commit_messages.CONVENTIONAL.fullmatch(suggestion)
    commit_messages.check_message(suggestion)
    assert commit_messages.suggest_subject(suggestion) == suggestion
    try:
        commit_messages.check_message(text)
    except CommitMessageError as error:
        assert error.suggestion is not None
        commit_messages.check_message(error.suggestion)
        error.message.encode()


@given(st.lists(st.text(alphabet="ab:# \t\r\n", max_size=30), max_size=4).map("\n".join))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_subject_is_the_one_git_shows(tmp_path: Path, text: str) -> None:
    message = text + "x"  # git creates no commit without a message
    if not (tmp_path / ".git").exists():
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(
        ["git", "-C", tmp_path, *identity, "commit", "-q", "--allow-empty", "-F", "-"],
        input=message.encode(),
        check=True,
    )
    shown = subprocess.run(["git", "-C", tmp_path, "log", "-1", "--format=%s"], check=True, capture_output=True)
    assert commit_messages.get_subject(message) == shown.stdout.decode().rstrip("\n")


def test_invalid_pushed_commits_are_listed_with_suggestions() -> None:
    good, merge = commit("feat: x"), commit("Merge branch 'main'", parents=2)
    commit_messages.check_commits([good, merge])
    commit_messages.check_commits([])
    with pytest.raises(CommitMessageError) as refused:
        commit_messages.check_commits([good, commit("Add a", number=7), merge, commit("Fix b", number=8)])
    message = refused.value.message
    assert message.startswith("2 commits do not follow") and "nothing was pushed" in message
    assert f"{commit('', number=7).id[:10]} “Add a” → feat: add a" in message and "“Fix b” → fix: fix b" in message
    assert refused.value.suggestion == "feat: add a"


def test_a_long_list_of_invalid_commits_is_shortened() -> None:
    with pytest.raises(CommitMessageError, match="and 90 more") as refused:
        commit_messages.check_commits([commit("x" * 5000, number=number) for number in range(100)])
    assert len(refused.value.message) < 4000


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("Use British spelling.\n\nAnd `colour`, not `color`.", "Use British spelling."),
        ("\n\n# Please:\n\n- **Rename** `a` to `b`\n- and c", "Rename a to b"),
        ("@sandyard rename it", "rename it"),
        (
            "A comment on your changes:\n\nsrc/my app.py:12-14 (as it was before your change)\n```py\nx = 1\n```\nKeep x.",
            "Keep x.",
        ),
        ("```\nTraceback", ""),
        ("  \n:-)\n", ""),
        ("`" * 50_000 + "\n" * 50_000, ""),
    ],
)
def test_feedback_is_summarized_by_its_first_line(text: str, summary: str) -> None:
    assert commit_messages.summarize(text) == summary


def test_trailers_are_added_once() -> None:
    once = commit_messages.add_trailers("feat: x\n", [AGENT, AGENT])
    assert once == "feat: x\n\nCo-authored-by: Agent <agent@example.org>"
    assert commit_messages.add_trailers(once, [Identity("agent", "AGENT@example.org")]) == once
    twice = commit_messages.add_trailers(once, [Identity("B\n<c", "b>@example.org\n")])
    assert twice == once + "\nCo-authored-by: B c <b@example.org>"
    assert commit_messages.parse_co_authors(twice) == [AGENT, Identity("B c", "b@example.org")]
    assert commit_messages.add_trailers("feat: x\n\nbody", []) == "feat: x\n\nbody"


def test_hostile_trailers_are_parsed_quickly() -> None:
    """A backtracking regular expression would take hours."""
    lines = [
        "Co-authored-by:" + " " * 20_000 + "x",
        "Co-authored-by: A <a@b>c>",
        "Co-authored-by: <a@b>",
        "Co-authored-by: A < >",
    ]
    assert commit_messages.parse_co_authors("feat: x\n\n" + "\n".join(lines)) == []


def test_an_address_elsewhere_in_the_message_is_not_a_trailer() -> None:
    message = commit_messages.add_trailers("feat: x\n\nAsked for by <agent@example.org>.", [AGENT])
    assert message.endswith(".\n\nCo-authored-by: Agent <agent@example.org>")
