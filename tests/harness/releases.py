"""Simulated other releases of Sandyard: the version that they report, and the versions of the host protocol that they speak."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A release that speaks the versions `oldest` to `protocol` of the host protocol."""

    version: str
    protocol: int
    oldest: int

    def apply(self) -> None:
        """Make this process behave like the release."""
        from sandyard.engine.drivers.cluster import connections, driver  # noqa: PLC0415 - only in processes that need it
        from sandyard.engine.hosting import service  # noqa: PLC0415

        connections.PROTOCOL, connections.OLDEST_PROTOCOL = self.protocol, self.oldest
        driver.__version__ = service.__version__ = self.version
