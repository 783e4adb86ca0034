"""Names of branches and tags: the rules of `git check-ref-format`, and a few of our own."""

from __future__ import annotations

import re
import unicodedata

from sandyard.kit.errors import InvalidInputError

MAX_NAME_LENGTH = 250
_MAX_PART_BYTES = 240
"""Maximum size of a part between slashes: git stores it as a file name, and appends `.lock` while it writes."""
_MAX_SLUG_LENGTH, _MAX_SLUG_BYTES = 40, 120
COMMIT_ID = re.compile(r"[0-9a-f]{4,64}")
"""A commit id or a prefix of one."""

_RULES = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
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


def find_name_error(name: str) -> str | None:
    """Return what is wrong with the name of a branch or tag, as the end of a sentence that starts with the name. None if it is valid."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        return f"must have 1 to {MAX_NAME_LENGTH} characters"
    for rule, message in _RULES:
        if rule.search(name):
            return message
    if any(len(part.encode()) > _MAX_PART_BYTES for part in name.split("/")):
        return f"must have at most {_MAX_PART_BYTES} bytes between slashes"
    return None


def find_revision_error(name: str) -> str | None:
    """Like `find_name_error`, for the name of a commit: a branch, a tag or a commit id."""
    return None if COMMIT_ID.fullmatch(name) else find_name_error(name)


def slugify(title: str) -> str:
    """Return the words of a title in lower case, joined by hyphens, for use in a name.

    Accents of Latin letters are dropped; other scripts stay as they are. Empty if the title has neither letters nor
    digits.
    """
    plain = "".join(_drop_accents(letter) for letter in unicodedata.normalize("NFKC", title).casefold())
    words = "".join(_replace_punctuation(letter) for letter in plain).split()
    slug = ""
    for word in words:
        longer = f"{slug}-{word}" if slug else word
        if len(longer) > _MAX_SLUG_LENGTH or len(longer.encode()) > _MAX_SLUG_BYTES:
            # only the first word is cut; later ones are left out
            return slug or word[:_MAX_SLUG_LENGTH].encode()[:_MAX_SLUG_BYTES].decode(errors="ignore")
        slug = longer
    return slug


def _drop_accents(letter: str) -> str:
    decomposed = unicodedata.normalize("NFKD", letter)
    if not decomposed[0].isascii():
        return letter
    return "".join(part for part in decomposed if not unicodedata.combining(part))


def _replace_punctuation(letter: str) -> str:
    """Return letters, marks and digits as they are, nothing for an apostrophe, and a space for all else."""
    if unicodedata.category(letter)[0] in "LMN":
        return letter
    return "" if letter in "'\u2019" else " "


def check_name(name: str, kind: str = "branch") -> str:
    """Return the name. Raises InvalidInputError if it is not valid."""
    error = find_name_error(name)
    if error is not None:
        raise InvalidInputError(f"The name of a {kind} {error}: {name[:60]!r}.")
    return name
