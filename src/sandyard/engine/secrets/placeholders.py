"""What `${e2b.…}` in a header's value stands for: E2B's own notation, of which secrets are the part that is here."""

from __future__ import annotations

import re
from collections.abc import Callable

from sandyard.kit.errors import InvalidInputError

_ANY = re.compile(r"\$\{e2b\.([^{}]*)\}")
_SECRET = "secrets."  # noqa: S105 - where a name begins, no value
_IDENTITY = "identity."


def check(value: str) -> None:
    """Raises InvalidInputError for a placeholder that nothing here will ever fill in."""
    for match in _ANY.finditer(value):
        word = match[1]
        if word.startswith(_IDENTITY):
            raise InvalidInputError(
                f"{match[0]}: this engine issues no identity tokens. Store a secret, and use "
                "Secret.fill(name) in its place."
            )
        if not word.startswith(_SECRET) or word == _SECRET:
            raise InvalidInputError(
                f"{match[0]} is no placeholder that is known here: ${{e2b.secrets.<name>}} stands for a secret."
            )


def names_secret(value: str) -> bool:
    return any(match[1].startswith(_SECRET) for match in _ANY.finditer(value))


def fill(value: str, reveal: Callable[[str], str]) -> str:
    """`reveal` gives the secret of a name. What it gives is not looked at again."""
    return _ANY.sub(lambda match: reveal(match[1].removeprefix(_SECRET)), value)
