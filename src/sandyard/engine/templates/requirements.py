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
class Requirement:
    """One requirement. `remedy` says what to do if it is not met."""

    name: str
    met: bool
    remedy: str


def list_base_requirements() -> Iterator[Requirement]:
    """Yield the requirements. Only inspects the machine: runs nothing and uses no network."""
    yield Requirement("root", os.geteuid() == 0, "run as root: building base creates files of many users")
    for command in ("mmdebstrap", "apt-get", "unshare", "setpriv"):
        package = {"apt-get": "apt", "unshare": "util-linux", "setpriv": "util-linux"}.get(command, command)
        yield Requirement(command, shutil.which(command) is not None, f"install the package {package}")
    yield Requirement("pip or uv", node.find_installer() is not None, "install pip or uv, which download Node")
    try:
        sources.read_sources(sources.read_release())
    except SandyardError as error:
        yield Requirement("apt sources", False, error.message)
    else:
        yield Requirement("apt sources", True, "")


def list_missing_requirements() -> list[str]:
    """Return a sentence for each unmet requirement."""
    return [requirement.remedy for requirement in list_base_requirements() if not requirement.met]
