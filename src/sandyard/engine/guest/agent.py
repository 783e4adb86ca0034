"""Assemble the agent's services, and start and stop its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from typing import NoReturn

from sandyard.engine.guest import kernel
from sandyard.engine.guest.config import DEFAULT_PATH, GuestConfig
from sandyard.engine.guest.elevation import Elevation, may_become_root
from sandyard.engine.guest.endpoints import AgentEndpoints
from sandyard.engine.guest.files.download import Downloads
from sandyard.engine.guest.files.service import FilesystemService
from sandyard.engine.guest.files.upload import Uploads
from sandyard.engine.guest.files.watchers import Watchers
from sandyard.engine.guest.loop import Loop, report_error
from sandyard.engine.guest.process.launcher import Launcher
from sandyard.engine.guest.process.registry import Registry
from sandyard.engine.guest.process.service import ProcessService
from sandyard.engine.guest.process.spawn import (
    FileLimits,
    Program,
    Spawner,
    SpawnError,
    keep_file_limit,
    raise_file_limit,
)
from sandyard.engine.guest.reaper import Reaper, Waiter
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.server import Server
from sandyard.engine.guest.users import UnknownUserError
from sandyard.engine.guest.warmup import WarmupReaper, warm_up

_STOP_TIMEOUT = 2.0  # for processes to end after a signal, in seconds
_WARM_UP_ROUNDS = 12
_WARM_UP_DELAY = 0.02


def prepare() -> None:
    """Do everything that can be done once for all agents, in the process from which they are forked (or that becomes the
    agent). Starts a few short programs; call it while this process has one thread."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    loop = Loop()
    try:
        # A root other than "/", so that every account is the caller's.
        sandbox = Sandbox(GuestConfig(root="/usr/.."))
        server = build_server(loop, sandbox, WarmupReaper(loop), keep_file_limit())
        loop.run(warm_up(loop, server.serve_connection, _WARM_UP_ROUNDS))
    finally:
        loop.close()
        os.fchdir(here)
        os.close(here)
    gc.collect()
    gc.freeze()  # so that garbage collections in a forked agent do not touch the shared pages


def serve(listen_socket: socket.socket, config: GuestConfig) -> NoReturn:
    """Serve until this process ends; never returns. Call it in a process of its own (forked, or pid 1 of a namespace)
    that has one thread and whose user, namespaces and limits are final."""
    sandbox = Sandbox(config)
    if config.max_processes is not None:
        kernel.limit_processes(config.max_processes)
    if config.forbid_user_namespaces:
        kernel.forbid_user_namespaces()
    os.umask(0o022)
    os.chdir("/")
    _close_inherited({listen_socket.fileno(), *config.keep_fds})
    if os.getpid() == 1:
        kernel.set_undumpable()
    else:
        kernel.become_subreaper()
    # A new loop, because one created before the fork would be shared with the parent.
    loop = Loop(config.max_wait_s)
    stop = asyncio.Event()
    reaper, file_limits = Reaper(loop, stop.set), raise_file_limit()
    server = build_server(loop, sandbox, reaper, file_limits)
    server.listen(loop, listen_socket)
    if config.elevation:
        spawner = Spawner(switch_user=sandbox.can_switch_user, file_limits=file_limits)
        Elevation(loop, sandbox, spawner, reaper).listen()
    if config.container_service:
        _start_container_service(sandbox, config, file_limits)
    if config.warm_up:
        loop.call_later(_WARM_UP_DELAY, lambda: loop.create_task(warm_up(loop, server.serve_connection, 1)))
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # there are few reference cycles, so collecting less often is cheaper
    try:
        loop.run(_run_until(stop))
    except BaseException:  # in any case, this process must not continue as its parent
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _start_container_service(sandbox: Sandbox, config: GuestConfig, file_limits: FileLimits) -> None:
    """Start `config.container_service`. Control of containers is equivalent to root's rights, so the service belongs to the default
    user only if that user may also use sudo, and otherwise to root. It is not started if the image lacks these accounts."""
    spawner = Spawner(switch_user=sandbox.can_switch_user, file_limits=file_limits)
    accounts = sandbox.accounts
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        root, user = accounts.lookup("root"), accounts.lookup(config.default_user)
        trusted = may_become_root(user, accounts.get_group_name, sandbox.to_host_path("/etc"))
        argv = (*config.container_service, str(user.uid if trusted else root.uid))
        spawner.spawn(Program(argv, {"PATH": DEFAULT_PATH}, "/"), root, [null, null, null])
    except UnknownUserError:
        pass
    except SpawnError:
        report_error()
    finally:
        os.close(null)


