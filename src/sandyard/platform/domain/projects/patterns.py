"""Regular expressions that people may write: by RE2, whose time grows with the text and never explodes."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


class PatternError(ValueError):
    """It is not a regular expression."""


class Pattern(Protocol):
    def search(self, text: str) -> object | None: ...


@lru_cache(maxsize=512)
def compiled(pattern: str) -> Pattern:
    """PatternError says what is wrong with it."""
    try:
        return cast("Pattern", re2.compile(pattern, _OPTIONS))
    except re2.error as error:
        words = error.args[0] if error.args else "it cannot be read"
        raise PatternError(words.decode() if isinstance(words, bytes) else str(words)) from None
