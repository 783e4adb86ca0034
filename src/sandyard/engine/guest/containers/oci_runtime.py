"""An OCI runtime that runs `exec` itself and leaves everything else to runc.

gVisor cannot move a process into an existing process id namespace, which `runc exec` needs. This program enters all
other namespaces of the container, its cgroups and its root, with the user, capabilities and limits of the request. The
process keeps its id in the sandbox, and gets a /proc with all processes of the sandbox: the container's own does not list
it. The container's seccomp filter does not apply to it. The end of the container does not end it, so `delete` kills it.

Imports nothing else of this project, so that it starts quickly. After it has entered the container it imports nothing at
all: Python would load a file of the container.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import termios
import time
from dataclasses import dataclass
from typing import Any, NoReturn

RUNC = ("/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc", "/usr/local/bin/runc")
_NAMESPACES = ("ipc", "uts", "net", "mnt")  # the mount namespace last: it hides the others' files
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSWD, _MAX_PASSWD_BYTES = "/etc/passwd", 1 << 20
_KILL_TIMEOUT_S = 5.0
_PR_CAPBSET_DROP, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 24, 8, 38
_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO",
    "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG",
    "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM",
    "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
_OPTIONS_WITH_VALUE = frozenset(
    {"--root", "--log", "--log-format", "--criu", "--rootless", "--process", "--pid-file", "--console-socket"}
)
_libc = ctypes.CDLL(None, use_errno=True)


class RuntimeFailedError(Exception):
    """The command failed. The message is shown to the caller."""


@dataclass(frozen=True, slots=True)
class Request:
    """A command line of an OCI runtime."""

    command: str
    container: str
    options: dict[str, str]

    @classmethod
    def parse(cls, arguments: list[str]) -> Request:
        options: dict[str, str] = {}
        words: list[str] = []
        rest = iter(arguments)
        for argument in rest:
            name, equals, value = argument.partition("=")
            if len(words) < 2 and name.startswith("-"):
                has_value = not equals and (name in _OPTIONS_WITH_VALUE or name == "-p")
                options["--process" if name == "-p" else name] = next(rest, "") if has_value else value
            else:
                words.append(argument)
        return cls(words[0] if words else "", words[1] if len(words) > 1 else "", options)


def main() -> NoReturn:
    request = Request.parse(sys.argv[1:])
    if request.command == "exec" and "--process" in request.options:
        try:
            sys.exit(_execute(request))
        except Exception as error:
            _report(request, f"exec failed: unable to start container process: {error}")
            sys.exit(255)
    if request.command == "delete":
        with contextlib.suppress(Exception):  # runc deletes it in any case
            _end_processes(_load_state(request), force="--force" in request.options or "-f" in request.options)
    program = next(path for path in (*RUNC, "runc") if os.path.exists(path) or path == "runc")
    os.execvp(program, [program, *sys.argv[1:]])  # noqa: S606 - the runtime that was asked for


def _report(request: Request, message: str) -> None:
    """Write an error to the log from which the caller reads it, and to standard error."""
    sys.stderr.write(f"{message}\n")
    path = request.options.get("--log")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            file.write(json.dumps({"level": "error", "msg": message, "time": moment}) + "\n")


def _load_state(request: Request) -> dict[str, Any]:
    """Return the state that runc keeps of a container."""
    root = request.options.get("--root") or "/run/runc"
    try:
        with open(f"{root}/{request.container}/state.json", encoding="utf-8") as file:
            state: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        raise RuntimeFailedError(f"container {request.container} does not exist") from None
    except ValueError as error:
        raise RuntimeFailedError(f"the state of container {request.container} is not valid: {error}") from None
    return state


# exec ---------------------------------------------------------------------------------------------------------------------


def _execute(request: Request) -> int:
    """Start a process in a container. Return the status to end with."""
    with open(request.options["--process"], encoding="utf-8") as file:
        process: dict[str, Any] = json.load(file)
    state = _load_state(request)
    init = int(state["init_process_pid"])
    # Everything of this container is opened before its files replace the present ones.
    namespaces = [
        os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        for path in (f"/proc/{init}/ns/{name}" for name in _NAMESPACES)
        if os.readlink(path) != os.readlink(f"/proc/self/ns/{path.rpartition('/')[2]}")
    ]
    terminal = os.openpty() if process.get("terminal") else None
    errors, report = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _run_in_container(process, state, namespaces, terminal, report)
    os.close(report)
    failure = os.read(errors, 4096).decode(errors="replace")
    if failure:
        os.waitpid(pid, 0)
        raise RuntimeFailedError(failure)
    try:
        if terminal is not None:
            _send_terminal(request.options["--console-socket"], terminal[0])
        if "--pid-file" in request.options:
            _write_pid_file(request.options["--pid-file"], pid)
    except Exception:  # the caller does not know about it, so nobody would end it
        os.kill(pid, signal.SIGKILL)
        raise
    if "--detach" in request.options or "-d" in request.options:
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code  # like a shell, if a signal has ended it


def _write_pid_file(path: str, pid: int) -> None:
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(str(pid))
    os.rename(f"{path}.new", path)


def _run_in_container(
    process: dict[str, Any], state: dict[str, Any], namespaces: list[int], terminal: tuple[int, int] | None, report: int
) -> NoReturn:
    """Enter the container and replace this process by the requested one. If this fails, write the reason to `report` and exit."""
    try:
        program = str(process["args"][0])
        _join_cgroups(state)
        for namespace in namespaces:
            _check(_libc.setns(namespace, 0), "could not enter the container")
        _mount_proc()
        os.setsid()
        if terminal is not None:
            fcntl.ioctl(terminal[1], termios.TIOCSCTTY, 0)
            for number in range(3):
                os.dup2(terminal[1], number)
            size = process.get("consoleSize") or {}
            if size.get("height") and size.get("width"):
                window = struct.pack("HHHH", size["height"], size["width"], 0, 0)
                fcntl.ioctl(0, termios.TIOCSWINSZ, window)
        os.chdir(process.get("cwd") or "/")
        environment = dict(entry.split("=", 1) for entry in process.get("env") or () if "=" in entry)
        if not environment.get("HOME"):
            environment["HOME"] = _find_home((process.get("user") or {}).get("uid", 0))
        _set_limits(process)
        _set_user(process)
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        _run_program(program, process["args"], environment)
    except Exception as error:
        os.write(report, (str(error) or type(error).__name__).encode(errors="replace"))
    os._exit(255)


def _run_program(program: str, arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process. Raises ValueError with a message by which Docker recognizes a missing program."""
    folders = [""] if "/" in program else environment.get("PATH", _DEFAULT_PATH).split(":")
    code = errno.ENOENT
    for folder in folders:
        try:
            os.execve(f"{folder}/{program}" if folder else program, arguments, environment)  # noqa: S606 - the requested program
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                code = error.errno or code
    if code == errno.ENOENT and "/" not in program:
        raise ValueError(f'exec: "{program}": executable file not found in $PATH: unknown')
    raise ValueError(f'exec: "{program}": {os.strerror(code).lower()}: unknown')


