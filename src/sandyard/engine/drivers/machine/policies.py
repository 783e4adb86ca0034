"""Stored egress policies, which are applied again when the engine restarts or a suspended sandbox is restored. That of a
running sandbox is next to its socket, that of a suspended one next to its memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sandyard.engine.contract import NetworkPolicy

_FILE = "network.json"
_SEAL = "policy.json"


def create_directory(folder: Path, policy: NetworkPolicy) -> None:
    """Create a sandbox's directory in run/ with its initial policy."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # from an earlier start
        save(folder, policy)
    else:
        if policy != NetworkPolicy():
            save(folder, policy)


def save(folder: Path, policy: NetworkPolicy) -> None:
    """Save the policy of a running sandbox. The default policy needs no file."""
    if policy == NetworkPolicy():
        (folder / _FILE).unlink(missing_ok=True)
        return
    partial = folder / f".{_FILE}"
    partial.write_text(json.dumps(policy.to_dict()))
    partial.rename(folder / _FILE)


def load(folder: Path) -> NetworkPolicy:
    """Return the policy of a running sandbox. An unreadable one denies everything."""
    try:
        return NetworkPolicy.from_dict(json.loads((folder / _FILE).read_text()))
    except FileNotFoundError:
        return NetworkPolicy()
    except (OSError, ValueError, TypeError, KeyError):
        return NetworkPolicy(allow_internet=False)


def seal_memory(folder: Path, policy: NetworkPolicy) -> None:
    """Write the policy of a suspended sandbox, durably. Called last: with this file its memory is complete and valid."""
    partial = folder / f".{_SEAL}"
    with partial.open("w") as file:
        json.dump(policy.to_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / _SEAL)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_sealed(folder: Path) -> bool:
    """Return whether the memory in this directory was written completely."""
    return (folder / _SEAL).exists()


def load_sealed(folder: Path) -> NetworkPolicy:
    return NetworkPolicy.from_dict(json.loads((folder / _SEAL).read_text()))
