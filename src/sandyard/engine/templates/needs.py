"""Requirements for building `base`, and whether this machine meets them: for `sandyard doctor`, and before a build
starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from sandyard.engine.templates import node, sources
from sandyard.kit.errors import SandyardError


@dataclass(frozen=True, slots=True)
class Need:
    """One requirement. `remedy` says what to do if it is not met."""

    name: str
    met: bool
    remedy: str


def needs_of_base() -> Iterator[Need]:
    """Yield the requirements. Only inspects the machine: runs nothing and uses no network."""
    yield Need("root", os.geteuid() == 0, "run as root: building base creates files of many users")
    for command in ("mmdebstrap", "apt-get", "unshare", "setpriv"):
        package = {"apt-get": "apt", "unshare": "util-linux", "setpriv": "util-linux"}.get(command, command)
        yield Need(command, shutil.which(command) is not None, f"install the package {package}")
    yield Need("pip or uv", node.installer() is not None, "install pip or uv, which download Node")
    try:
        sources.read_sources(sources.read_release())
    except SandyardError as error:
        yield Need("apt sources", False, error.message)
    else:
        yield Need("apt sources", True, "")


def missing_for_base() -> list[str]:
    """Return a sentence for each unmet requirement."""
    return [need.remedy for need in needs_of_base() if not need.met]
