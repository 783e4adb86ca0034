"""Parse untrusted JSON within limits on its size and its number of values.

The parser holds the interpreter lock until it is done, on the event loop or in a thread, so everything else waits. The cost depends on the
number of values much more than on the number of bytes, so both are limited. A text of many megabytes with few values, such as an image
in a request to a model, is cheap.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

PIECE_BYTES = 256 << 10
"""Bytes examined at a time. Other threads can run in between."""
_VALUE_MARKS = (b",", b"[", b"{")
"""Each value except the outermost is preceded by one of these. A key in an object and its value count as one value."""
_NOT_UTF8 = (b"\0", b"\xfe", b"\xff")
"""Every JSON text in UTF-16 or UTF-32 contains at least one of these bytes. No UTF-8 text contains any."""


class TooManyValuesError(ValueError):
    """The JSON has more values than are allowed."""


class ValueCounter:
    """Count the values of a JSON text that arrives in pieces. The contents of strings are ignored, because documents and source code
    contain many commas and brackets."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_string = False
        self._backslash = b""
        self._quotes = 0
        self.values = 0
        """How many values were counted so far, approximately. Meaningless for text that is not JSON."""

    def feed(self, data: bytes) -> None:
        """Count the values in the next piece. Raises TooManyValuesError once the limit is exceeded and ValueError for text that is not
        UTF-8."""
        for start in range(0, len(data), PIECE_BYTES):
            self._count(data[start : start + PIECE_BYTES])

    def _count(self, piece: bytes) -> None:
        if any(sign in piece for sign in _NOT_UTF8):
            raise ValueError("the JSON is not UTF-8")
        piece = (self._backslash + piece).replace(b"\\\\", b"")
        self._backslash = b"\\" if piece.endswith(b"\\") else b""
        piece = piece.removesuffix(b"\\").replace(b'\\"', b"")
        quotes = piece.count(b'"')
        self._quotes += quotes
        if self._quotes <= 4 * (self._limit + 1):  # each value has at most two strings: its key and itself
            self.values += _count_marks(b"".join(piece.split(b'"')[self._in_string :: 2]))
            self._in_string ^= quotes % 2 == 1
            if self.values <= self._limit:
                return
        raise TooManyValuesError(f"the JSON has more than {self._limit:,} values")


def count_values(data: bytes, limit: int) -> int:
    """Return roughly how many values a JSON text has. Raises TooManyValuesError above `limit` and ValueError if the text is not UTF-8."""
    marks = 0
    for start in range(0, len(data), PIECE_BYTES):
        marks += _count_marks(data[start : start + PIECE_BYTES])
        if marks > limit:  # perhaps most of them are in strings
            counter = ValueCounter(limit)
            counter.feed(data)
            return counter.values
    return marks


def is_deeper_than(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than this. Never recurses, unlike code that shows values: pydantic writes at most
    255 levels."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            item
            for container in level
            if isinstance(container, (dict, list))
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return False
    return True


def _count_marks(text: bytes) -> int:
    return sum(map(text.count, _VALUE_MARKS))


def parse(
    data: bytes | str,
    *,
    largest: int,
    values: int,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the JSON value in `data`, which may have up to `largest` bytes and `values` values. Raises ValueError with a readable message
    if it is larger, is not JSON, is not UTF-8 or is nested too deeply."""
    if len(data) > largest:
        raise ValueError(f"the JSON is larger than {largest:,} bytes")
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    if len(data) > largest:
        raise ValueError(f"the JSON is larger than {largest:,} bytes")
    count_values(data, values)
    try:
        return json.loads(data, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
