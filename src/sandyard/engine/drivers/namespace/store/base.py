"""What a store is. Names in it: `sandboxes/<id>/{upper,work}`, `snapshots/<id>/upper`, `volumes/<id>`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from sandyard.engine.contract import Layers

SANDBOXES, SNAPSHOTS, VOLUMES = "sandboxes", "snapshots", "volumes"
UPPER, WORK = "upper", "work"
VOLUME_OWNER, VOLUME_MODE = 1000, 0o777  # the default user's, and everybody in a sandbox may write there


class Store(Protocol):
    """Verbs that touch the disk don't block the loop. They raise `sandyard.kit.errors` only. Crash-safe: a directory that is not named to
    `sweep` is garbage, whole or half-made."""

    path: Path
    live_copy: str  # "cow" or "copy"
    limits: frozenset[str]  # "disk", or nothing

    @property
    def missing(self) -> Mapping[str, str]: ...

    async def close(self, *, unmount: bool) -> None: ...

    def has(self, sandbox: str) -> bool: ...

    def names(self) -> set[str]:
        """The sandboxes it holds something of."""
        ...

    async def sweep(self, sandboxes: Collection[str], snapshots: Collection[str]) -> None:
        """Remove all others."""
        ...

    def check_room(self) -> None:
        """Raise FullError when a new sandbox should not be made, well before anything breaks."""
        ...

    async def failed(self) -> str:
        """Return, with the reason, when the store can't be used any more until it has been opened anew. Cancellable."""
        ...

    def below(self, sandbox: str) -> Layers:
        """Layers between a sandbox's own directory and those it was made of: what became of it when a stopped one was shared."""
        ...

    async def create(self, sandbox: str, disk_mb: int) -> None: ...

    async def copy(self, sandbox: str, new: str, disk_mb: int, *, stopped: bool) -> None:
        """Unless `stopped`, the sandbox must be frozen, or what is copied is not of one instant."""
        ...

    async def snapshot(self, sandbox: str, snapshot: str, *, stopped: bool) -> Layers:
        """Says which layers lie on top of those the sandbox was made of."""
        ...

    async def renew(self, sandbox: str, disk_mb: int) -> None:
        """Make a stopped sandbox's directory ready for another start, with this limit."""
        ...

    async def flush(self) -> None:
        """All that was written so far is on the disk when this returns."""
        ...

    async def remove(self, sandbox: str) -> None:
        """Out of sight when this returns; the space may take a little longer. Idempotent."""
        ...

    async def remove_snapshot(self, snapshot: str) -> None: ...

    async def create_volume(self, volume: str, size_mb: int) -> None:
        """Idempotent."""
        ...

    async def remove_volume(self, volume: str) -> None: ...

    async def usage(self, sandbox: str) -> int:
        """Bytes."""
        ...


def open_up(volume: Path) -> None:
    """Make a new volume's directory one that sandboxes can use. Without root it belongs to who all sandboxes' root is."""
    if os.geteuid() == 0:
        os.chown(volume, VOLUME_OWNER, VOLUME_OWNER)
    volume.chmod(VOLUME_MODE)
