"""The OCI runtime specification of a sandbox, from which runsc starts it."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.gvisor import agent_files
from sandyard.engine.drivers.gvisor.child import CGROUP
from sandyard.engine.drivers.gvisor.link import INNER, OUTER
from sandyard.engine.drivers.machine import base_layer
from sandyard.engine.drivers.machine.runtime import StartPlan
from sandyard.kit.errors import InvalidInputError

_MAX_WAIT_S = 0.5  # rare enough to cost nothing
_CAPABILITIES = [
    "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
    "CAP_IPC_LOCK", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP",
    "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
]  # fmt: skip
"""Capabilities of root in the sandbox. They apply to gVisor's kernel, not to the host's."""
_CONTAINER_CAPABILITIES = [
    "CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_BLOCK_SUSPEND", "CAP_IPC_OWNER", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE", "CAP_NET_ADMIN", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT",
    "CAP_SYS_MODULE", "CAP_SYS_PACCT", "CAP_SYS_RAWIO", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
]  # fmt: skip
"""All others, for sandboxes with containers: privileged containers have every capability."""
CONTAINER_FILES = "/var/lib/docker"
"""The mount point of the file system for containers, in sandboxes that have them."""
_MAX_OPEN_FILES = 1 << 20
_SAFE = ["nosuid", "nodev"]


def make_spec(
    plan: StartPlan, *, root: Path, netns: Path, agent: Path, volumes: Path, containers: Path, disk_limited: bool
) -> dict[str, Any]:
    """Return the specification. `root` is the mounted root file system, `netns` the sandbox's network namespace, `agent`
    the folder of `agent_files`, `volumes` the folder of all volumes, `containers` the folder for the files of containers.
    Raises InvalidInputError if a volume would be hidden by the latter."""
    if plan.containers and any(posixpath.normpath(mount.target) == CONTAINER_FILES for mount in plan.mounts):
        raise InvalidInputError(
            f"A volume cannot be mounted at {CONTAINER_FILES} in a gVisor sandbox with containers: they have a separate file system "
            "there. Mount it elsewhere, and pass it to containers as a bind mount."
        )
    config: dict[str, Any] = {
        "warm_up": False,
        "memory_bytes": plan.limits.memory_mb << 20,
        "cpu_count": plan.limits.cpu_count,
        "max_processes": plan.limits.pids,
        "elevation": True,
        "max_wait_s": _MAX_WAIT_S,
        "forbid_user_namespaces": not plan.containers,
        "signal_resize": True,
        "engine_address": str(OUTER),
        "disk_bytes": plan.limits.disk_mb << 20 if disk_limited else None,
    }
    if plan.containers:
        config["container_service"] = agent_files.make_container_service(str(INNER))
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    namespaces.append({"type": "network", "path": str(netns)})
    capabilities = dict.fromkeys(
        ("bounding", "effective", "permitted"), _CAPABILITIES + (_CONTAINER_CAPABILITIES if plan.containers else [])
    )
    return {
        "ociVersion": "1.0.2",
        "hostname": base_layer.HOSTNAME,
        "root": {"path": str(root), "readonly": False},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": agent_files.make_command(json.dumps(config)),
            "env": agent_files.make_environment(),
            "cwd": "/",
            "noNewPrivileges": False,
            "capabilities": capabilities,
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": _MAX_OPEN_FILES, "soft": _MAX_OPEN_FILES}],
        },
        "mounts": [
            _make_mount("/proc", "proc", "proc"),
            _make_mount("/dev", "tmpfs", "tmpfs", ["nosuid", "mode=755"]),
            _make_mount("/dev/pts", "devpts", "devpts"),
            _make_mount("/dev/shm", "tmpfs", "tmpfs", [*_SAFE, "mode=1777", f"size={plan.limits.memory_mb >> 1}m"]),  # noqa: S108 - in the sandbox
            _make_mount("/sys", "sysfs", "sysfs", [*_SAFE, "ro"]),
            _make_mount("/sys/fs/cgroup", "cgroup", "cgroup", _SAFE),
            _make_mount(agent_files.MOUNT_POINT, "bind", str(agent), ["rbind", "ro", *_SAFE]),
            *(
                _make_mount(
                    mount.target,
                    "bind",
                    str(volumes / mount.volume),
                    ["rbind", "ro" if mount.read_only else "rw", *_SAFE],
                )
                for mount in plan.mounts
            ),
            *([_make_mount(CONTAINER_FILES, "bind", str(containers), ["rw", "rbind"])] if plan.containers else ()),
        ],
        "annotations": _make_container_annotations(containers, plan.limits.disk_mb) if plan.containers else {},
        "linux": {"namespaces": namespaces, "cgroupsPath": f"/{CGROUP}"},
    }


def _make_container_annotations(folder: Path, size_mb: int) -> dict[str, str]:
    """Return the annotations that turn the mount of `folder` into a file system of gVisor's kernel whose contents are in
    a file there. Docker's overlays need one: gVisor supports neither device nodes nor extended attributes in files of
    the host."""
    hint = {"source": str(folder), "type": "tmpfs", "share": "container", "options": f"rw,size={size_mb}m"}
    return {f"dev.gvisor.spec.mount.containers.{name}": value for name, value in hint.items()}


def _make_mount(target: str, kind: str, source: str, options: list[str] | None = None) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": options or []}
