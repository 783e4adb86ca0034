"""Check that memory can be moved to disk and back on this machine, by doing it with a sandbox of one small process.

Versions are not enough: whether CRIU works depends on the kernel, on the engine's environment, and on their
combination. The sandbox here is created like the driver's: namespaces that belong to the host's root, the user
namespace entered last, an overlay root, and a process that was forked without exec and that nobody inside may trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.child_command import make_bare_command
from sandyard.engine.drivers.namespace.criu.checkpoint import Criu, Frozen, RestoreTarget
from sandyard.kit.errors import SandyardError, UnsupportedError

_FIRST_ID = 1_910_000_000  # of the sandbox's users on the host; otherwise unused
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_BPF_RETURN, _SECCOMP_ALLOW = 6, 0x7FFF_0000
_TIMEOUT_S = 10.0
_CAP_SYS_RESOURCE = 24
_PREFIX = "sandyard-probe-"

_results: dict[tuple[str, ...], Criu | UnsupportedError] = {}


async def find_working() -> Criu:
    """Return a CRIU that was tested successfully. Raises UnsupportedError with the reason if there is none. Takes half
    a second the first time; the result is cached."""
    criu = await Criu.find()
    if not kernel.get_effective_capabilities() >> _CAP_SYS_RESOURCE & 1:
        raise UnsupportedError(
            "CRIU needs CAP_SYS_RESOURCE to read the limits of other users' processes; run the engine with it"
        )
    if criu.command not in _results:
        try:
            async with asyncio.timeout(_TIMEOUT_S * 3):
                await _dump_and_restore(criu)
            _results[criu.command] = criu
        except (SandyardError, OSError, TimeoutError) as error:
            version = ".".join(str(part) for part in criu.version)
            _results[criu.command] = UnsupportedError(f"CRIU {version} does not work on this machine: {error}")
    found = _results[criu.command]
    if isinstance(found, UnsupportedError):
        raise found
    return found


async def _dump_and_restore(criu: Criu) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as name, freezer_group() as freezer:
        folder = Path(name)
        os.chmod(folder, 0o711)  # noqa: S103, PTH101  the sandbox's root must traverse it to reach its mounts
        agent_socket = folder / "agent.sock"
        agent = await start(folder, "live", freezer)
        if await read_reply(agent_socket) != b"1":
            raise UnsupportedError("the probe's process did not start")
        set_frozen(freezer, frozen=True)
        await criu.dump(Frozen(agent, freezer), folder / "images" / "probe")
        os.kill(agent, signal.SIGKILL)
        set_frozen(freezer, frozen=False)
        await asyncio.to_thread(kill_all, freezer)
        holder = await start(folder, "hold", freezer)
        try:
            await criu.restore(
                folder / "images" / "probe", RestoreTarget(holder, folder / "stage/root", (freezer,), agent_socket)
            )
        finally:
            os.kill(holder, signal.SIGKILL)
        if await read_reply(agent_socket) != b"2":
            raise UnsupportedError("the probe's process was restored without its memory")


@contextlib.contextmanager
def freezer_group() -> Iterator[Path]:
    """Yield a cgroup that can be frozen, and remove it with its processes afterwards."""
    sweep()
    group = _find_freezer() / f"{_PREFIX}{os.getpid()}"
    group.mkdir(exist_ok=True)
    try:
        yield group
    finally:
        set_frozen(group, frozen=False)
        kill_all(group)
        group.rmdir()


def _find_freezer() -> Path:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        own, _, rest = line.partition(" - ")
        kind, *_, options = rest.split()
        if kind == "cgroup2" or (kind == "cgroup" and "freezer" in options.split(",")):
            return Path(own.split()[4])
    raise UnsupportedError("there is no freezer cgroup")


def sweep() -> None:
    """Remove the leftovers of engines that were killed during a test. Killing their processes also ends their
    mounts."""
    for group in _find_freezer().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, UnsupportedError):
            inside = (group / "cgroup.procs").read_text().split()
            # 0: a process of another pid namespace, where its engine may be running
            if _is_dead(group) and "0" not in inside:
                set_frozen(group, frozen=False)
                kill_all(group)
                group.rmdir()
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_dead(path: Path) -> bool:
    """Return whether the process whose pid is in the name has ended."""
    pid = path.name.removeprefix(_PREFIX).partition("-")[0]
    return pid.isdigit() and not Path("/proc", pid).exists()


def set_frozen(group: Path, *, frozen: bool) -> None:
    if (group / "cgroup.freeze").exists():
        (group / "cgroup.freeze").write_text("1" if frozen else "0")
        wanted, state = f"frozen {int(frozen)}", group / "cgroup.events"
    else:
        wanted, state = "FROZEN" if frozen else "THAWED", group / "freezer.state"
        state.write_text(wanted)
    _wait_until(lambda: wanted in state.read_text())


def kill_all(group: Path) -> None:
    """Kill the processes in that group, and wait until it is empty."""

    def kill_remaining() -> bool:
        pids = (group / "cgroup.procs").read_text().split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return not pids

    _wait_until(kill_remaining)


def _wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true, because the kernel needs a millisecond and does not report completion."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise UnsupportedError("the probe's processes could not be frozen or ended")
        time.sleep(0.0005)


async def read_reply(agent_socket: Path) -> bytes:
    async with asyncio.timeout(_TIMEOUT_S):
        reader, writer = await asyncio.open_unix_connection(agent_socket)
        try:
            return await reader.read()
        finally:
            writer.close()


async def start(folder: Path, mode: str, freezer: Path, entry: str = f"from {__name__} import main; main()") -> int:
    """Run `entry` with these arguments: see `main`. Return the pid it prints."""
    command = [*make_bare_command(entry), mode, str(folder), str(freezer)]
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    if not output:
        raise UnsupportedError(f"the probe did not start: {errors.decode(errors='replace').strip()[-300:]}")
    return int(output)


def main(serve: Callable[[socket.socket], None] | None = None) -> None:
    """Start a sandbox (`live`) or empty namespaces for one (`hold`) in a separate process, and print its pid.

    `serve` is what the sandbox does with its agent's listening socket; by default it counts the clients.
    """
    kernel.close_range(3, 0x7FFF_FFFF)  # children of a process that runs uvloop inherit its pipes
    mode, folder, freezer = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    users = _create_user_namespace()
    ready, report = os.pipe()
    if mode == "live":
        kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if mode == "live":
                (freezer / "cgroup.procs").write_text("0")
            kinds = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
            kernel.unshare(kinds | kernel.CLONE_NEWNET)
            _enable_loopback()  # CRIU accesses this interface
            root = _mount_root(folder)
            if mode == "live":
                listener = _enter_sandbox(folder, root, users)
                os.close(report)
                (serve or _serve_counter)(listener)
            for descriptor in (0, 1, 2, report):
                os.close(descriptor)
            signal.pause()
        finally:
            os._exit(1)
    os.close(report)
    os.read(ready, 1)
    sys.stdout.write(str(pid))


def _create_user_namespace() -> int:
    ready, report = os.pipe()
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(report, b"1")
            os.close(release)
            os.read(hold, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text(f"0 {_FIRST_ID} 65536\n")
    users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    for descriptor in (ready, report, hold, release):
        os.close(descriptor)
    os.waitpid(pid, 0)
    return users


def _enable_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _mount_root(folder: str) -> str:
    """Mount an overlay with a device node on it, like the driver's boot, but without proc."""
    stage = f"{folder}/stage"
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    Path(stage).mkdir(exist_ok=True)
    kernel.mount("none", stage, "tmpfs", 0, "mode=755")
    for name in ("lower/proc", "lower/dev", "upper", "work", "root"):
        Path(stage, name).mkdir(parents=True)
    for name in ("lower", "lower/proc", "lower/dev", "upper"):
        os.chown(f"{stage}/{name}", _FIRST_ID, _FIRST_ID)
    layers = f"lowerdir={stage}/lower,upperdir={stage}/upper,workdir={stage}/work"
    kernel.mount("overlay", f"{stage}/root", "overlay", 0, layers)
    kernel.mount("none", f"{stage}/root/dev", "tmpfs", kernel.MS_NOSUID, "mode=755")
    Path(stage, "root/dev/null").touch()
    kernel.bind("/dev/null", f"{stage}/root/dev/null")
    return f"{stage}/root"


def _enter_sandbox(folder: str, root: str, users: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/agent.sock")
    listener.listen()
    listener.setblocking(False)  # like an agent's socket, and the one that a restored agent gets
    kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.pivot_into(root)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    kernel.load_seccomp(struct.pack("HBBI", _BPF_RETURN, 0, 0, _SECCOMP_ALLOW))
    kernel.setns(users, kernel.CLONE_NEWUSER)
    os.close(users)
    os.setgid(0)
    os.setuid(0)
    os.setgroups([])
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return listener


def _serve_counter(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)):  # recent kernels and old versions of CRIU disagree about such sockets
        for count in range(1, 1_000):
            select.select([listener], [], [])
            client, _ = listener.accept()
            client.sendall(b"%d" % count)
            client.close()
