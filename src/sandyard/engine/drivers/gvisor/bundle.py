"""What runsc has to know about a sandbox: an OCI runtime specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.gvisor import agent_files
from sandyard.engine.drivers.gvisor.child import CGROUP
from sandyard.engine.drivers.machine import base_layer
from sandyard.engine.drivers.machine.runtime import StartPlan

_CAPABILITIES = [
    "CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
    "CAP_IPC_LOCK", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP",
    "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
]  # fmt: skip
"""Capabilities of root in the sandbox. They apply to gVisor's kernel, not to the host's."""
_MAX_OPEN_FILES = 1 << 20
_SAFE = ["nosuid", "nodev"]


def make_spec(
    plan: StartPlan, *, root: Path, netns: Path, agent: Path, volumes: Path, disk_limited: bool
) -> dict[str, Any]:
    """Return the specification. `root` is the mounted root file system, `volumes` the folder of all volumes."""
    config = {
        "warm_up": False,
        "memory_bytes": plan.limits.memory_mb << 20,
        "cpu_count": plan.limits.cpu_count,
        "max_processes": plan.limits.pids,
        "elevation": True,
        "disk_bytes": plan.limits.disk_mb << 20 if disk_limited else None,
    }
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    namespaces.append({"type": "network", "path": str(netns)})
    capabilities = dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES)
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
        ],
        "linux": {"namespaces": namespaces, "cgroupsPath": f"/{CGROUP}"},
    }


def _make_mount(target: str, kind: str, source: str, options: list[str] | None = None) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": options or []}