async def _run_until(stop: asyncio.Event) -> None:
    """Wait for `stop`, then end all processes and return. As pid 1, send them SIGTERM and wait a moment: the kernel kills
    the rest when pid 1 exits. Otherwise kill the agent's children immediately."""
    await stop.wait()
    number = signal.SIGTERM if os.getpid() == 1 else signal.SIGKILL
    _signal_all(number)
    for _ in range(int(_STOP_TIMEOUT * 50)):
        if not _list_other_processes():
            return
        await asyncio.sleep(0.02)
        if number == signal.SIGKILL:
            _signal_all(number)  # includes processes that became the agent's children in the meantime


def _signal_all(number: int) -> None:
    for pid in _list_other_processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _list_other_processes() -> list[int]:
    """Return the pids of the other processes: as pid 1 of the whole namespace, otherwise of the agent's children."""
    with contextlib.suppress(OSError):
        if os.getpid() == 1:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        own = os.getpid()
        with open(f"/proc/{own}/task/{own}/children", encoding="utf-8") as file:
            return [int(pid) for pid in file.read().split()]
    return []


def build_server(loop: Loop, sandbox: Sandbox, waiter: Waiter, file_limits: FileLimits) -> Server:
    """Create the agent's services and their routes."""
    endpoints = AgentEndpoints(loop, sandbox)
    downloads, uploads = Downloads(sandbox), Uploads(sandbox)
    files, watchers = FilesystemService(sandbox), Watchers(loop, sandbox)
    registry = Registry(loop)
    processes = ProcessService(sandbox, registry, Launcher(loop, sandbox, registry, waiter, file_limits))
    return Server(
        sandbox,
        http={
            ("GET", "/health"): endpoints.health,
            ("GET", "/envs"): endpoints.envs,
            ("GET", "/metrics"): endpoints.metrics,
            ("POST", "/init"): endpoints.init,
            ("GET", "/_sandyard/dial"): endpoints.dial,
            ("GET", "/_sandyard/relay"): endpoints.relay,
            ("GET", "/files"): downloads.get,
            ("HEAD", "/files"): downloads.get,
            ("POST", "/files"): uploads.post,
            ("POST", "/files/compose"): uploads.compose,
        },
        unary={
            "/process.Process/List": processes.list,
            "/process.Process/Update": processes.update,
            "/process.Process/SendInput": processes.send_input,
            "/process.Process/SendSignal": processes.send_signal,
            "/process.Process/CloseStdin": processes.close_stdin,
            "/filesystem.Filesystem/Stat": files.stat,
            "/filesystem.Filesystem/MakeDir": files.make_dir,
            "/filesystem.Filesystem/Move": files.move,
            "/filesystem.Filesystem/ListDir": files.list_dir,
            "/filesystem.Filesystem/Remove": files.remove,
            "/filesystem.Filesystem/CreateWatcher": watchers.create,
            "/filesystem.Filesystem/GetWatcherEvents": watchers.events,
            "/filesystem.Filesystem/RemoveWatcher": watchers.remove,
        },
        server_streams={
            "/process.Process/Start": processes.start,
            "/process.Process/Connect": processes.connect,
            "/filesystem.Filesystem/WatchDir": watchers.watch_dir,
        },
        client_streams={"/process.Process/StreamInput": processes.stream_input},
    )


def _close_inherited(keep: set[int]) -> None:
    """Close all inherited descriptors except `keep`, because the sandbox must not reach them. 0 and 1 become /dev/null."""
    highest = max(keep | {2})
    for fd in range(3, highest):
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)
    os.closerange(highest + 1, 1 << 20)
    for fd in keep:
        os.set_inheritable(fd, False)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
