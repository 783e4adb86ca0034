"""Limit the size of an entry's details, which can contain what a client sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

MAX_TEXT, MAX_VALUES, MAX_DEPTH = 1_000, 50, 4
"""Maximum characters of each text, values in each list or object, and levels of them."""
MAX_DETAIL = 8_000
"""Maximum characters of all details of an entry, as JSON."""
OMITTED = "…"
"""Stands for what was too large, and ends texts that were cut off."""


def limit_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details within the limits. What is too large is cut off or omitted, visibly."""
    limited: dict[str, Any] = {}
    left = MAX_DETAIL
    for name, value in islice(detail.items(), MAX_VALUES):
        key = _limit_text(name)
        item = next(
            (item for item in (_limit_value(value, MAX_DEPTH), OMITTED) if len(json.dumps({key: item})) <= left), None
        )
        if item is None:
            break
        limited[key] = item
        left -= len(json.dumps({key: item}))
    return limited


def _limit_value(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _limit_text(value)
    if isinstance(value, Mapping):
        if depth == 0:
            return OMITTED
        return {_limit_text(str(key)): _limit_value(item, depth - 1) for key, item in islice(value.items(), MAX_VALUES)}
    if isinstance(value, list | tuple):
        if depth == 0:
            return OMITTED
        items = [_limit_value(item, depth - 1) for item in value[:MAX_VALUES]]
        return items if len(value) <= MAX_VALUES else [*items, OMITTED]
    return value


def _limit_text(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + OMITTED
