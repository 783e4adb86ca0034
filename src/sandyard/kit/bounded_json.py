"""JSON that somebody else wrote, parsed only if it is small enough.

The parser holds the interpreter's lock until it is done, on the event loop or in a thread: everybody waits. What it costs depends on the
number of values much more than on the number of bytes, so both are bounded. A text of many megabytes with few values, such as an image
in a request to a model, is cheap.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_PIECE = 256 << 10
"""Bytes that are looked at in one go: in between, other threads get their turn."""
_SIGNS = (b",", b"[", b"{")
"""One of them precedes every value except the outermost. A name in an object and its value count as one."""
_NOT_UTF8 = (b"\0", b"\xfe", b"\xff")
"""At least one of them is in every JSON text of UTF-16 or UTF-32, and none of them in one of UTF-8."""


class TooManyValuesError(ValueError):
    """The JSON has more values than are allowed."""


class ValueCounter:
    """Counts the values of a JSON text whose bytes come piece by piece. What is in strings does not count: there may be as many commas and
    brackets in them as in any document or source code."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_string = False
        self._backslash = b""
        self._quotes = 0
        self.values = 0
        """How many were counted so far, approximately. Meaningless for text that is not JSON."""

    def feed(self, data: bytes) -> None:
        """TooManyValuesError as soon as there are more than the limit, ValueError for a text that is not UTF-8."""
        for start in range(0, len(data), _PIECE):
            self._count(data[start : start + _PIECE])

    def _count(self, piece: bytes) -> None:
        if any(sign in piece for sign in _NOT_UTF8):
            raise ValueError("the JSON is not UTF-8")
        piece = (self._backslash + piece).replace(b"\\\\", b"")
        self._backslash = b"\\" if piece.endswith(b"\\") else b""
        piece = piece.removesuffix(b"\\").replace(b'\\"', b"")
        quotes = piece.count(b'"')
        self._quotes += quotes
        if self._quotes <= 4 * (self._limit + 1):  # at most two strings for each value: its name and itself
            self.values += _signs(b"".join(piece.split(b'"')[self._in_string :: 2]))
            self._in_string ^= quotes % 2 == 1
            if self.values <= self._limit:
                return
        raise TooManyValuesError(f"the JSON has more than {self._limit:,} values")


def count_values(data: bytes, limit: int) -> int:
    """About how many values a JSON text has. TooManyValuesError if more than `limit`, ValueError if it is not UTF-8."""
    signs = 0
    for start in range(0, len(data), _PIECE):
        signs += _signs(data[start : start + _PIECE])
        if signs > limit:  # perhaps most of them are in strings
            counter = ValueCounter(limit)
            counter.feed(data)
            return counter.values
    return signs


def _signs(text: bytes) -> int:
    return sum(map(text.count, _SIGNS))


def parse(
    data: bytes | str,
    *,
    largest: int,
    values: int,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The JSON value in `data`, which may have `largest` bytes and `values` values. ValueError, in words, for everything else, also for
    what is not JSON, is not UTF-8 or is nested too deeply."""
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
