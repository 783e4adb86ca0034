"""Parsing of `${e2b.…}` placeholders in header values: E2B's own notation, of which only secrets are supported here."""

from __future__ import annotations

import re
from collections.abc import Callable

from sandyard.kit.errors import InvalidInputError

_PLACEHOLDER = re.compile(r"\$\{e2b\.([^{}]*)\}")
_SECRET_PREFIX = "secrets."  # noqa: S105 - a prefix, not a value
_IDENTITY_PREFIX = "identity."


def validate(value: str) -> None:
    """Raise InvalidInputError if the value has a placeholder that is not supported."""
    for match in _PLACEHOLDER.finditer(value):
        name = match[1]
        if name.startswith(_IDENTITY_PREFIX):
            raise InvalidInputError(
                f"{match[0]}: this engine does not issue identity tokens. Store a secret and use "
                "Secret.fill(name) instead."
            )
        if not name.startswith(_SECRET_PREFIX) or name == _SECRET_PREFIX:
            raise InvalidInputError(f"Unknown placeholder {match[0]}. Use ${{e2b.secrets.<name>}} to insert a secret.")


def contains_secret(value: str) -> bool:
    """Return whether the value has a placeholder for a secret."""
    return any(match[1].startswith(_SECRET_PREFIX) for match in _PLACEHOLDER.finditer(value))


def fill(value: str, reveal: Callable[[str], str]) -> str:
    """Replace placeholders with the values that `reveal` returns for secret names. Inserted values are not scanned
    again."""
    return _PLACEHOLDER.sub(lambda match: reveal(match[1].removeprefix(_SECRET_PREFIX)), value)
