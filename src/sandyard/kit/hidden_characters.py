"""Characters that are invisible or change the direction of text. `web/src/lib/hidden-characters.ts` marks the same ones."""

from __future__ import annotations

import re
import unicodedata

_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0"
    "\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Unicode's Default_Ignorable_Code_Point, without U+FE0E and U+FE0F."""
_OTHERS = "\u2800\ufff9-\ufffb\U00013430-\U0001343f"
"""The empty Braille pattern, and format characters for annotations and hieroglyphs."""
_EMOJI = "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
"""Symbols that may be displayed as emoji."""

HIDDEN = re.compile(f"[{_IGNORABLE}{_OTHERS}]|(?<![{_EMOJI}])[\ufe0e\ufe0f](?!\u20e3)")
"""U+FE0E and U+FE0F choose between text and emoji. After a symbol, or in a keycap such as 1️⃣, they are not hidden characters."""

_CONTROL_CATEGORIES = frozenset(("Cc", "Cs", "Zl", "Zp"))
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def make_one_line(text: str) -> str:
    """Return the text on one line, without control characters and those that change the direction of text."""
    visible = "".join(
        " " if unicodedata.category(character) in _CONTROL_CATEGORIES or character in _BIDI_CONTROLS else character
        for character in text
    )
    return " ".join(visible.split())
