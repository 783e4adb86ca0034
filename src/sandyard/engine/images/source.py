"""The interface of all image sources: registries, layouts and archives."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Blob:
    """A layer as known by the source. `digest` is None if the source does not know the digest of the stored file."""

    name: str
    size: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One selected and verified image: its configuration matches the digest in its manifest. Layers are lowest first."""

    digest: str
    config: bytes
    layers: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """A layer's bytes in an open file. The source closes it."""

    fd: int
    offset: int
    size: int


class LayerSource(Protocol):
    def fetch(self, blob: Blob) -> AbstractAsyncContextManager[Content]:
        """Provide the layer's bytes while the context lasts."""
        ...


class Source(LayerSource, Protocol):
    async def find(self) -> SourceImage:
        """Find the image. Raises NotFoundError, ForbiddenError, UnsupportedError, UnreachableError or InvalidInputError."""
        ...
