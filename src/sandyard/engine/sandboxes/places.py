"""The operations that moving sandboxes needs from a driver with several hosts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sandyard.engine.contract import Handle, Layers


class Places(Protocol):
    """The hosts and their sandboxes."""

    def find_host(self, handle: Handle) -> str:
        """Return the id of the host of a sandbox."""
        ...

    def list_sandboxes(self, host_id: str) -> Collection[str]:
        """Return the ids of the sandboxes on a host, also of those without a record."""
        ...

    def is_ready(self, host_id: str) -> bool:
        """Return whether the host can be reached."""
        ...

    def find_last_seen(self, host_id: str) -> float | None:
        """Return when the host last answered, or None if this engine has not reached it yet."""
        ...

    async def fetch_layers(self, layers: Layers) -> None:
        """Copy these layers to the engine's machine if they are not there. Raises NotFoundError, UnreachableError or
        NoSpaceError."""
        ...

    def abandon(self, handle: Handle) -> None:
        """Forget a sandbox of a lost host. If the host returns, it removes the sandbox."""
        ...
