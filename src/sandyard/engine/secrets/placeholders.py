"""Parsing of `${e2b.…}` placeholders in header values: E2B's own notation, of which only secrets are supported here."""

from __future__ import annotations

import re
from collections.abc import Callable

from sandyard.kit.errors import InvalidInputError

_ANY = re.compile(r"\$\{e2b\.([^{}]*)\}")
_SECRET = "secrets."  # noqa: S105 - where a name begins, no value
_IDENTITY = "identity."


def check(value: str) -> None:
    """Raise InvalidInputError if the value has a placeholder that is not supported."""
    for match in _ANY.finditer(value):
        word = match[1]
        if word.startswith(_IDENTITY):
            raise InvalidInputError(
                f"{match[0]}: this engine does not issue identity tokens. Store a secret and use "
                "Secret.fill(name) instead."
            )
        if not word.startswith(_SECRET) or word == _SECRET:
            raise InvalidInputError(f"Unknown placeholder {match[0]}. Use ${{e2b.secrets.<name>}} to insert a secret.")


def names_secret(value: str) -> bool:
    return any(match[1].startswith(_SECRET) for match in _ANY.finditer(value))


def fill(value: str, reveal: Callable[[str], str]) -> str:
    """Replace placeholders with the values that `reveal` returns for secret names. Inserted values are not scanned
    again."""
    return _ANY.sub(lambda match: reveal(match[1].removeprefix(_SECRET)), value)
