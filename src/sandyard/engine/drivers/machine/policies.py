"""The egress policy of a running sandbox, stored next to its socket, because it has to be applied again after a restart
of the engine."""

from __future__ import annotations

import json
from pathlib import Path

from sandyard.engine.contract import NetworkPolicy

_FILE = "network.json"


def create_directory(folder: Path, policy: NetworkPolicy) -> None:
    """Create a sandbox's directory with its initial policy."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # from an earlier start
        save(folder, policy)
    else:
        if policy != NetworkPolicy():
            save(folder, policy)


def save(folder: Path, policy: NetworkPolicy) -> None:
    """Save the policy before it is applied. The default policy needs no file."""
    if policy == NetworkPolicy():
        (folder / _FILE).unlink(missing_ok=True)
        return
    partial = folder / f".{_FILE}"
    partial.write_text(json.dumps(policy.to_dict()))
    partial.rename(folder / _FILE)


def load(folder: Path) -> NetworkPolicy:
    """Load the policy. An unreadable one denies everything."""
    try:
        return NetworkPolicy.from_dict(json.loads((folder / _FILE).read_text()))
    except FileNotFoundError:
        return NetworkPolicy()
    except (OSError, ValueError, TypeError, KeyError):
        return NetworkPolicy(allow_internet=False)
