"""What every place that images come from can do. A registry, a layout and an archive differ in nothing else."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer as the source knows it. `digest` None: the source has none of the file as it lies there."""

    name: str
    size: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """One image, chosen and checked: its configuration has the digest that its manifest gives it. Layers lowest first."""

    digest: str
    config: bytes
    layers: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """A layer's bytes in an open file, which is closed by whoever opened it."""

    fd: int
    offset: int
    size: int


class Source(Protocol):
    async def find(self) -> Found:
        """Raises NotFoundError, ForbiddenError, UnsupportedError, UnreachableError or InvalidInputError."""
        ...

    def fetch(self, blob: Blob) -> AbstractAsyncContextManager[Content]:
        """The layer's bytes, for as long as the context lasts."""
        ...
