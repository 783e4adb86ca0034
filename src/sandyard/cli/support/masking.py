"""Remove secrets from text: known values, and everything that looks like a secret."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

MASK = "***"
MIN_LENGTH = 6
"""A shorter value is too likely to be part of an ordinary word."""
MIN_LINE_LENGTH = 20
"""In a secret with several lines, such as a private key, lines of at least this length are secret too."""
_SECRET_NAME = r"(?:passw(?:or)?d|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|access[_-]?key|authorization|cookie)"  # noqa: S105 - a pattern
_IS_SECRET_NAME = re.compile(_SECRET_NAME, re.IGNORECASE)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", MASK),
        (r"(?<=://)[^/\s@'\"<>]+@", f"{MASK}@"),
        (r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}", rf"\1\2{MASK}"),
        (r"\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){1,4}", MASK),
        (r"\b(?:syj?|e2b|npm|hf|gh[pousr]|github_pat|xox[abeprs]|dop_v1|glpat|gldt)[_-][A-Za-z0-9_-]{8,}", MASK),
        (r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{12,}", MASK),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{12,}", MASK),
        (r"\bAIza[0-9A-Za-z_-]{20,}", MASK),
        (r"\bAGE-SECRET-KEY-1[0-9A-Z]+", MASK),
        (r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", MASK),
    )
)
_ASSIGNMENT = re.compile(rf"(?i)([\w-]*{_SECRET_NAME}[\w-]*[\"']?\s*[=:]\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;&]+)")


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name probably holds a secret."""
    return _IS_SECRET_NAME.search(name) is not None


class SecretMask:
    """Replaces secrets in text."""

    def __init__(self, known: Iterable[str]) -> None:
        parts = {part for value in known for part in _list_parts(value)}
        plain = {form for part in parts for form in (part, quote(part, safe=""), quote(part), json.dumps(part)[1:-1])}
        encoded = {form for part in parts for form in _list_base64(part.encode())}
        patterns = [re.escape(form) for form in sorted(plain, key=len, reverse=True)]
        patterns += [rf"{re.escape(form)}[A-Za-z0-9+/]*={{0,2}}" for form in sorted(encoded, key=len, reverse=True)]
        self._known = re.compile("|".join(patterns)) if patterns else None

    def apply(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return _ASSIGNMENT.sub(rf"\g<1>{MASK}", text)

    def apply_to_document(self, document: Any) -> Any:
        """Mask secrets in the strings of a JSON document, and every string whose key is the name of a secret."""
        if isinstance(document, str):
            return self.apply(document)
        if isinstance(document, dict):
            return {
                self.apply(name): MASK
                if value and isinstance(value, str) and is_secret_name(name)
                else self.apply_to_document(value)
                for name, value in document.items()
            }
        if isinstance(document, (list, tuple)):
            return [self.apply_to_document(item) for item in document]
        return document


def _list_parts(value: str) -> Iterator[str]:
    """Yield the secret parts of a value: the value itself, the strings in it if it is JSON, and its lines."""
    value = value.strip()
    if value.startswith(("{", "[")):
        try:
            document = json.loads(value)
        except ValueError:
            pass
        else:
            for text in _list_strings(document):
                yield from _list_parts(text)
    lines = [line for line in value.splitlines() if len(line) >= MIN_LINE_LENGTH and not line.startswith("-----")]
    yield from (part for part in {value, *(lines if "\n" in value else ())} if len(part) >= MIN_LENGTH)


def _list_base64(value: bytes) -> Iterator[str]:
    """Yield the forms that the value can have inside base64 of a longer text: one for each alignment, without the characters that
    also depend on adjacent bytes."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value).decode()
        if len(inner := encoded[4 if before else 0 : -4]) >= MIN_LENGTH:
            yield inner


def _list_strings(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for value in document.values():
            yield from _list_strings(value)
    elif isinstance(document, list):
        for value in document:
            yield from _list_strings(value)