def _mount_proc() -> None:
    """Mount a /proc that only this process and its children see."""
    _check(_libc.unshare(_CLONE_NEWNS), "could not create a mount namespace")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "could not separate the mounts")
    if os.path.isdir("/proc"):
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        _check(_libc.mount(b"proc", b"/proc", b"proc", flags, None), "could not mount /proc")


def _check(result: int, failure: str) -> None:
    """Raise OSError if a function of the C library failed."""
    if result < 0:
        raise OSError(f"{failure}: {os.strerror(ctypes.get_errno())}")


def _join_cgroups(state: dict[str, Any]) -> None:
    for folder in set((state.get("cgroup_paths") or {}).values()):
        with contextlib.suppress(FileNotFoundError), open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(os.getpid()))


def _find_home(uid: int, passwd: str = _PASSWD) -> str:
    """Return a user's home directory according to the container's own accounts, or "/"."""
    content = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(passwd, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # it may be a pipe
        try:
            content = os.read(descriptor, _MAX_PASSWD_BYTES)
        finally:
            os.close(descriptor)
    for row in (line.split(b":") for line in content.split(b"\n")):
        if len(row) > 5 and row[2] == b"%d" % uid:
            return os.fsdecode(row[5]) or "/"
    return "/"


def _set_limits(process: dict[str, Any]) -> None:
    for limit in process.get("rlimits") or ():
        number = getattr(resource, limit["type"], None)
        if number is not None:
            # Docker writes -1, for no limit, as an unsigned number, which Python does not accept.
            soft, hard = (
                resource.RLIM_INFINITY if value > sys.maxsize else value for value in (limit["soft"], limit["hard"])
            )
            resource.setrlimit(number, (soft, hard))


def _set_user(process: dict[str, Any]) -> None:
    user, capabilities = process.get("user") or {}, process.get("capabilities") or {}
    bounding = _make_mask(capabilities.get("bounding"))
    for number in range(len(_CAPABILITIES)):
        if not bounding >> number & 1:
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for those that this kernel does not know
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "could not keep capabilities")
    if user.get("umask") is not None:
        os.umask(user["umask"])
    os.setgroups(user.get("additionalGids") or [])
    os.setresgid(*[user.get("gid", 0)] * 3)
    os.setresuid(*[user.get("uid", 0)] * 3)
    masks = [_make_mask(capabilities.get(kind)) for kind in ("effective", "permitted", "inheritable")]
    permitted = _read_permitted()
    masks[:2] = [mask & permitted for mask in masks[:2]]
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    data = b"".join(struct.pack("III", *(mask >> shift & 0xFFFFFFFF for mask in masks)) for shift in (0, 32))
    _check(_libc.capset(header, data), "could not set capabilities")
    if process.get("noNewPrivileges"):
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "could not set no_new_privs")


def _make_mask(names: list[str] | None) -> int:
    return sum(1 << number for number, name in enumerate(_CAPABILITIES) if f"CAP_{name}" in (names or ()))


def _read_permitted() -> int:
    header, data = struct.pack("Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data), "could not read capabilities")
    words = struct.unpack("IIIIII", data.raw)
    return int(words[1] | words[4] << 32)


def _send_terminal(path: str, master: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(path)
        rights = array.array("i", [master])
        sock.sendmsg([b"/dev/ptmx"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


# delete -------------------------------------------------------------------------------------------------------------------


def _end_processes(state: dict[str, Any], *, force: bool) -> None:
    """Kill the processes that `exec` has started in a container that has ended or, with `force`, is about to be ended."""
    init = int(state["init_process_pid"])
    if not force and os.path.exists(f"/proc/{init}") and not _is_zombie(init):
        return
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (pids := _list_processes(state) - {init}) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"
    return False


def _list_processes(state: dict[str, Any]) -> set[int]:
    found: set[int] = set()
    for folder in set((state.get("cgroup_paths") or {}).values()):
        with contextlib.suppress(OSError), open(f"{folder}/cgroup.procs", encoding="ascii") as file:
            found.update(int(line) for line in file if not _is_zombie(int(line)))
    return found


if __name__ == "__main__":
    main()
