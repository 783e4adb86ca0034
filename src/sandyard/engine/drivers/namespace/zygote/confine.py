"""What a sandbox's first process gives up before it becomes the agent: identity, capabilities, system calls."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from sandyard.engine.drivers.namespace import kernel

_CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    # No power here, for the network namespace belongs to the host; but a program file that asks for it (ping) would not start
    # at all if the bounding set lacked it.
    "net_bind_service": 10,
    "net_raw": 13,
    "sys_chroot": 18,
    "sys_ptrace": 19,  # debuggers as root; the agent is out of reach, for its memory belongs to the host's user namespace
    "mknod": 27,  # pipes and sockets of packages; device nodes stay impossible outside the host's user namespace
    "audit_write": 29,
    "setfcap": 31,
}
KEPT = sum(1 << number for number in _CAPABILITIES.values())
_LAST = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
DROPPED = tuple(number for number in range(_LAST + 1) if not KEPT >> number & 1)

OPEN_FILES = (65_536, 1_048_576)  # soft: what servers need; hard: where the machine allows it


def enter_userns(fd: int) -> None:
    """Become root of that user namespace, and nobody anywhere else."""
    kernel.setns(fd, kernel.CLONE_NEWUSER)
    with contextlib.suppress(PermissionError):  # a single-id map has no groups to leave
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def drop_privileges(filter_program: bytes) -> None:
    """Capabilities outside `KEPT` go for good, then the system calls. No no_new_privs: sudo must work inside."""
    for number in DROPPED:
        kernel.prctl(kernel.PR_CAPBSET_DROP, number)
    kernel.load_seccomp(filter_program)
    kernel.capset(KEPT)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def limit(processes: int | None) -> None:
    """`processes`: the kernel counts them for each user in each user namespace; used where there is no pids cgroup."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else OPEN_FILES[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES[0], most), min(OPEN_FILES[1], most)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
