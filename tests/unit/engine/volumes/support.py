"""Fakes for the volume tests: a driver that only has directories, and a list of sandboxes that mount volumes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from sandyard.engine.contract import Capabilities
from sandyard.kit.errors import SandyardError


class FakeVolumeDriver:
    """The part of a driver that volumes need."""

    capabilities = Capabilities(
        freeze=False,
        suspend=frozenset(),
        memory_fork=frozenset(),
        live_copy="copy",
        limits=frozenset(),
        egress=False,
        isolation=frozenset(),
        containers=frozenset(),
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken: set[str] = set()

    async def create_volume(self, volume_id: str, size_mb: int) -> None:
        await asyncio.sleep(0)
        (self.folder / volume_id).mkdir()
        if "create" in self.broken:
            raise SandyardError("broken")

    async def delete_volume(self, volume_id: str) -> None:
        await asyncio.sleep(0)
        if "delete" in self.broken:
            raise SandyardError("broken")
        if (self.folder / volume_id).exists():
            (self.folder / volume_id).rmdir()

    def get_volume_files(self, volume_id: str) -> str:
        return f"files of {volume_id}"

    @property
    def ids(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


class MountingSandboxes:
    def __init__(self) -> None:
        self.running: dict[str, list[str]] = {}
        self.removing: dict[str, list[str]] = {}

    def list_mounting(self, volume_id: str, *, removing: bool = False) -> Sequence[str]:
        return [*self.running.get(volume_id, ()), *(self.removing.get(volume_id, ()) if removing else ())]
