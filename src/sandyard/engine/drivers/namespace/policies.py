"""The egress policy of a running sandbox, kept beside its socket: the network wants to be told again after a restart of the engine."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

from sandyard.engine.contract import NetworkPolicy

_FILE = "network.json"


def save(folder: Path, policy: NetworkPolicy) -> None:
    partial = folder / f".{_FILE}"
    partial.write_text(json.dumps(asdict(policy)))
    partial.rename(folder / _FILE)


def load(folder: Path) -> NetworkPolicy:
    """What cannot be read allows nothing."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        raw = json.loads((folder / _FILE).read_text())
        return NetworkPolicy(bool(raw["allow_internet"]), tuple(raw["allow_out"]), tuple(raw["deny_out"]))
    return NetworkPolicy(allow_internet=False)
