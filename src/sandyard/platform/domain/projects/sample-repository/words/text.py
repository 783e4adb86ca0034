"""Functions on texts: counting, shortening and slugs."""

import re


def word_count(text: str) -> int:
    """Return the number of words."""
    if not text.strip():
        return 0
    return len(text.split(" "))


def shorten(text: str, width: int) -> str:
    """Return the text, or its beginning and an ellipsis if it is longer than `width` characters."""
    if len(text) <= width:
        return text
    return text[:width] + "…"


def slug(text: str) -> str:
    """Return the text for use in a URL: lowercase letters and digits, joined by hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def initials(name: str) -> str:
    """Return the first letter of each part of a name."""
    return "".join(part[0].upper() for part in name.split())
