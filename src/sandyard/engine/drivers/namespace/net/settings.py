"""What an operator may decide about the sandboxes' network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandyard.engine.contract import PublicNames


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    lan: Literal["deny", "allow"] = "deny"
    """Whether sandboxes reach private ranges and the host's neighbours. A policy can allow single ones anyway."""

    subnet: str | None = None
    """For all sandboxes of this engine. None: a free /20 is found at the first start and remembered."""

    pool: int = 16
    """Namespaces kept ready."""

    connections: int = 4096
    """Connections one sandbox may have tracked at once, so that none fills the host's table. 0: no limit."""

    resolv_conf: Path = Path("/etc/resolv.conf")
    """Where the servers are listed which the sandboxes' questions are passed to."""

    public_names: PublicNames | None = None
    """The engine's own, which sandboxes reach through it (see `hairpin`). None: they don't."""

    egress_ca_file: Path | None = None
    """Certificate authorities that are trusted, besides the machine's, for the hosts that rules add headers for."""
