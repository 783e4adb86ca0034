"""The `docker` template: a layer on top of `base` with Docker and Compose, whose sandboxes may run containers.

Docker runs as the sandbox's root in namespaces of its own (RootlessKit), in which all ids are the same as in the
sandbox: files that a container shares with the sandbox belong to the same user in both. Its containers reach the
network through connections of the sandbox itself (slirp4netns), so its network policy applies to them.

It is rarely needed, so an engine builds it on first use.
"""

from __future__ import annotations

import os
from pathlib import Path

from sandyard.engine.sandboxes.model import StartCommand
from sandyard.engine.templates.package_layer import PackageLayer

NAME = "docker"
PACKAGES = ("docker.io", "rootlesskit", "slirp4netns", "fuse-overlayfs", "uidmap", "crun", "iptables")
OPTIONAL = ("docker-cli",)  # a part of docker.io before Debian 13
COMPOSE = ("docker-compose-v2", "docker-compose")  # the first one that exists
MEMORY_MB = 2048
LAYER = PackageLayer(
    NAME,
    Path(__file__).with_name("docker-customize.sh"),
    (PACKAGES, OPTIONAL, COMPOSE),
    required_bytes=1 << 30,
    describe=lambda _: "Docker and Compose",
)
# A sandbox of this template that may not run containers has no such device: Docker is not started in it. In a gVisor
# sandbox, which has the second file, the agent starts Docker when it is used; see `guest.containers`.
_IS_NOT_STARTED = "[ ! -e /dev/net/tun ] || [ -e /dev/.sandyard ]"
START = StartCommand(
    command=f"{_IS_NOT_STARTED} || exec sudo -n /opt/docker/start",
    ready=f"{_IS_NOT_STARTED} || docker version >/dev/null 2>&1",
)


def get_memory_mb() -> int:
    """Return the memory of its sandboxes, limited to half of the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return min(MEMORY_MB, machine // 2)
