"""Make untrusted text safe for a pull request: it reads the same, but triggers nothing.

An agent's text must not notify people, close issues, hide parts of the page or look like ours. A zero-width character breaks what a forge
would act on, inside code as well as outside, so that hostile Markdown need not be parsed.
"""

from __future__ import annotations

import re
import unicodedata

ZERO_WIDTH_SPACE = "\u200b"

# characters that are invisible or change the text's direction, except tabs and line breaks
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_TRIGGERS = re.compile(
    r"""
      (?<=@)(?=[A-Za-z0-9])                              # a mention
    | (?<=\#)(?=[0-9])                                   # an issue or a pull request
    | (?<=\bGH-)(?=[0-9])
    | (?<=/issues/)(?=[0-9]) | (?<=/pull/)(?=[0-9]) | (?<=/discussions/)(?=[0-9])
    | (?<=<)(?=[A-Za-z/!?])                              # HTML, including comments
    | (?<=&)(?=[A-Za-z\#])                               # an entity, which could be rendered as one of the above
    | (?<=!)(?=\[)                                       # an image, loaded by every reader
    | (?<=``)(?=`) | (?<=~~)(?=~)                        # a code fence, which could include what follows
    | (?<=\])(?=[:(])                                    # the target of a link
    | (?<!\S)(?=\#{1,6}(?:\s|$))                         # a heading, also in a list or a quotation
    | ^(?=[ \t>]*(?:=+|-+)[ \t]*$)                       # an underline, which makes a heading of the line before
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_INVISIBLE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
_TAG = re.compile(r"(?<=<)(?=[A-Za-z/!?])")


def neutralize(text: str) -> str:
    """Return the text without mentions, links, HTML and other things that a forge acts on. Idempotent."""
    return _TRIGGERS.sub(ZERO_WIDTH_SPACE, _CONTROL_CHARACTERS.sub("", text.replace("\r\n", "\n")))


def disable_tags(text: str) -> str:
    """Disable HTML tags, which could end the surrounding quotation or hide what follows. Keeps everything else."""
    return _TAG.sub(ZERO_WIDTH_SPACE, text)


def remove_invisible(text: str) -> str:
    """Remove invisible characters, so that people read what the agent reads."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(
        letter for letter in plain if letter in "\n\t" or unicodedata.category(letter) not in _INVISIBLE_CATEGORIES
    )


def quote(text: str) -> str:
    """Return the text as a quotation, which only HTML in it could end."""
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def format_line(text: str, limit: int) -> str:
    """Return the text neutralized and on one line, shortened with an ellipsis if it is longer than `limit`."""
    return truncate(neutralize(" ".join(text.split())), limit)


def format_code(text: str) -> str:
    """Return the text as a code span, whatever backticks it contains."""
    plain = " ".join(_CONTROL_CHARACTERS.sub("", text).split())
    fence = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}" if plain else "` `"


def truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
