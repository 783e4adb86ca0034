"""What can be said about a text, and made of it."""

import re


def word_count(text: str) -> int:
    """How many words there are in it."""
    if not text.strip():
        return 0
    return len(text.split(" "))


def shorten(text: str, width: int) -> str:
    """The text if it fits into so many characters, else its beginning and an ellipsis."""
    if len(text) <= width:
        return text
    return text[:width] + "…"


def slug(text: str) -> str:
    """As it stands in an address: small letters and digits, joined by dashes."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def initials(name: str) -> str:
    """The first letter of each part of a name."""
    return "".join(part[0].upper() for part in name.split())
