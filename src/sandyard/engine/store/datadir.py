"""The data directory of one engine: its layout, and the lock that lets only one engine open it."""

from __future__ import annotations

from pathlib import Path

from sandyard.kit.folder import OwnedFolder
from sandyard.kit.ids import make_random_id


class DataDir(OwnedFolder):
    """Paths inside one engine's data directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "engine")

    @property
    def database(self) -> Path:
        return self.path / "engine.db"

    def read_id(self) -> str:
        """Return the id of this directory, which is created on first use. It must be locked."""
        if not self.id_file.exists():
            self.id_file.write_text(f"{make_random_id('', 16)}\n")
        return self.id_file.read_text().strip()

    @property
    def id_file(self) -> Path:
        """The id of this directory, if its records are in PostgreSQL."""
        return self.path / "id"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def secrets_key(self) -> Path:
        return self.path / "secrets.key"

    @property
    def egress(self) -> Path:
        """The authority that only sandboxes with network rules trust."""
        return self.path / "ca" / "egress"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def tls(self) -> Path:
        """The authorities that clients of this engine trust, one per domain."""
        return self.path / "tls"

    @property
    def hosts_authority(self) -> Path:
        """The authority that only this engine and its hosts trust."""
        return self.path / "ca" / "hosts"

    @property
    def trust(self) -> Path:
        """Layers that make sandboxes trust this engine's own authority."""
        return self.path / "trust"

    @property
    def images(self) -> Path:
        """The layers and metadata of imported images."""
        return self.path / "images"

    @property
    def layers(self) -> Path:
        """Layers of published snapshots that were fetched from the layer store."""
        return self.path / "layers"

    @property
    def uploads(self) -> Path:
        """Files that clients uploaded for the COPY steps of builds."""
        return self.path / "uploads"
