"""Regular expressions written by users: bounded, and text that cannot be checked never passes as unmatched."""

from __future__ import annotations

import threading

import pytest

from sandyard.platform.domain.projects import patterns
from sandyard.platform.domain.projects.patterns import (
    MAX_WORK,
    PatternError,
    check_pattern,
    compile_pattern,
    run_in_thread,
    search_patterns,
)
from tests.unit.platform.domain.projects.pattern_examples import COMPLEX


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bsudo\b",
        r"^git (push|pull)\b",
        r"rm\s+-rf\s+/",
        r"^npm( ci)?$",
        "[a-z]+.*x?",
        "(ab)+",
        r"^\p{Lu}\p{Ll}*$",
        r"\pL+",
        ".{1,100}foo",
        r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
        r"(?i)\b(curl|wget)\b.*\|\s*(ba)?sh",
    ],
)
def test_accepts_common_patterns(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", [COMPLEX, r"(?i)\pL{40}1", "(?:a?){1000}(?:b?){1000}", ".{1000}"])
def test_rejects_complex_pattern(pattern: str) -> None:
    with pytest.raises(PatternError, match=r"cannot be used: it is too complex\. Simplify it") as error:
        check_pattern(pattern)
    assert repr(pattern[:60]) in str(error.value)


def test_returns_first_match() -> None:
    assert search_patterns(["x", "b+", "a"], ["ccc", "abb"]) == patterns.SearchResult("b+")
    assert search_patterns(["x"], ["abc"]) == patterns.SearchResult()


def test_invalid_pattern_does_not_hide_others() -> None:
    for broken in (COMPLEX, "("):
        assert search_patterns([broken, "sudo"], ["sudo ls"]).match == "sudo"
        found = search_patterns([broken, "sudo"], ["ls"])
        assert found.match is None and found.unchecked is not None and found.unchecked.pattern == broken


def test_reports_text_too_long_for_pattern() -> None:
    longest = MAX_WORK // compile_pattern("sudo").programsize
    assert search_patterns(["sudo"], ["x" * longest]).unchecked is None
    for text in ("x" * (longest + 1), "sudo" + "x" * longest, "é" * (longest // 2 + 1)):
        found = search_patterns(["sudo"], [text])
        assert found.unchecked is not None and f"more than {longest:,} bytes" in str(found.unchecked)
    assert search_patterns(["sudo"], ["x" * (longest + 1), "sudo"]).match == "sudo"


def test_complex_pattern_allows_shorter_text() -> None:
    assert search_patterns(["[ab]*a[ab]{1000}c"], ["ab" * 3000]).unchecked is not None
    assert search_patterns(["[ab]*a[ab]{10}c"], ["ab" * 3000]).unchecked is None


def test_limits_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_SEARCH_S", -1.0)
    found = search_patterns(["a", "b"], ["ab"])
    assert found.match is None and "take too long" in str(found.unchecked)


def test_limits_total_size_in_search() -> None:
    stored = [f"{at:04}" + "x" * 296 for at in range(34)]
    found = search_patterns(stored, [stored[-1]])
    assert found.match is None and found.unchecked is not None and found.unchecked.pattern == stored[-1]
    assert search_patterns(stored, [stored[0]]).match == stored[0]


def test_searches_invalid_unicode() -> None:
    assert search_patterns(["sudo"], ["\ud800 sudo"]).match == "sudo"


async def test_runs_in_own_threads() -> None:
    assert (await run_in_thread(threading.current_thread)).name.startswith("patterns")
