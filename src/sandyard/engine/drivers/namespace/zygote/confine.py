"""Drop the privileges of a sandbox's first process before it becomes the agent: identity, capabilities, system
calls."""

from __future__ import annotations

import contextlib
import os
import resource
import struct

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.kernel import libc
from sandyard.engine.drivers.namespace.zygote.script import Step

CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    # No effect here, because the network namespace belongs to the host; but a program file that has it (ping) would not
    # start at all if the bounding set lacked it.
    "net_bind_service": 10,
    "net_raw": 13,
    "sys_chroot": 18,
    "sys_ptrace": 19,  # debuggers as root; the agent is not accessible, because its memory belongs to the host's user namespace
    "mknod": 27,  # pipes and sockets of packages; device nodes are impossible outside the host's user namespace
    "audit_write": 29,
    "setfcap": 31,
}
KEPT_CAPABILITIES = sum(1 << number for number in CAPABILITIES.values())

_MAX_OPEN_FILES = (65_536, 1_048_576)  # soft: what servers need; hard: if the machine allows it
# Per sandbox: the kernel counts all its ids together against the limit under which its user namespace was created.
COUNTED_LIMITS = {resource.RLIMIT_SIGPENDING: 16_384, resource.RLIMIT_MSGQUEUE: 819_200}
_OOM_SCORE = b"-900"  # of -1000: the agent is killed only if nothing else is left
_LIMIT_PURPOSE, _IDENTITY_PURPOSE = "limit its privileges", "become its root"


def limit_self() -> None:
    """Set what children inherit, once in the zygote: limits, and protection from the kernel's out-of-memory killer. The
    agent does not pass that protection on to programs."""
    os.umask(0o022)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_OPEN_FILES[1] if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_MAX_OPEN_FILES[0], limit), min(_MAX_OPEN_FILES[1], limit)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for kind, wanted in COUNTED_LIMITS.items():
        _, hard = resource.getrlimit(kind)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (limit, limit))
    with contextlib.suppress(OSError):  # without CAP_SYS_RESOURCE they have no protection
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, _OOM_SCORE)
        finally:
            os.close(fd)


def make_process_limit_step(limit: int) -> Step:
    """Return the step that limits processes. The kernel counts them per user and user namespace; used if there is no
    pids cgroup."""
    return libc.setrlimit, (resource.RLIMIT_NPROC, struct.pack("QQ", limit, limit)), _LIMIT_PURPOSE


def make_userns_steps(fd: int, ids: int) -> list[Step]:
    """Return the steps to become root of that user namespace, without any privilege elsewhere."""
    return [
        (libc.setns, (fd, kernel.CLONE_NEWUSER), _IDENTITY_PURPOSE),
        *([(libc.setgroups, (0, None), _IDENTITY_PURPOSE)] if ids > 1 else []),  # a single id has no groups to drop
        (libc.setresgid, (0, 0, 0), _IDENTITY_PURPOSE),
        (libc.setresuid, (0, 0, 0), _IDENTITY_PURPOSE),
    ]


def make_drop_steps(program: kernel.SeccompProgram) -> list[Step]:
    """Return the steps that drop capabilities outside `KEPT_CAPABILITIES` permanently, then system calls, then the
    right of others inside to inspect this process. no_new_privs is not set, because sudo must work."""
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
        last = int(file.read())
    dropped = [number for number in range(last + 1) if not KEPT_CAPABILITIES >> number & 1]
    return [
        *((libc.prctl, (kernel.PR_CAPBSET_DROP, number, 0, 0, 0), _LIMIT_PURPOSE) for number in dropped),
        (libc.prctl, program.arguments, "load its seccomp filter"),
        (libc.capset, kernel.make_capset_arguments(KEPT_CAPABILITIES), _LIMIT_PURPOSE),
        (libc.prctl, (kernel.PR_SET_DUMPABLE, 0, 0, 0, 0), _LIMIT_PURPOSE),
    ]
