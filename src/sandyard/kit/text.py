"""Text as it can be kept: databases and JSON refuse NUL and halves of characters."""

from __future__ import annotations

import re
from typing import Any

_REFUSED = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Each letter that cannot be kept becomes a replacement character."""
    return _REFUSED.sub("\N{REPLACEMENT CHARACTER}", text)


def storable_json(value: Any) -> Any:
    """The same for every text in a value of lists and dictionaries."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable_json(key): storable_json(one) for key, one in value.items()}
    return [storable_json(one) for one in value] if isinstance(value, (list, tuple)) else value
