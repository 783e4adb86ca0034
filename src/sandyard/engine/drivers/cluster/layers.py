"""The interface through which the cluster driver copies layers between hosts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from sandyard.engine.contract import Layers
from sandyard.engine.drivers.cluster.codec import Json

CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 2 * CHUNK_BYTES  # accepted: twice what this release sends
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_SIZE = 1 << 50


@dataclass(frozen=True, slots=True)
class LayerPackage:
    """A packed layer. `digest`: of the compressed file, `size` bytes; `diff_id`: of the tar in it, `bytes` bytes."""

    digest: str
    diff_id: str
    size: int
    bytes: int
    entries: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Json) -> LayerPackage:
        """Parse the output of `to_dict`, from this or another version. Raises KeyError, TypeError or ValueError."""
        package = cls(**{field.name: plain[field.name] for field in fields(cls)})
        sizes, digests = (package.size, package.bytes, package.entries), (package.digest, package.diff_id)
        if not all(isinstance(size, int) and 0 <= size <= _MAX_SIZE for size in sizes):
            raise ValueError("a size of the layer is not valid")
        if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in digests):
            raise ValueError("a digest of the layer is not valid")
        return package


class LayerCopies(Protocol):
    """The layers on one machine, and copies of layers of other hosts."""

    def prepare(self) -> None:
        """Find the copies that exist. The driver of the machine must be open. Blocks."""
        ...

    async def close(self) -> None:
        """End what is in progress."""
        ...

    def has(self, layer: str) -> bool:
        """Return whether the layer, or a copy of it, is on this machine."""
        ...

    def resolve(self, layers: Layers) -> Layers:
        """Return the names by which the driver of this machine finds the layers: those of copies, where it has them."""
        ...

    async def pack(self, layer: str) -> LayerPackage:
        """Pack a layer, which `open` then returns. Raises NotFoundError if it is not on this machine."""
        ...

    def open(self, layer: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Provide the bytes of a layer that was just packed."""
        ...

    async def add(self, layer: str, package: LayerPackage, chunks: AsyncIterable[bytes]) -> None:
        """Store a copy of a layer, whose content is checked. Idempotent."""
        ...

    async def keep_snapshots(self, snapshots: Collection[str]) -> None:
        """Remove the copies of all other snapshots."""
        ...

    async def remove_snapshot(self, snapshot_id: str) -> None:
        """Remove the copy of a snapshot. Idempotent."""
        ...
