"""Make text make_storable, because databases and JSON reject NUL and unpaired surrogates, and quote it in messages."""

from __future__ import annotations

import re
from typing import Any

_REFUSED = re.compile("[\x00\ud800-\udfff]")


def make_storable(text: str) -> str:
    """Return the text with each character that cannot be stored replaced by U+FFFD."""
    return _REFUSED.sub("\N{REPLACEMENT CHARACTER}", text)


def make_json_storable(value: Any) -> Any:
    """Apply `make_storable` to every string in a value of lists and dictionaries."""
    if isinstance(value, str):
        return make_storable(value)
    if isinstance(value, dict):
        return {make_json_storable(key): make_json_storable(item) for key, item in value.items()}
    return [make_json_storable(item) for item in value] if isinstance(value, (list, tuple)) else value


def append_quote(message: str, quote: str) -> str:
    """Return the message followed by output of another program in quotation marks, if there is any."""
    return f"{message} It said: “{quote}”" if quote else message
