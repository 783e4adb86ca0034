"""Keeps a key out of what passes by, also when it comes in pieces."""

from __future__ import annotations

from sandyard.kit.secret import Secret

SHORTEST = 8
"""A shorter one is too likely to be part of an ordinary word."""


class Redactor:
    """Each occurrence becomes as many asterisks, so that lengths stay true. What could be the beginning of the key is held back until
    it is known; `rest` gives it out at the end."""

    def __init__(self, key: Secret | None) -> None:
        value = key.reveal().encode() if key is not None else b""
        self._key = value if len(value) >= SHORTEST else b""
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._key:
            return chunk
        data = (self._held + chunk).replace(self._key, b"*" * len(self._key))
        keep = self._beginning(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def text(self, text: str) -> str:
        """The same for a whole text."""
        return text.replace(self._key.decode(), "***") if self._key else text

    def _beginning(self, data: bytes) -> int:
        """How many bytes at the end are the first ones of the key."""
        for size in range(min(len(self._key) - 1, len(data)), 0, -1):
            if data.endswith(self._key[:size]):
                return size
        return 0
