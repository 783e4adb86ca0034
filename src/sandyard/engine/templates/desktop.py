"""The `desktop` template: a layer on top of `base` with XFCE on a virtual screen, tools for programs to type, click and
take screenshots, and VNC in a browser. `e2b-desktop` and `@e2b/desktop` create their sandboxes from it. They start the
screen, the session and VNC themselves, so there is no start command.

It is large and rarely needed, so an engine builds it on first use.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.templates import base, layered
from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion, require_space, use_default_umask
from sandyard.engine.templates.progress import Report

NAME = "desktop"
FORMAT = 1  # increase it when the build changes in a way that nothing else in the recipe reflects
PACKAGES = tuple(
    """
    xvfb x11-xserver-utils x11-utils xauth dbus-x11
    xfce4-session xfwm4 xfdesktop4 xfce4-panel xfce4-settings xfconf exo-utils xfce4-terminal thunar mousepad
    xdotool scrot x11vnc websockify net-tools xdg-utils libgtk-3-bin
    adwaita-icon-theme librsvg2-common fonts-dejavu-core
    """.split()
)
OPTIONAL = ("firefox-esr",)  # on Ubuntu it exists only as a snap, which needs an init
CUSTOMIZE = Path(__file__).with_name("desktop-customize.sh")
REQUIRED_BYTES = 3 << 30
CPU_COUNT, MEMORY_MB = 8, 8192  # the same as E2B's


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines the layer's contents, except the current state of the archives."""

    base: TemplateVersion

    @property
    def digest(self) -> str:
        parts = [str(FORMAT), self.base.version, *PACKAGES, "", *OPTIONAL]
        scripts = [CUSTOMIZE.read_text(), layered.SCRIPT.read_text()]
        return hashlib.sha256(json.dumps([parts, scripts]).encode()).hexdigest()[:16]


def get_cpu_count() -> int:
    """Return E2B's value, limited to the machine's number of CPUs."""
    return min(CPU_COUNT, os.cpu_count() or 1)


def get_memory_mb() -> int:
    """Return E2B's value, limited to half of the machine's memory, so that one desktop cannot take all of it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(MEMORY_MB, machine // 2)


def find_newest(folder: TemplateFolder) -> TemplateVersion | None:
    return layered.find_newest(folder, NAME)


def is_stale(folder: TemplateFolder) -> bool:
    """Return whether it was built before and a build would produce a newer version."""
    bases = folder.list_versions(base.NAME)
    return bool(bases) and find_newest(folder) is not None and folder.find(NAME, Recipe(bases[0]).digest) is None


def build(folder: TemplateFolder, report: Report, *, force: bool = False) -> TemplateVersion:
    """Build it on the newest `base`, or wait for another builder, and return the resulting version. Blocks for a minute
    or more. Raises BuildError with the end of the log."""
    recipe = Recipe(layered.require_newest_base(folder, NAME))
    with folder.open_build_directory(NAME) as work, use_default_umask():
        if not force and (version := folder.find(NAME, recipe.digest)):
            return version
        require_space(folder.directory, REQUIRED_BYTES, f"Building template {NAME}")
        report.update(0.0, "reading package lists")
        layered.build_layer(NAME, CUSTOMIZE, recipe.base, work, report, " ".join(PACKAGES), " ".join(OPTIONAL))
        report.update(0.99, "writing to disk")
        browser = " and Firefox" if (work / ROOTFS / "usr/bin/firefox-esr").exists() else ""
        details = {"base": recipe.base.version, "size": base.measure_size(work / ROOTFS)}
        description = f"XFCE, VNC{browser} on base {recipe.base.version}"
        return folder.publish(work, folder.make_version(NAME, recipe.digest, description, details))
