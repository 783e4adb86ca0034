"""The layer between a sandbox's own files and its template: the few files that depend on where it runs.

It contains /etc/{resolv.conf,hosts,hostname} and the mount points. The template stays unchanged, nothing is written
when a sandbox starts, and a file that is edited in a sandbox is simply a newer version, also in snapshots. One layer
serves all sandboxes with the same DNS server.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sandyard.engine.drivers import FETCHED_SNAPSHOTS, LAYERS
from sandyard.engine.drivers.machine.machine import NetSlot
from sandyard.engine.drivers.machine.store.base import Store

HOSTNAME = "e2b.local"
DIRECTORY = "base"

_HOSTS = f"""127.0.0.1 localhost {HOSTNAME}
::1 localhost ip6-localhost ip6-loopback
"""


def insert(store: Store, layers: Sequence[str], net: NetSlot | None) -> list[str]:
    """Return the layers of a sandbox with this layer in its place: above the template and below snapshots."""
    position = find_template(store.path, layers)
    return [*layers[:position], get_or_create(store.path, net.dns if net else None), *layers[position:]]


def find_template(store: Path, layers: Sequence[str]) -> int:
    """Return the number of layers above the template: those of snapshots, which are in the store or were fetched from a
    layer store."""
    prefixes = (f"{store}/", f"{store.parent / LAYERS / FETCHED_SNAPSHOTS}/")
    return next((number for number, layer in enumerate(layers) if not layer.startswith(prefixes)), len(layers))


def get_or_create(store: Path, dns: str | None) -> str:
    """Return the path of the layer, created if it is missing. Blocks for less than a millisecond."""
    resolv = f"nameserver {dns}\noptions timeout:5 attempts:2\n" if dns else "# this sandbox has no network\n"
    files = {"etc/resolv.conf": resolv, "etc/hosts": _HOSTS, "etc/hostname": f"{HOSTNAME}\n"}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    layer = store / DIRECTORY / digest
    if layer.is_dir():
        return str(layer)
    partial = store / DIRECTORY / f".{digest}-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("", "etc", "proc", "sys", "dev"):
        (partial / name).mkdir(parents=True, exist_ok=True)
        (partial / name).chmod(0o755)
    for name, text in files.items():
        (partial / name).write_text(text)
        (partial / name).chmod(0o644)
    partial.rename(layer)
    return str(layer)
