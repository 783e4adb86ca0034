from __future__ import annotations

import subprocess

import pytest

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.repositories.ref_names import check_name, find_name_error, find_revision_error, slugify

VALID = [
    *(
        "main",
        "task-42",
        "feature/login",
        "a/b/c",
        "release-1.2",
        "größe",
        "dependabot/npm_and_yarn/x-1.0",
        "@x",
        "x@y",
    ),
    *("head", "a.lock.b", "x" * 240, "v1.0+build", "#12", "{x}", "a'b", 'a"b', "$(id)", "a;b", "deadbeef", "f" * 39),
]
INVALID = [
    *("", "-x", "--upload-pack=x", "a..b", "a@{1}", "@", "HEAD", "a.lock", "a.lock/b", ".a", "a/.b", "a.", "/a", "a/"),
    *(
        "a//b",
        "a b",
        "a\tb",
        "a\nb",
        "a\x7f",
        "a\0b",
        "a~1",
        "a^",
        "a:b",
        "a?",
        "a*",
        "a[b",
        "a\\b",
        "f" * 40,
        "0" * 64,
    ),
    *("x" * 251, "x" * 245, "ü" * 125, "a\ud800"),
]


@pytest.mark.parametrize("name", VALID)
def test_valid_names_are_accepted(name: str) -> None:
    assert find_name_error(name) is None and check_name(name) == name
    subprocess.run(["git", "check-ref-format", "--branch", name], check=True, capture_output=True)
    subprocess.run(["git", "check-ref-format", f"refs/tags/{name}"], check=True, capture_output=True)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidInputError, match="The name of a tag "):
        check_name(name, "tag")


def test_git_accepts_every_name_that_is_accepted() -> None:
    """Every character and every short combination of the special ones is checked with git itself."""
    odd = ["a", ".", "/", "-", "@", "{", "lock", "~", "..", "\\", " ", "\x01", "\x7f", "[", ":", "ü", "HEAD"]
    names = [chr(code) for code in range(1, 128)] + [x + y + z for x in odd for y in odd for z in odd]
    accepted = [name for name in names if find_name_error(name) is None]
    assert len(accepted) > 200
    refused = [name for name in accepted if not _git_accepts(name)]
    assert refused == []


def _git_accepts(name: str) -> bool:
    return (
        subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, check=False).returncode == 0
    )


def test_a_revision_may_be_a_commit_id() -> None:
    assert (
        find_revision_error("f" * 40) is None
        and find_revision_error("deadbeef") is None
        and find_revision_error("main") is None
    )
    for name in ("HEAD~1", "main..x", "-x", "", "F" * 40 + "^", "HEAD"):
        assert find_revision_error(name) is not None, name


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Fix login", "fix-login"),
        ("  fix(login): Don\u2019t forget the *session*!", "fix-login-dont-forget-the-session"),
        ("Größe der Straße ändern", "grosse-der-strasse-andern"),
        ("Исправить вход", "исправить-вход"),
        ("修复登录", "修复登录"),
        ("लॉगिन ठीक करें", "लॉगिन-ठीक-करें"),
        ("../../etc/passwd .lock @{1}", "etc-passwd-lock-1"),
        ("🙂 --- 🙂", ""),
        ("", ""),
        ("ﬁx №5", "fix-no5"),
        ("a" * 100, "a" * 40),
        ("one two three four five six seven eight nine ten eleven", "one-two-three-four-five-six-seven-eight"),
        ("字" * 100, "字" * 40),
        ("𠀀" * 100, "𠀀" * 30),
    ],
)
def test_titles_become_slugs(title: str, words: str) -> None:
    assert slugify(title) == words
    assert find_name_error(f"task/{slugify(title)}-1a2b") is None
    assert _git_accepts(f"task/{slugify(title)}-1a2b")
