"""Become CRIU: prepare namespaces and mounts in a separate process, then exec `criu dump` or `criu restore`.

Run by `checkpoint`, with the request as its argument. Needs root, and only the standard library, so that it starts
quickly. All its mounts are in a separate mount namespace, which ends with CRIU: nothing can be left behind on the host.

**Dump.** CRIU requires that the mount namespace belongs to the user namespace of its processes, and that it can open
`/proc/PID/ns/*` from there. Neither is true for a sandbox, by design. So CRIU, in its own mount namespace, sees another
directory instead of every `/proc/PID/ns`, with a copy of the sandbox's mount namespace that belongs to the sandbox's
user namespace: the same mounts, at the same places, with another owner. CRIU need not handle the network, uts, ipc and
cgroup namespaces: it is put into them, treats them as its own, and leaves them out.

**Restore.** The driver has created namespaces, cgroups and the root file system as for a boot. CRIU is put into all of
them except the mount namespace, and creates the user, pid, mount and time namespaces itself. Mounts that it cannot
create are copied from the driver's and passed to it, each in a separate place, because a user namespace cannot separate
mounts from those they are on.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import socket
import stat
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.namespace.criu import scan, volumes

FORMAT = 2
USED_MARK = "used"  # a file next to the images, from the moment the processes run again
_TEMPORARY_LIMIT = "64"
EXIT_REFUSED = 90  # with a message on standard error
_INOTIFY_INSTANCES = 32  # CRIU's user namespaces belong to root, so what is counted in them is counted for root
GHOST_LIMIT = 1 << 30  # bytes of a deleted file that is still open: they are stored in the image

_CLONE_FLAGS = {
    "mnt": kernel.CLONE_NEWNS,
    "net": kernel.CLONE_NEWNET,
    "uts": kernel.CLONE_NEWUTS,
    "ipc": kernel.CLONE_NEWIPC,
    "cgroup": kernel.CLONE_NEWCGROUP,
}


def main() -> NoReturn:
    kernel.close_range(3, 0x7FFF_FFFF)  # descriptors that uvloop leaves open in its children
    request = json.loads(sys.argv[1])
    try:
        {"dump": dump, "restore": restore}[request["verb"]](request)
    except (scan.NotDumpableError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
    os._exit(EXIT_REFUSED)


def _open_namespace(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _make_mounts_private() -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)


def _exec_criu(command: list[str], arguments: list[str]) -> NoReturn:
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}  # CRIU calls tar
    os.execve(command[0], [*command, *arguments], environment)  # noqa: S606


def dump(request: dict[str, Any]) -> NoReturn:
    root, images, library = int(request["pid"]), Path(request["images"]), Path(request["library"])
    freezer = Path(request["freezer"])
    pids = scan.list_pids(freezer)
    scan.check_processes(pids, root)
    volumes.check_volumes(pids, root, request["volumes"])
    mounts = scan.list_mounts(root)
    files = []
    for file, handle in scan.list_host_files(pids, root, [Path(path) for path in request["files"]]):
        files.append(file)
        if file.copy:
            _store_copy(handle, library / file.copy)
    arguments = ["dump", "--tree", str(root), "--images-dir", str(images / "criu"), "--freeze-cgroup", str(freezer)]
    arguments += ["--leave-running", "--skip-in-flight", "--link-remap", "--ghost-limit", str(GHOST_LIMIT)]
    for file in files:
        arguments += ["--external", file.key]
    for number, point in enumerate([*mounts.prepared, *mounts.blank]):
        arguments += ["--external", f"mnt[{point}]:m{number}"]
    for path in scan.find_watched_paths(pids, root):
        arguments += ["--irmap-scan-path", path]

    namespaces = {kind: _open_namespace(f"/proc/{root}/ns/{kind}") for kind in scan.NAMESPACES}
    # A mount namespace can be bound only in an older one, and recent kernels number them in order only on one CPU.
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    _make_mounts_private()
    copy, limits = _copy_mount_namespace(namespaces["mnt"], namespaces["user"])
    os.sched_setaffinity(0, cpus)
    _cover_namespaces(pids, namespaces, copy, f"{request['work']}/namespaces")
    for kind in ("net", "uts", "ipc", "cgroup"):
        kernel.setns(namespaces[kind], _CLONE_FLAGS[kind])
    facts = {
        "format": FORMAT,
        "machine": os.uname().machine,
        "owner": scan.read_root_uid(root),
        "socket": scan.find_listening_socket(root),
        "files": [asdict(file) for file in files],
        "prepared": mounts.prepared,
        "blank": mounts.blank,
        "limits": limits,
        "rlimits": scan.read_rlimits(root),
    }
    (images / "sandbox.json").write_text(json.dumps(facts))
    _exec_criu(request["criu"], [*arguments, *_list_common_options(request)])


def _list_common_options(request: dict[str, Any]) -> list[str]:
    options = ["--work-dir", request["work"], "--log-file", "criu.log", "-v2", "--no-default-config"]
    return [*options, "--manage-cgroups=ignore", "--network-lock", "skip", "--tcp-close", "--file-locks"]


def _store_copy(handle: Path, target: Path) -> None:
    if target.exists():
        return
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    with handle.open("rb") as source, partial.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
        sink.flush()
        os.fchmod(sink.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))  # CRIU compares it
        os.fsync(sink.fileno())
    partial.rename(target)


def _cover_namespaces(pids: list[int], namespaces: dict[str, int], mounts: int, stage: str) -> None:
    """Cover `/proc/PID/ns` of all processes with their own namespaces, and `mounts` as the mount namespace."""
    Path(stage).mkdir()
    kernel.mount("none", stage, "tmpfs")
    visible = {
        **namespaces,
        "mnt": mounts,
        "pid_for_children": namespaces["pid"],
        "time_for_children": namespaces["time"],
    }
    for kind, descriptor in visible.items():
        Path(stage, kind).touch()
        kernel.bind(f"/proc/self/fd/{descriptor}", f"{stage}/{kind}")
    for pid in pids:
        kernel.bind(stage, f"/proc/{pid}/ns", recursive=True)


def _copy_mount_namespace(mounts: int, users: int) -> tuple[int, dict[str, str]]:
    """Return a copy of that mount namespace that belongs to that user namespace and lives as long as its descriptor,
    and the namespace limits of that user namespace, which are raised while the copy is made."""
    ready, report = os.pipe()
    hold, release = os.pipe()
    sysctls = os.open("/proc/sys/user", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            kernel.setns(mounts, kernel.CLONE_NEWNS)
            kernel.setns(users, kernel.CLONE_NEWUSER)
            limits = {kind: _access_user_sysctl(sysctls, f"max_{kind}_namespaces") for kind in scan.NAMESPACES}
            _access_user_sysctl(sysctls, "max_mnt_namespaces", _TEMPORARY_LIMIT)
            kernel.unshare(kernel.CLONE_NEWNS)
            _access_user_sysctl(sysctls, "max_mnt_namespaces", limits["mnt"])
            os.write(report, json.dumps(limits).encode())
            os.close(release)
            os.read(hold, 1)
        finally:
            os._exit(0)
    for descriptor in (report, hold, sysctls):
        os.close(descriptor)
    try:
        answer = os.read(ready, 4096)
        if not answer:
            raise OSError("the sandbox's mount namespace could not be copied")
        return _open_namespace(f"/proc/{pid}/ns/mnt"), json.loads(answer)
    finally:
        os.close(ready)
        os.close(release)
        os.waitpid(pid, 0)


def _access_user_sysctl(folder: int, name: str, value: str = "") -> str:
    """Read or write a file of /proc/sys/user: its meaning depends on the user namespace of the process that opens
    it."""
    descriptor = os.open(name, os.O_RDWR if value else os.O_RDONLY, dir_fd=folder)
    try:
        return str(os.write(descriptor, value.encode())) if value else os.read(descriptor, 64).decode().strip()
    finally:
        os.close(descriptor)


def restore(request: dict[str, Any]) -> NoReturn:
    images, work = Path(request["images"]), request["work"]
    try:
        facts = json.loads((images / "sandbox.json").read_text())
    except FileNotFoundError:
        raise scan.NotDumpableError("its saved memory is missing on the disk") from None
    if facts["format"] != FORMAT or facts["machine"] != os.uname().machine:
        raise scan.NotDumpableError(
            "its memory was saved by another version of the engine, or on another type of machine"
        )
    # Opened before any namespace is entered, so that their mounts outlive this process.
    library = Path(request["library"])
    inherited = {_reopen_file(scan.HostFile(**file), library, facts["owner"]): file["key"] for file in facts["files"]}
    for folder in request["cgroups"]:
        Path(folder, "cgroup.procs").write_text("0")
    namespaces = {kind: _open_namespace(f"/proc/{request['holder']}/ns/{kind}") for kind in _CLONE_FLAGS}
    kernel.setns(namespaces["net"], _CLONE_FLAGS["net"])
    # Only now, because a unix socket belongs to the network namespace it was created in.
    inherited[_listen(request["socket"])] = f"socket:[{facts['socket']}]"
    for kind in ("uts", "ipc", "cgroup"):
        kernel.setns(namespaces[kind], _CLONE_FLAGS[kind])
    _make_mounts_private()
    root, *mount_paths = _copy_mounts(namespaces["mnt"], request["root"], ["/", *facts["prepared"]], f"{work}/mounts")
    mount_paths += [
        _make_mask(kind, f"{work}/mounts/blank{number}") for number, kind in enumerate(facts["blank"].values())
    ]
    arguments = ["restore", "--images-dir", str(images / "criu"), "--root", root, "--restore-detached"]
    arguments += ["--pidfile", "pid", "--action-script", f"{work}/mounts/limit", *_list_common_options(request)]
    _write_script(Path(work, "mounts/limit"), facts["limits"], images / USED_MARK)
    for number, path in enumerate(mount_paths):
        arguments += ["--external", f"mnt[m{number}]:{path}"]
    for kind, limit in facts.get("rlimits", []):  # the new user namespace is created under these limits
        resource.setrlimit(kind, (limit, limit))
    for descriptor, key in inherited.items():
        os.set_inheritable(descriptor, True)
        arguments += ["--inherit-fd", f"fd[{descriptor}]:{key}"]
    _exec_criu(request["criu"], arguments)


def _write_script(script: Path, limits: dict[str, str], used: Path) -> None:
    """Write the script that CRIU calls at every stage. Before anything runs, it gives the new user namespace the limits
    of the old one, and marks the images as used."""
    sysctls = {f"max_{kind}_namespaces": int(value) for kind, value in limits.items()}
    sysctls["max_inotify_instances"] = _INOTIFY_INSTANCES
    writes = "; ".join(f"echo {value} >/proc/sys/user/{name}" for name, value in sysctls.items())
    lines = ["#!/bin/sh -e", '[ "$CRTOOLS_SCRIPT_ACTION" = post-restore ] || exit 0']
    lines.append(f": >{shlex.quote(str(used))}")
    lines.append(f"exec nsenter --user=/proc/$CRTOOLS_INIT_PID/ns/user sh -ec '{writes}'\n")
    script.write_text("\n".join(lines))
    script.chmod(0o700)


def _reopen_file(file: scan.HostFile, library: Path, owner: int) -> int:
    """Open the host's file if it is still the same, otherwise the copy that was kept.

    CRIU opens it once more, as the sandbox's root, which therefore has to own files that it writes to.
    """
    try:
        descriptor = os.open(file.path, file.flags | os.O_CLOEXEC)
    except OSError:
        descriptor = -1
    if descriptor >= 0:
        status = os.fstat(descriptor)
        if not file.copy:
            if stat.S_ISREG(status.st_mode):
                os.fchown(descriptor, owner, owner)
            return descriptor
        if (status.st_size, status.st_mtime_ns, status.st_ino) == (file.size, file.mtime_ns, file.inode):
            return descriptor
        os.close(descriptor)
    if not file.copy:
        raise scan.NotDumpableError(f"the host's file {file.path}, which was open inside, is gone")
    return os.open(library / file.copy, os.O_RDONLY | os.O_CLOEXEC)


def _listen(path: str) -> int:
    """Return a new listening socket at the agent's path, which may be longer than a socket address allows."""
    socket_path = Path(path)
    socket_path.unlink(missing_ok=True)
    folder = os.open(socket_path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(f"/proc/self/fd/{folder}/{socket_path.name}")
    listener.listen(1024)
    os.close(folder)
    return listener.detach()


def _make_mask(kind: str, path: str) -> str:
    """Return the path of something to mount on proc to hide what is below."""
    if kind == "device":
        return "/dev/null"
    if kind == "folder":
        Path(path).mkdir(0o555)
    else:
        Path(path).write_text(kind.removeprefix(scan.TEXT_PREFIX))
        Path(path).chmod(0o444)
    return path


def _copy_mounts(mounts: int, root: str, points: list[str], path: str) -> list[str]:
    """Copy mounts out of the tree at `root` in that mount namespace: each alone, below `path`."""
    own_namespace = _open_namespace("/proc/self/ns/mnt")
    kernel.setns(mounts, kernel.CLONE_NEWNS)
    copies = [kernel.clone_mount(f"{root}{point}") for point in points]
    are_folders = [Path(f"{root}{point}").is_dir() for point in points]
    kernel.setns(own_namespace, kernel.CLONE_NEWNS)
    os.close(own_namespace)
    Path(path).mkdir()
    kernel.mount("none", path, "tmpfs", 0, "mode=755")  # no flags: CRIU adds those a mount had, but cannot remove any
    paths = []
    for number, (copy, is_folder) in enumerate(zip(copies, are_folders, strict=True)):
        target = Path(path, str(number))
        target.mkdir() if is_folder else target.touch()
        kernel.attach_mount(copy, str(target))
        os.close(copy)
        paths.append(str(target))
    return paths
