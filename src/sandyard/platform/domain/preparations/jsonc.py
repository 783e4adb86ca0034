"""Parse JSON with comments and trailing commas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sandyard.kit import bounded_json

MAX_BYTES, _MAX_VALUES = 1 << 20, 20_000
# A string is matched as a whole, so that nothing in it is taken for a comment or a comma. An unterminated one too, so that it is scanned
# only once.
_STRING = r'"(?:[^"\\\n]|\\.)*+"?'
_COMMENT_START = re.compile(rf"{_STRING}|//|/\*")
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*+[}}\]])")


def parse(text: str) -> Any:
    """Parse the text. Raises ValueError with a readable message. Runs in linear time."""
    plain = "".join(_strip_comments(text.removeprefix("\N{BYTE ORDER MARK}")))
    plain = _TRAILING_COMMA.sub(lambda match: "" if match[0] == "," else match[0], plain)
    return bounded_json.parse(plain, largest=MAX_BYTES, values=_MAX_VALUES)


def _strip_comments(text: str) -> Iterator[str]:
    position = 0
    while (match := _COMMENT_START.search(text, position)) is not None:
        if match[0][0] == '"':
            yield text[position : match.end()]
            position = match.end()
            continue
        yield text[position : match.start()]
        terminator = "\n" if match[0] == "//" else "*/"
        end = text.find(terminator, match.end())
        position = len(text) if end < 0 else end + (0 if terminator == "\n" else len(terminator))
    yield text[position:]
