"""What a branch and a tag may be called: the rules of `git check-ref-format`, and a few of our own."""

from __future__ import annotations

import re
import unicodedata

from sandyard.kit.errors import InvalidInputError

MAX_NAME = 250
_MAX_PART = 240
"""Bytes: git keeps each part as a file's name, and adds `.lock` to it while it writes."""
_SLUG, _SLUG_BYTES = 40, 120
COMMIT = re.compile(r"[0-9a-f]{4,64}")
"""A commit's id, or its beginning."""

_RULES = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"[\x00-\x20\x7f~^:?*\[\\\ud800-\udfff]",
            "must not contain spaces, control characters or any of ~ ^ : ? * [ \\",
        ),
        (r"\.\.|@\{", "must not contain .. or @{"),
        (r"\A-|\.\Z", "must not start with a hyphen or end with a dot"),
        (r"\A(@|HEAD|[0-9a-f]{40}|[0-9a-f]{64})\Z", "is reserved by Git"),
        (r"\A/|//|/\Z", "must not start or end with a slash, or contain two in a row"),
        (r"(\A|/)\.|\.lock(/|\Z)", "must not have a part that starts with a dot or ends with .lock"),
    )
)


def fault(name: str) -> str | None:
    """What is wrong with it as the name of a branch or a tag, as the end of a sentence about it; None: nothing."""
    if not 0 < len(name) <= MAX_NAME:
        return f"must have 1 to {MAX_NAME} characters"
    for rule, words in _RULES:
        if rule.search(name):
            return words
    if any(len(part.encode()) > _MAX_PART for part in name.split("/")):
        return f"must have at most {_MAX_PART} bytes between slashes"
    return None


def revision_fault(name: str) -> str | None:
    """Like `fault`, of what names a commit: a branch, a tag, or a commit's id."""
    return None if COMMIT.fullmatch(name) else fault(name)


def slug(title: str) -> str:
    """The words of a title as a part of a name: small letters and digits, with dashes between them. Accents of Latin letters are left
    out; other scripts stay as they are. Empty when there is neither letter nor digit."""
    letters = []
    for letter in unicodedata.normalize("NFKC", title).casefold():
        apart = unicodedata.normalize("NFKD", letter)
        letters.append(
            "".join(one for one in apart if not unicodedata.combining(one)) if apart[0].isascii() else letter
        )
    kept = (
        letter if unicodedata.category(letter)[0] in "LMN" else "" if letter in "'\u2019" else " "
        for letter in "".join(letters)
    )
    found = ""
    for word in "".join(kept).split():
        longer = f"{found}-{word}" if found else word
        if len(longer) > _SLUG or len(longer.encode()) > _SLUG_BYTES:
            break
        found = longer
    else:
        return found
    return found or word[:_SLUG].encode()[:_SLUG_BYTES].decode(errors="ignore")


def check(name: str, what: str = "branch") -> str:
    """The name itself. InvalidInputError says what is wrong with it."""
    wrong = fault(name)
    if wrong is not None:
        raise InvalidInputError(f"The name of a {what} {wrong}: {name[:60]!r}.")
    return name
