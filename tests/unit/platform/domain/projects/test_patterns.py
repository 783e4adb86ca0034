"""Regular expressions that people write: bounded, and nothing gets past them because it was not checked."""

from __future__ import annotations

import threading

import pytest

from sandyard.platform.domain.projects import patterns
from sandyard.platform.domain.projects.patterns import (
    MAX_WORK,
    PatternError,
    check_pattern,
    compiled,
    run_in_thread,
    search,
)

COMPLEX = "[ab]*a" + "[ab]{1000}" * 15 + "c"
"""17 s for 100 kB of text, when its size was not bounded."""


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
def test_common_patterns_pass(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", [COMPLEX, r"(?i)\pL{40}1", "(?:a?){1000}(?:b?){1000}", ".{1000}"])
def test_a_pattern_that_compiles_to_too_much_is_named_and_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match=r"cannot be used: it is too complex\. Simplify it") as error:
        check_pattern(pattern)
    assert repr(pattern[:60]) in str(error.value)


def test_the_first_pattern_that_is_found_is_named() -> None:
    assert search(["x", "b+", "a"], ["ccc", "abb"]) == patterns.SearchResult("b+")
    assert search(["x"], ["abc"]) == patterns.SearchResult()


def test_a_pattern_that_cannot_be_used_any_more_hides_no_other() -> None:
    for broken in (COMPLEX, "("):
        assert search([broken, "sudo"], ["sudo ls"]).match == "sudo"
        found = search([broken, "sudo"], ["ls"])
        assert found.match is None and found.unchecked is not None and found.unchecked.pattern == broken


def test_a_text_that_is_too_long_for_a_pattern_is_not_passed_over() -> None:
    longest = MAX_WORK // compiled("sudo").programsize
    assert search(["sudo"], ["x" * longest]).unchecked is None
    for text in ("x" * (longest + 1), "sudo" + "x" * longest, "é" * (longest // 2 + 1)):
        found = search(["sudo"], [text])
        assert found.unchecked is not None and f"more than {longest:,} bytes" in str(found.unchecked)
    assert search(["sudo"], ["x" * (longest + 1), "sudo"]).match == "sudo"


def test_the_more_a_pattern_compiles_to_the_shorter_are_its_texts() -> None:
    assert search(["[ab]*a[ab]{1000}c"], ["ab" * 3000]).unchecked is not None
    assert search(["[ab]*a[ab]{10}c"], ["ab" * 3000]).unchecked is None


def test_the_time_for_all_patterns_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_SEARCH_S", -1.0)
    found = search(["a", "b"], ["ab"])
    assert found.match is None and "take too long" in str(found.unchecked)


def test_the_size_of_all_patterns_together_is_bounded_also_when_they_are_used() -> None:
    stored = [f"{at:04}" + "x" * 296 for at in range(34)]
    found = search(stored, [stored[-1]])
    assert found.match is None and found.unchecked is not None and found.unchecked.pattern == stored[-1]
    assert search(stored, [stored[0]]).match == stored[0]


def test_what_is_no_text_is_searched() -> None:
    assert search(["sudo"], ["\ud800 sudo"]).match == "sudo"


async def test_patterns_have_threads_of_their_own() -> None:
    assert (await run_in_thread(threading.current_thread)).name.startswith("patterns")
