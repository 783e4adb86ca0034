"""Regular expressions written by users, run by RE2.

RE2 never backtracks, but its time grows with the length of the text times the size of the compiled pattern. This product is limited. Do not
call the functions on the event loop, but with `run_in_thread`. Callers must not allow what could not be checked, or a command could be
padded to get past a pattern.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar, cast

import re2

from sandyard.kit.errors import InvalidInputError

T = TypeVar("T")
MAX_TOTAL_LENGTH = 10_000
"""Maximum characters of all patterns of a project. Compiling them takes less than a second in the worst case."""
MAX_PROGRAM_SIZE = 2000
"""Maximum instructions of one compiled pattern. Typical ones have 10 to 200."""
MAX_WORK = 4_000_000
"""Maximum instructions times bytes of text in one search: about 50 ms in the worst case. A pattern of 40 instructions
can search 100 kB."""
MAX_SEARCH_S = 0.15
"""CPU time after which no further search is started. 100 patterns like `\\bsudo\\b` need 60 ms for 256 KiB of text."""
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = 256 << 10
_TOO_COMPLEX = "it is too complex. Simplify it: use fewer or smaller repetitions and fewer Unicode classes"
_RE2_TOO_LARGE = "pattern too large"  # how the message of RE2 begins
_TOO_MANY = f"the project's patterns have more than {MAX_TOTAL_LENGTH:,} characters in total. Remove or shorten some"
_TOO_LONG = "a text of more than {:,} bytes takes too long with it. Shorten the text or simplify the pattern"
_TOO_SLOW = "the project's patterns take too long with this text. Shorten the text or simplify the patterns"
_threads = ThreadPoolExecutor(2, "patterns")


class PatternError(ValueError):
    """The pattern is not a valid regular expression or is too complex."""


class InvalidPatternError(InvalidInputError):
    """A pattern of the project cannot be used."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self._field = field

    @property
    def extra(self) -> Mapping[str, object]:
        return {"errors": [{"field": self._field, "message": self.message}]}


class Pattern(Protocol):
    @property
    def programsize(self) -> int: ...

    def search(self, text: bytes) -> object | None: ...


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A pattern that was not searched completely, and why."""

    pattern: str
    reason: str

    def __str__(self) -> str:
        """Return the end of a sentence, for example after "The command was denied: "."""
        return f"it could not be checked against {self.pattern[:60]!r}: {self.reason}."


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    `match`: the first matching pattern. `unchecked`: the first one that may have been missed; None means the result is complete.
    """

    match: str | None = None
    unchecked: Unchecked | None = None


async def run_in_thread(function: Callable[..., T], *args: object) -> T:
    """Run a function that compiles or searches patterns in a separate thread pool. RE2 releases the GIL while it searches."""
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *args)


def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern. Raises PatternError, which says what is wrong."""
    compiled = try_compile(pattern)
    if isinstance(compiled, str):
        raise PatternError(compiled)
    return compiled


@lru_cache(maxsize=512)
def try_compile(pattern: str) -> Pattern | str:
    """Return the compiled pattern, or what is wrong with it. Does not raise, because exceptions are not cached."""
    try:
        compiled = cast("Pattern", re2.compile(pattern, _OPTIONS))
    except re2.error as error:
        message = error.args[0] if error.args else "it cannot be parsed"
        message = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
        return _TOO_COMPLEX if message.startswith(_RE2_TOO_LARGE) else message
    return compiled if compiled.programsize <= MAX_PROGRAM_SIZE else _TOO_COMPLEX


def check_pattern(pattern: str) -> str:
    """Check one pattern. Raises PatternError, which names it, if it cannot be used."""
    try:
        compile_pattern(pattern)
    except PatternError as error:
        problem = "cannot be used" if str(error) == _TOO_COMPLEX else "is not a valid regular expression"
        raise PatternError(f"The pattern {pattern[:60]!r} {problem}: {error}.") from None
    return pattern


def check_patterns(patterns: Mapping[str, str]) -> None:
    """Check all patterns of a project, by field, before they are stored. Raises InvalidPatternError for the first problem."""
    total = sum(map(len, patterns.values()))
    if total > MAX_TOTAL_LENGTH:
        raise InvalidPatternError(
            f"The patterns of the project have {total:,} characters in total; the limit is {MAX_TOTAL_LENGTH:,}. Remove or shorten some.",
            list(patterns)[-1],
        )
    for field, pattern in patterns.items():
        try:
            check_pattern(pattern)
        except PatternError as error:
            raise InvalidPatternError(str(error), field) from None


def search_patterns(patterns: Sequence[str], texts: Sequence[str]) -> SearchResult:
    """Search the texts for the patterns and stop at the first match.

    The result is `unchecked` if the search would take too long, or if a pattern stored under older limits can no longer be used.
    """
    encoded = [text.encode(errors="replace") for text in texts]
    unchecked: Unchecked | None = None
    remaining, deadline = MAX_TOTAL_LENGTH, time.thread_time() + MAX_SEARCH_S
    for pattern in patterns:
        remaining -= len(pattern)
        started = time.thread_time()
        regex = try_compile(pattern) if remaining >= 0 else _TOO_MANY
        if isinstance(regex, str):
            unchecked = unchecked or Unchecked(pattern, regex)
            continue
        deadline += time.thread_time() - started  # compiling happens once and has its own limits
        max_bytes = MAX_WORK // regex.programsize
        for text in encoded:
            if time.thread_time() > deadline:
                return SearchResult(None, unchecked or Unchecked(pattern, _TOO_SLOW))
            if len(text) > max_bytes:
                unchecked = unchecked or Unchecked(pattern, _TOO_LONG.format(max_bytes))
            elif regex.search(text):
                return SearchResult(pattern)
    return SearchResult(None, unchecked)
