"""An operator's settings for the sandboxes' network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandyard.engine.contract import PublicNames

MAX_CONNECTIONS = 4096
CONNECTIONS_PER_SECOND = 500
"""The default limits of one sandbox. The kernel compares each new connection with all of the sandbox's others, so the
cost of the first limit depends on both. As many connections as the first limit may be opened at once."""


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    lan: Literal["deny", "allow"] = "deny"
    """Whether sandboxes can reach private ranges and the host's local network. A policy can still allow single
    addresses."""

    subnet: str | None = None
    """The subnet for all sandboxes of this engine. None: a free /20 is chosen at the first start and remembered."""

    pool: int = 16
    """Number of namespaces created in advance."""

    connections: int = MAX_CONNECTIONS
    """Tracked connections per sandbox, so that none fills the host's table. 0: no limit."""

    resolv_conf: Path = Path("/etc/resolv.conf")
    """The file that lists the servers to which sandboxes' DNS queries are forwarded."""

    public_names: PublicNames | None = None
    """The engine's own names, which sandboxes can reach (see `hairpin`). None: they cannot."""

    egress_ca_file: Path | None = None
    """Certificate authorities that are trusted, in addition to the machine's, for hosts of rules."""
