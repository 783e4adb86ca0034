"""Services and helpers shared by the routes."""

from __future__ import annotations

from dataclasses import dataclass

from sandyard.engine.builds.service import Builds
from sandyard.engine.contract import Limits
from sandyard.engine.disk.service import EngineDisk
from sandyard.engine.hosts.administration import HostAdministration
from sandyard.engine.layers.service import LayerService
from sandyard.engine.sandboxes.model import Templates
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.secrets.service import Secrets
from sandyard.engine.volumes.service import Volumes
from sandyard.kit.errors import InvalidInputError

MAX_PAGE = 100


@dataclass(frozen=True, slots=True)
class Context:
    sandboxes: Sandboxes
    templates: Templates
    defaults: Limits
    domain: str | None  # the public domain of previews
    secrets: Secrets
    builds: Builds
    volumes: Volumes
    hosts: HostAdministration
    disk: EngineDisk
    layers: LayerService | None = None  # None: without a layer store

    def is_durable(self, snapshot_id: str) -> bool:
        """Return whether a snapshot is also in the layer store."""
        return self.layers is not None and self.layers.is_durable(snapshot_id)


def parse_page_limit(value: int | None) -> int:
    """Return the page size that a client requested, or the default. Raises InvalidInputError."""
    if value is not None and not 1 <= value <= MAX_PAGE:
        raise InvalidInputError(f"limit is not valid: use a number from 1 to {MAX_PAGE}.")
    return value or MAX_PAGE
