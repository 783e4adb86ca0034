"""Packages of the distribution that Sandyard uses, and which of them this machine lacks.

`scripts/system-packages` installs the same ones before there is a Python environment.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

APT_COMMAND = ("apt-get", "install", "--yes", "--no-install-recommends")
_ADMIN_FOLDERS = ("/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True)
class SystemPackage:
    """A package of Debian and Ubuntu. `purpose`: what does not work without it."""

    name: str
    purpose: str
    is_installed: Callable[[], bool]
    users: tuple[str, ...] = ("root", "other")
    """Who needs it: an engine that runs as root, or as another user."""


def _has_program(name: str) -> Callable[[], bool]:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_ADMIN_FOLDERS))
    return lambda: shutil.which(name, path=path) is not None


def _has_library(name: str) -> Callable[[], bool]:
    return lambda: any(found for folder in Path("/usr").glob("lib*") for found in _find_library(folder, name))


def _find_library(folder: Path, name: str) -> list[Path]:
    return [*folder.glob(name), *folder.glob(f"*/{name}")]


def _has_file(path: str) -> Callable[[], bool]:
    return lambda: Path(path).is_file()


def list_packages() -> Sequence[SystemPackage]:
    """Return the packages that Sandyard uses if they are installed."""
    return (
        SystemPackage("git", "projects with a repository", _has_program("git")),
        SystemPackage("openssh-client", "repositories over SSH", _has_program("ssh")),
        SystemPackage(
            "ca-certificates", "HTTPS connections of sandboxes", _has_file("/etc/ssl/certs/ca-certificates.crt")
        ),
        SystemPackage("mmdebstrap", "the default template", _has_program("mmdebstrap"), ("root",)),
        SystemPackage(
            "btrfs-progs", "disk limits, and forks and snapshots in milliseconds", _has_program("mkfs.btrfs"), ("root",)
        ),
        SystemPackage("libnftables1", "networks of sandboxes", _has_library("libnftables.so.1"), ("root",)),
        SystemPackage("sudo", "sudo in sandboxes of the template `host`", _has_program("sudo"), ("root",)),
        SystemPackage("uidmap", "more than one user in a sandbox", _has_program("newuidmap"), ("other",)),
    )


def list_missing_packages() -> list[SystemPackage]:
    """Return the packages that an engine of the current user lacks. Only inspects the machine."""
    user = "root" if os.geteuid() == 0 else "other"
    return [package for package in list_packages() if user in package.users and not package.is_installed()]


def format_install_command(packages: Sequence[SystemPackage]) -> str:
    """Return the command that installs the packages, for a user to type. Without apt, return what to do instead."""
    names = [package.name for package in packages]
    if shutil.which("apt-get") is None:
        return f"use the package manager of this machine (the names in Debian are {' '.join(names)})"
    sudo = () if os.geteuid() == 0 else ("sudo",)
    return shlex.join((*sudo, *APT_COMMAND, *names))
