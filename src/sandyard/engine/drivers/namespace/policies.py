"""The egress policy of a running sandbox, kept beside its socket: the network wants to be told again after a restart of the engine."""

from __future__ import annotations

import json
from pathlib import Path

from sandyard.engine.contract import NetworkPolicy

_FILE = "network.json"


def begin(folder: Path, policy: NetworkPolicy) -> None:
    """Make a sandbox's directory, with the policy it starts with."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # of a life before
        save(folder, policy)
    else:
        if policy != NetworkPolicy():
            save(folder, policy)


def save(folder: Path, policy: NetworkPolicy) -> None:
    """Before it is in force. The default one needs no file."""
    if policy == NetworkPolicy():
        (folder / _FILE).unlink(missing_ok=True)
        return
    partial = folder / f".{_FILE}"
    partial.write_text(json.dumps(policy.plain()))
    partial.rename(folder / _FILE)


def load(folder: Path) -> NetworkPolicy:
    """What cannot be read allows nothing."""
    try:
        return NetworkPolicy.read(json.loads((folder / _FILE).read_text()))
    except FileNotFoundError:
        return NetworkPolicy()
    except (OSError, ValueError, TypeError, KeyError):
        return NetworkPolicy(allow_internet=False)
