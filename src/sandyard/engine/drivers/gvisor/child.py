"""Become runsc: mount a sandbox's root file system in a separate mount namespace, join its cgroups, then exec runsc.

Run by `runtime`, with the request as its argument. Needs only the standard library, so that it starts quickly. The
mounts end with the sandbox's last process: nothing can be left behind on the host.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from sandyard.engine.drivers.gvisor.link import enter_new_namespace
from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.mount_targets import OPEN_DIRECTORY, open_path, open_target
from sandyard.engine.drivers.machine.net.nft import NftError

CGROUP = "sandbox"
ORIGINAL_SUDO = "/dev/.sandyard/original-sudo"  # a file of agent_files; see guest.elevation
_CGROUPS = "/sys/fs/cgroup"
_OWN_MOUNTS = ("proc", "sys", "dev")  # file systems of gVisor's kernel
_CONTROLLERS = (
    "blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "job", "memory", "net_cls", "net_prio", "perf_event", "pids",
    "rdma", "systemd",
)  # fmt: skip
EXIT_REFUSED = 90  # with a JSON object on standard error
OVERLAY_OPTIONS = "redirect_dir=on,metacopy=off,index=off,xino=off,volatile"  # see namespace.zygote.rootfs


def main() -> NoReturn:
    kernel.close_range(3, 0x7FFF_FFFF)  # descriptors that uvloop leaves open in its children
    request = json.loads(sys.argv[1])
    purpose = "prepare its files"
    try:
        _enter(request)
        for target in request["volumes"]:
            purpose = f"mount a volume on {target}"
            _resolve_target(request["spec"], Path(request["root"]), target)
        purpose = "mount its own files"
        _keep_tmp(request["spec"], Path(request["root"]))
        _replace_sudo(request["spec"], Path(request["root"]), request["sudo"])
        _protect_read_only_sources(request["spec"])
        Path(request["config"]).write_text(json.dumps(request["spec"]))
        purpose = "start gVisor"
        os.execv(request["command"][0], request["command"])  # noqa: S606 - made by the engine
    except NftError as error:
        _report(f"could not {purpose}: {error}", None)
    except OSError as error:
        _report(f"could not {purpose}: {error.strerror or error}", error.errno)
    os._exit(EXIT_REFUSED)


def _report(message: str, code: int | None) -> None:
    sys.stderr.write(f"\n{json.dumps({'error': message, 'errno': code})}\n")
    sys.stderr.flush()


def _enter(request: dict[str, Any]) -> None:
    """Enter the cgroups and the namespaces of the sandbox, and mount its root file system."""
    for group in request["cgroups"]:
        Path(group, "cgroup.procs").write_text("0")
    enter_new_namespace(request["regular_netns"], containers=request["containers"])
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    # runsc takes a file that it finds there for a proof that it is in the host's network namespace. On Linux 6.18 and
    # later all network namespaces have that file.
    kernel.mount("none", "/proc/sys/net", "tmpfs", kernel.MS_RDONLY)
    kernel.bind("/proc/self/ns/net", request["netns"])
    _show_limits(request["memory_bytes"], request["cpu_count"])
    _mount_root(request)


def _show_limits(memory_bytes: int, cpu_count: int) -> None:
    """Let runsc find the sandbox's limits in plain files, with any version of cgroups. The sandbox then shows them
    as its own memory and processors; the real groups, which this process has joined, enforce them."""
    kernel.mount("none", _CGROUPS, "tmpfs")
    for controller in _CONTROLLERS:
        folder = Path(_CGROUPS, controller, CGROUP)
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").touch()
    Path(_CGROUPS, "memory", CGROUP, "memory.limit_in_bytes").write_text(str(memory_bytes))
    Path(_CGROUPS, "cpuset", CGROUP, "cpuset.cpus").write_text(f"0-{cpu_count - 1}")


def _mount_root(request: dict[str, Any]) -> None:
    # Descriptors keep the options short: the kernel accepts a page of them.
    names = []
    for layer in request["layers"]:
        names.append(f"/proc/self/fd/{os.open(layer, os.O_PATH | os.O_DIRECTORY)}")
    top = f"/proc/self/fd/{os.open(request['writable'], os.O_PATH | os.O_DIRECTORY)}"
    data = f"lowerdir={':'.join(names)},upperdir={top}/upper,workdir={top}/work,{OVERLAY_OPTIONS}"
    kernel.mount("sandyard", request["root"], "overlay", kernel.MS_NODEV, data)
    kernel.close_range(3, 0x7FFF_FFFF)


def _resolve_target(spec: dict[str, Any], root: Path, target: str) -> None:
    """Create the mount point of a volume, and put the path without symbolic links into the specification: gVisor would
    follow links to anywhere in the sandbox."""
    folder = os.open(root, OPEN_DIRECTORY)
    descriptor = open_target(folder, target)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    path = Path(f"/proc/self/fd/{descriptor}").readlink()
    for number in (folder, descriptor):
        os.close(number)
    parts = path.relative_to(root).parts
    if not parts or parts[0] in _OWN_MOUNTS:  # a link may also lead to the root itself
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    mount = next(mount for mount in spec["mounts"] if mount["destination"] == target)
    mount["destination"] = f"/{path.relative_to(root)}"


def _keep_tmp(spec: dict[str, Any], root: Path) -> None:
    """Mount the image's /tmp on itself. Otherwise gVisor mounts an empty file system there."""
    path = _find_in_root(root, "tmp", stat.S_ISDIR)
    if path is not None:
        spec["mounts"].append(_make_bind(str(path), f"/{path.relative_to(root)}", "rw"))


def _replace_sudo(spec: dict[str, Any], root: Path, replacement: str) -> None:
    """Mount `replacement` over the image's sudo, whose set-user-id bit gVisor ignores. The original stays available at
    `ORIGINAL_SUDO`."""
    path = _find_in_root(root, "usr/bin/sudo", stat.S_ISREG)
    if path is not None:
        spec["mounts"].append(_make_bind(str(path), ORIGINAL_SUDO, "ro"))
        spec["mounts"].append(_make_bind(replacement, f"/{path.relative_to(root)}", "ro"))


def _protect_read_only_sources(spec: dict[str, Any]) -> None:
    """Make the sources of read-only mounts read-only on the host too. runsc lets the process that serves files mount all
    sources writable, and in gVisor the root of a new user namespace may remount everything writable: without this, a
    sandbox could change the agent of all others."""
    flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    for mount in spec["mounts"]:
        if mount["type"] == "bind" and "ro" in mount["options"]:
            kernel.bind(mount["source"], mount["source"])
            kernel.mount("none", mount["source"], None, flags)


def _find_in_root(root: Path, name: str, is_wanted: Callable[[int], bool]) -> Path | None:
    """Return the path of a file in `root`, or None if it is missing or of another kind. Symbolic links, which are not
    trusted, can only lead to files in `root`, and the result contains none: the source of a mount must never lead to a
    file of the host."""
    folder = os.open(root, OPEN_DIRECTORY)
    descriptor = open_path(folder, name)
    os.close(folder)
    if descriptor < 0:
        return None
    try:
        found = Path(f"/proc/self/fd/{descriptor}").readlink()
        return found if is_wanted(os.fstat(descriptor).st_mode) and found != root else None
    finally:
        os.close(descriptor)


def _make_bind(source: str, target: str, access: str) -> dict[str, Any]:
    return {"destination": target, "type": "bind", "source": source, "options": ["rbind", access, "nosuid", "nodev"]}
