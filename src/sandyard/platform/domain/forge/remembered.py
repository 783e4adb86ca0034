"""Cache of responses with an ETag, so that repeating a request costs nothing while nothing has changed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    etag: str
    content: bytes
    link: str


class Remembered:
    """The most recently used responses of all credentials, limited in bytes. A credential finds only its own."""

    def __init__(self, limit: int = 32 << 20) -> None:
        self._limit = limit
        self._size = 0
        self._answers: OrderedDict[tuple[str, str], Kept] = OrderedDict()

    def get(self, credential: str, url: str) -> Kept | None:
        kept = self._answers.get((credential, url))
        if kept is not None:
            self._answers.move_to_end((credential, url))
        return kept

    def put(self, credential: str, url: str, kept: Kept) -> None:
        """Store a response, unless it takes more than an eighth of the space."""
        self._drop((credential, url))
        if len(kept.content) > self._limit // 8:
            return
        self._answers[credential, url] = kept
        self._size += len(kept.content) + _OVERHEAD
        while self._size > self._limit:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: tuple[str, str]) -> None:
        if (kept := self._answers.pop(key, None)) is not None:
            self._size -= len(kept.content) + _OVERHEAD


_OVERHEAD = 1000  # of an entry: its key, ETag and Python objects
