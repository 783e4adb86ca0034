"""What a pod of the host service does before it serves: it makes its node a host of the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.hosts import joining
from sandyard.engine.hosts.authority import compute_fingerprint
from sandyard.engine.hosts.identity import HostIdentity
from sandyard.engine.hosts.kubernetes.source import NAME
from sandyard.engine.hosts.machines import Claim
from sandyard.kit.errors import BusyError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret

log = get_logger(__name__)

PAUSE_S = 4.0
"""The engine accepts one request every three seconds from an address."""
PATIENCE_S = 20.0
"""How long a node that was a host before waits for the engine to confirm that, before it serves anyway."""


@dataclass(frozen=True, slots=True)
class PodFiles:
    """The folder with the engine's address and fingerprint (a ConfigMap), and the file with the pod's token for the engine."""

    engine: Path
    token: Path


def join_engine(files: PodFiles, identity: HostIdentity, port: int) -> None:
    """Return when this node is a host. Until then, ask the engine for a join token and join with it, and log and report failures. Blocks.

    A node that was a host of this engine before does not need the engine or the API server for long: they may be away."""
    began, problem, shown = time.monotonic(), None, None
    while True:
        try:
            if _try_to_join(files, identity, port, problem):
                return
            problem = None
            continue
        except (SandyardError, OSError) as error:
            message = error.message if isinstance(error, SandyardError) else str(error)
            if not isinstance(error, _NotYetError):
                problem = message
            if message != shown:
                log.warning("host_not_joined", reason=message)
                shown = message
        if time.monotonic() - began > PATIENCE_S and _is_host(files, identity, port):
            return
        time.sleep(PAUSE_S)


class _NotYetError(BusyError):
    """The engine cannot be asked yet."""


def _try_to_join(files: PodFiles, identity: HostIdentity, port: int, problem: str | None) -> bool:
    """Return whether this node is a host, after joining if the engine says that it is not. Raises SandyardError and OSError."""
    address, fingerprint = _read_engine(files)
    known = identity.find()
    claim = Claim(
        Secret(files.token.read_text().strip()),
        known.id if known is not None and known.port == port else None,
        problem,
    )
    try:
        offer = joining.claim_token(address, fingerprint, NAME, claim)
    except SandyardError as error:
        raise _NotYetError(error.message) from error
    if offer.token is None:
        return True
    joining.join(offer.token, identity, name=offer.name, address=offer.address, port=port, labels={})
    return False


def _read_engine(files: PodFiles) -> tuple[str, str]:
    try:
        return tuple((files.engine / name).read_text().strip() for name in ("address", "fingerprint"))  # type: ignore[return-value]
    except OSError as error:
        raise _NotYetError(
            f"The engine has not written its address into the ConfigMap yet: {error.filename} is missing."
        ) from error


def _is_host(files: PodFiles, identity: HostIdentity, port: int) -> bool:
    """Return whether this node has joined the engine that the ConfigMap names, as far as it knows itself."""
    known = identity.find()
    try:
        return (
            known is not None
            and known.port == port
            and compute_fingerprint(identity.authority_path.read_bytes()) == _read_engine(files)[1]
        )
    except (SandyardError, OSError, ValueError):
        return False
