"""Remove secrets from streamed data, even if they arrive in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote

from sandyard.kit.secret import Secret

_SCHEMES = frozenset(("basic", "bearer", "token"))
_SEPARATORS = re.compile(r"[\s;,=]+")
MIN_SECRET_LENGTH = 8
"""A shorter secret is too likely to be part of an ordinary word."""
MIN_PART_LENGTH = 16
"""A part of a header's value of this length is treated as a secret of its own."""


class Redactor:
    """Replaces secrets with asterisks: in a stream with as many as the secret has bytes, so that lengths stay correct.

    `feed` holds back the end of the last line that could be the beginning of a secret: secrets contain no line breaks. `flush` returns it at
    the end.
    """

    def __init__(self, *secrets: Secret | None) -> None:
        values = {
            text.encode() for secret in secrets if secret is not None for text in _list_encodings(secret.reveal())
        }
        self._secrets = sorted((value for value in values if len(value) >= MIN_SECRET_LENGTH), key=len, reverse=True)
        self._pending = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._secrets:
            return chunk
        data = self._pending + chunk
        for secret in self._secrets:
            data = data.replace(secret, b"*" * len(secret))
        line = len(data) - (data.rfind(b"\n") + 1)
        end = len(data) - min(line, len(self._secrets[0]) - 1)
        self._pending = data[end:]
        return data[:end]

    def flush(self) -> bytes:
        pending, self._pending = self._pending, b""
        return pending

    def redact(self, text: str) -> str:
        """Redact a whole text."""
        for secret in self._secrets:
            text = text.replace(secret.decode(), "***")
        return text

    def redact_headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Redact the values of headers, and drop headers whose name contains a secret. Names may have been changed to lowercase."""
        lowercase = [secret.decode().lower() for secret in self._secrets]
        return [
            (name, self.redact(value))
            for name, value in headers
            if not any(secret in name.lower() for secret in lowercase)
        ]


def _list_encodings(text: str) -> set[str]:
    """Return the text as is, inside a JSON string (some servers also escape `/`, others `<`, `>` and `&`), and in a URL."""
    escaped = json.dumps(text)[1:-1]
    html_safe = escaped.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"})
    return {text, escaped, escaped.replace("/", "\\/"), html_safe, quote(text, safe="")}


def make_header_redactor(values: Iterable[Secret]) -> Redactor:
    """Return a redactor for header values.

    Each value is redacted as a whole; after a known scheme such as `Bearer`, also the credentials alone; and every part too long to be a
    word, such as the value of a cookie.
    """
    return Redactor(*(Secret(text) for value in values for text in _list_secrets(value.reveal())))


def _list_secrets(value: str) -> list[str]:
    scheme, _, credentials = value.partition(" ")
    long = [part for part in _SEPARATORS.split(value) if len(part) >= MIN_PART_LENGTH]
    return [value, *([credentials.strip()] if scheme.lower() in _SCHEMES else []), *long]
