"""The data directory of one engine: where things lie in it, and that only one engine has it open."""

from __future__ import annotations

from pathlib import Path

from sandyard.kit.folder import OwnedFolder


class DataDir(OwnedFolder):
    """Paths inside one engine's data directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "engine")

    @property
    def database(self) -> Path:
        return self.path / "engine.db"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def run(self) -> Path:
        return self.path / "run"
