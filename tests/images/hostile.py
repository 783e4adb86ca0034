"""The actions of an attacker who has taken over a process that unpacks an image. Uses only the standard library: it is loaded there before
the process confines itself, in place of one of our functions."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

_MACHINE = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.ptrace.restype = ctypes.c_long
_NUMBERS = {
    "bpf": {"x86_64": 321, "aarch64": 280},
    "keyctl": {"x86_64": 250, "aarch64": 219},
    "perf_event_open": {"x86_64": 298, "aarch64": 241},
    "process_vm_readv": {"x86_64": 310, "aarch64": 270},
    "prlimit64": {"x86_64": 302, "aarch64": 261},
}
_CLONE_NEWUSER, _CLONE_NEWNS = 0x1000_0000, 0x0002_0000
_PTRACE_ATTACH = 16
_KEY_SPEC_USER_KEYRING, _KEYCTL_DESCRIBE = -4, 6


@dataclass(frozen=True)
class Aim:
    """Targets on the host: files, a TCP port on loopback, an abstract socket, a process, and a password in the environment of the
    engine. `target`: the directory that the process has to fill."""

    target: str
    secret: str
    folder: str
    port: int
    abstract: str
    pid: int
    password: str


def _call(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _syscall(name: str, *arguments: object) -> None:
    _call(_libc.syscall(_NUMBERS[name][_MACHINE], *arguments))


def _read(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 1)


def _climb(aim: Aim) -> None:
    """Reach the root of the host through every open descriptor."""
    for fd in range(256):
        try:
            os.open(f"{'../' * 30}{aim.secret.lstrip('/')}", os.O_RDONLY, dir_fd=fd)
        except OSError:
            continue
        return
    raise PermissionError(errno.EPERM, "no descriptor leads there")


def _connect(family: int, address: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(address)  # type: ignore[arg-type]


def _fork() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _execute() -> None:
    """Execute a program in a child process, so that failure is visible."""
    if (pid := os.fork()) == 0:
        try:
            os.execv("/bin/true", ["true"])
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise PermissionError(errno.EPERM, "the program did not start")


def _attach(pid: int) -> None:
    _call(_libc.ptrace(_PTRACE_ATTACH, pid, None, None))
    os.waitpid(pid, 0)
    _call(_libc.ptrace(17, pid, None, None))  # PTRACE_DETACH


def _read_memory(pid: int) -> None:
    local, remote = ctypes.create_string_buffer(16), (ctypes.c_size_t * 2)(0x1000, 8)
    own = (ctypes.c_size_t * 2)(ctypes.addressof(local), 8)
    result = _libc.syscall(_NUMBERS["process_vm_readv"][_MACHINE], pid, own, 1, remote, 1, 0)
    if result < 0 and ctypes.get_errno() != errno.EFAULT:  # EFAULT is returned only to a process with access
        raise OSError(ctypes.get_errno(), "process_vm_readv")


def _find_password(aim: Aim) -> None:
    if not any(aim.password in value for value in os.environ.values()):
        raise PermissionError(errno.EPERM, "it is not in the environment")


def _make_device(folder: str) -> None:
    path = f"{folder}/disk"
    os.mknod(path, 0o60600, os.makedev(254, 0))
    os.unlink(path)  # noqa: PTH108


def attempts(aim: Aim) -> dict[str, Callable[[], object]]:
    """Return the attempts, named by what success would mean."""
    inside = aim.target if os.path.isdir(aim.target) else "/"  # noqa: PTH112
    return {
        "read /etc/shadow": lambda: _read("/etc/shadow"),
        "read a file of the host": lambda: _read(aim.secret),
        "write a file of the host": lambda: os.open(f"{aim.folder}/evil", os.O_WRONLY | os.O_CREAT),
        "climb out": lambda: _climb(aim),
        "read /proc": lambda: _read("/proc/1/cmdline"),
        "read the engine's environment": lambda: _find_password(aim),
        "connect to loopback": lambda: _connect(socket.AF_INET, ("127.0.0.1", aim.port)),
        "connect to an abstract socket": lambda: _connect(socket.AF_UNIX, aim.abstract),
        "signal a process": lambda: os.kill(aim.pid, 0),
        "signal all processes": lambda: os.kill(-1, 0),
        "hold a process": lambda: os.close(os.pidfd_open(aim.pid)),
        "trace a process": lambda: _attach(aim.pid),
        "read a process's memory": lambda: _read_memory(aim.pid),
        "change a process's limits": lambda: _syscall("prlimit64", aim.pid, 4, None, ctypes.create_string_buffer(16)),
        "mount": lambda: _call(_libc.mount(b"none", inside.encode(), b"tmpfs", 0, None)),
        "use a keyring": lambda: _syscall("keyctl", _KEYCTL_DESCRIBE, _KEY_SPEC_USER_KEYRING, None, 0),
        "load a bpf program": lambda: _syscall(
            "bpf", 0, b"\x02\0\0\0\x04\0\0\0\x08\0\0\0\x01\0\0\0".ljust(72, b"\0"), 72
        ),
        "watch the machine": lambda: _syscall("perf_event_open", b"\1\0\0\0\x70\0\0\0".ljust(112, b"\0"), -1, 0, -1, 0),
        "make a device": lambda: _make_device(inside),
        "make a mount namespace": lambda: _call(_libc.unshare(_CLONE_NEWNS)),
        "make a user namespace": lambda: _call(_libc.unshare(_CLONE_NEWUSER)),
    }


def parser_attempts() -> dict[str, Callable[[], object]]:
    """Return attempts that must fail only in processes which do nothing but read and write."""
    return {
        "fork": _fork,
        "execute": _execute,
        "open a socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "change its root": lambda: os.chroot("."),
        "make code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close(),
        "set an alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0),
    }


def try_all(what: dict[str, Callable[[], object]]) -> list[str]:
    """Run all attempts. Returns the names of those that succeed."""
    done = []
    for name, attempt in what.items():
        try:
            attempt()
        except OSError:
            continue
        done.append(name)
    return done
