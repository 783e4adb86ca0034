"""Parse JSON with comments and trailing commas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sandyard.kit import bounded_json

LARGEST, _VALUES = 1 << 20, 20_000
# A string is matched as a whole, so that nothing in it is taken for a comment or a comma. An unterminated one too, so that it is scanned
# only once.
_STRING = r'"(?:[^"\\\n]|\\.)*+"?'
_BEGIN = re.compile(rf"{_STRING}|//|/\*")
_COMMA = re.compile(rf"{_STRING}|,(?=\s*+[}}\]])")


def parse(text: str) -> Any:
    """Parse the text. Raises ValueError with a readable message. Runs in linear time."""
    plain = "".join(_without_comments(text.removeprefix("\N{BYTE ORDER MARK}")))
    plain = _COMMA.sub(lambda found: "" if found[0] == "," else found[0], plain)
    return bounded_json.parse(plain, largest=LARGEST, values=_VALUES)


def _without_comments(text: str) -> Iterator[str]:
    at = 0
    while (found := _BEGIN.search(text, at)) is not None:
        if found[0][0] == '"':
            yield text[at : found.end()]
            at = found.end()
            continue
        yield text[at : found.start()]
        ends = "\n" if found[0] == "//" else "*/"
        over = text.find(ends, found.end())
        at = len(text) if over < 0 else over + (0 if ends == "\n" else len(ends))
    yield text[at:]
