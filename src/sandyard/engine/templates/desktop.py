"""The `desktop` template: a layer on top of `base` with XFCE on a virtual screen, tools for programs to type, click and
take screenshots, and VNC in a browser. `e2b-desktop` and `@e2b/desktop` create their sandboxes from it. They start the
screen, the session and VNC themselves, so there is no start command.

It is large and rarely needed, so an engine builds it on first use.
"""

from __future__ import annotations

import os
from pathlib import Path

from sandyard.engine.templates.package_layer import PackageLayer

NAME = "desktop"
PACKAGES = tuple(
    """
    xvfb x11-xserver-utils x11-utils xauth dbus-x11
    xfce4-session xfwm4 xfdesktop4 xfce4-panel xfce4-settings xfconf exo-utils xfce4-terminal thunar mousepad
    xdotool scrot x11vnc websockify net-tools xdg-utils libgtk-3-bin
    adwaita-icon-theme librsvg2-common fonts-dejavu-core
    """.split()
)
OPTIONAL = ("firefox-esr",)  # on Ubuntu it exists only as a snap, which needs an init
CPU_COUNT, MEMORY_MB = 8, 8192  # the same as E2B's


def get_cpu_count() -> int:
    """Return E2B's value, limited to the machine's number of CPUs."""
    return min(CPU_COUNT, os.cpu_count() or 1)


def get_memory_mb() -> int:
    """Return E2B's value, limited to half of the machine's memory, so that one desktop cannot take all of it."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(MEMORY_MB, machine // 2)


def _describe(rootfs: Path) -> str:
    browser = " and Firefox" if (rootfs / "usr/bin/firefox-esr").exists() else ""
    return f"XFCE, VNC{browser}"


LAYER = PackageLayer(
    NAME,
    Path(__file__).with_name("desktop-customize.sh"),
    (PACKAGES, OPTIONAL),
    required_bytes=3 << 30,
    describe=_describe,
)
