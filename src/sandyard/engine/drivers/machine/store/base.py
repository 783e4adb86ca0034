"""The interface of a store. Its paths: `sandboxes/<id>/{upper,work}`, `snapshots/<id>/upper`, `volumes/<id>`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sandyard.engine.contract import DiskReport, Layers

SANDBOXES, SNAPSHOTS, VOLUMES, SHARED_LAYERS = "sandboxes", "snapshots", "volumes", "shared"
UPPER, WORK = "upper", "work"
VOLUME_OWNER, VOLUME_MODE = 1000, 0o777  # owned by the default user, and writable by everybody in a sandbox


class Store(Protocol):
    """Stores the directories of sandboxes, snapshots and volumes. Coroutines do not block the loop for long. Crash-safe:
    a directory that is not passed to `sweep` is a leftover, complete or not."""

    path: Path
    live_copy: str  # "cow" or "copy"
    limits: frozenset[str]  # "disk", or nothing

    @property
    def missing(self) -> Mapping[str, str]: ...

    async def close(self, *, unmount: bool) -> None:
        """Stop all background work and, with `unmount`, unmount the store if nothing uses it. May be called twice."""
        ...

    def has(self, sandbox: str) -> bool: ...

    def list_names(self) -> set[str]:
        """Return the sandboxes that have something in the store."""
        ...

    async def sweep(self, sandboxes: Collection[str], snapshots: Collection[str]) -> None:
        """Remove all sandboxes and snapshots except these."""
        ...

    def check_room(self) -> None:
        """Raise FullError if no new sandbox should be created, well before anything breaks."""
        ...

    async def wait_for_failure(self) -> str:
        """Wait until the store has failed and must be opened again. Return the reason. Cancellable."""
        ...

    def list_shared_layers(self, sandbox: str) -> Sequence[str]:
        """Return the directories of the layers between a sandbox's own directory and those it was created from. They were its own directory
        until it was copied while stopped."""
        ...

    async def create(self, sandbox: str, disk_mb: int) -> None:
        """Create a new sandbox's directory, with this limit."""
        ...

    async def copy(self, sandbox: str, new: str, disk_mb: int, *, stopped: bool) -> None:
        """Copy a sandbox's directory. Unless `stopped`, the sandbox must be frozen, otherwise the copy is not of one
        instant."""
        ...

    async def snapshot(self, sandbox: str, snapshot: str, *, stopped: bool) -> Layers:
        """Take a snapshot. Return the names of the layers on top of those the sandbox was created from."""
        ...

    async def renew(self, sandbox: str, disk_mb: int) -> None:
        """Prepare a stopped sandbox's directory for another start, with this limit."""
        ...

    async def flush(self) -> None:
        """Return when everything written so far is on disk."""
        ...

    async def remove(self, sandbox: str) -> None:
        """Remove a sandbox's directory. It is gone when this returns; freeing the space may take longer. Idempotent."""
        ...

    async def remove_snapshot(self, snapshot: str) -> None: ...

    async def create_volume(self, volume: str, size_mb: int) -> None:
        """Create a volume. Idempotent."""
        ...

    async def remove_volume(self, volume: str) -> None: ...

    async def measure_usage(self, sandbox: str) -> int:
        """Return the bytes that a sandbox uses; 0 if it does not exist or the store cannot tell."""
        ...

    async def measure_disk(self) -> DiskReport:
        """Return the disk use of everything in the store."""
        ...


def prepare_volume(volume: Path) -> None:
    """Make a new volume's directory usable for sandboxes. Without root it belongs to the user that is root in all
    sandboxes."""
    if os.geteuid() == 0:
        os.chown(volume, VOLUME_OWNER, VOLUME_OWNER)
    volume.chmod(VOLUME_MODE)
