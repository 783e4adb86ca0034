"""Start a process from a `StartRequest`: environment, directory, pipes or terminal."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from dataclasses import dataclass
from typing import Any

from sandyard.engine.guest.config import DEFAULT_PATH
from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.process.input import Input
from sandyard.engine.guest.process.output import Budget
from sandyard.engine.guest.process.process import Process
from sandyard.engine.guest.process.registry import Registry
from sandyard.engine.guest.process.spawn import FileLimits, NoDirectoryError, Program, Spawner, SpawnError
from sandyard.engine.guest.reaper import Waiter
from sandyard.engine.guest.sandbox import PathError, Sandbox
from sandyard.engine.guest.users import User
from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.connect import RpcError


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A client's request. `terminal` is (columns, rows) of a PTY."""

    command: str
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    tag: str | None
    stdin: bool
    terminal: tuple[int, int] | None

    @classmethod
    def parse(cls, message: protojson.Message) -> StartRequest:
        """Parse a message. Raises RpcError or FieldError if it is invalid. Without the field `stdin`, stdin is open."""
        process = protojson.get_message(message, "process") or {}
        pty = protojson.get_message(message, "pty")
        size = (protojson.get_message(pty, "size") or {}) if pty is not None else None
        command = protojson.get_text(process, "cmd")
        if not command:
            raise RpcError("invalid_argument", "the request has no command: set process.cmd")
        return cls(
            command=command,
            args=tuple(protojson.get_texts(process, "args")),
            env=protojson.get_text_map(process, "envs"),
            cwd=protojson.get_text(process, "cwd"),
            tag=None if protojson.get_value(message, "tag") is None else protojson.get_text(message, "tag"),
            stdin=protojson.get_value(message, "stdin") is None or protojson.get_flag(message, "stdin"),
            terminal=None if size is None else (protojson.get_uint32(size, "cols"), protojson.get_uint32(size, "rows")),
        )

    def get_config(self) -> dict[str, Any]:
        """Return the configuration as shown by `List`."""
        config: dict[str, Any] = {"cmd": self.command}
        if self.args:
            config["args"] = list(self.args)
        if self.env:
            config["envs"] = self.env
        if self.cwd:
            config["cwd"] = self.cwd
        return config


class Launcher:
    """Starts the processes that clients request."""

    def __init__(
        self, loop: Loop, sandbox: Sandbox, registry: Registry, waiter: Waiter, file_limits: FileLimits
    ) -> None:
        self._loop = loop
        self._sandbox = sandbox
        self._registry = registry
        self._waiter = waiter
        self._spawner = Spawner(switch_user=sandbox.can_switch_user, file_limits=file_limits)
        self._budget = Budget()

    def start(self, request: StartRequest, user: User) -> Process:
        """Start a process and register it. Raises RpcError if it cannot be started."""
        try:
            cwd = self._sandbox.resolve(request.cwd, user)
        except PathError as error:
            raise RpcError("invalid_argument", str(error)) from None
        program = Program(
            (request.command, *request.args), self._environment(request, user), self._sandbox.to_host_path(cwd)
        )
        try:
            if request.terminal is None:
                return self._start_with_pipes(request, program, user)
            return self._start_on_terminal(request, program, user, request.terminal)
        except NoDirectoryError:
            raise RpcError("invalid_argument", f"cwd '{cwd}' does not exist") from None
        except SpawnError as error:
            raise RpcError("resource_exhausted" if error.exhausted else "invalid_argument", str(error)) from None
        except OSError as error:
            raise RpcError("resource_exhausted", f"error starting process: {error.strerror}") from None

    def _environment(self, request: StartRequest, user: User) -> dict[str, str]:
        """Return the process's environment. It contains nothing of the agent's own."""
        env = {
            "PATH": DEFAULT_PATH,
            "HOME": self._sandbox.to_host_path(user.home),
            "USER": user.name,
            "LOGNAME": user.name,
            "SHELL": user.shell,
        }
        env.update(self._sandbox.defaults.env)
        if request.terminal is not None:
            env.setdefault("TERM", "xterm-256color")
        env.update(request.env)
        return env

    def _start_with_pipes(self, request: StartRequest, program: Program, user: User) -> Process:
        agent_ends: list[int] = []
        process_ends: list[int] = []
        try:
            stdin = 0  # the agent's own stdin, which is /dev/null
            for _ in ("stdout", "stderr"):
                read, write = os.pipe2(os.O_CLOEXEC)
                agent_ends.append(read)
                process_ends.append(write)
            if request.stdin:
                stdin, write = os.pipe2(os.O_CLOEXEC)
                agent_ends.append(write)
                process_ends.append(stdin)
            pid = self._spawner.spawn(program, user, (stdin, process_ends[0], process_ends[1]))
        except BaseException:
            _close_all(agent_ends)
            raise
        finally:
            _close_all(process_ends)
        process = self._register(pid, request)
        process.read_output(agent_ends[0], "stdout")
        process.read_output(agent_ends[1], "stderr")
        if request.stdin:
            process.stdin = Input(self._loop, agent_ends[2])
        return process

    def _start_on_terminal(self, request: StartRequest, program: Program, user: User, size: tuple[int, int]) -> Process:
        columns, rows = size
        master, slave = os.openpty()
        agent_ends = [master]
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows & 0xFFFF, columns & 0xFFFF, 0, 0))
            agent_ends.append(os.dup(master))
            pid = self._spawner.spawn_on_terminal(program, user, slave)
        except BaseException:
            _close_all(agent_ends)
            raise
        finally:
            os.close(slave)
        process = self._register(pid, request)
        process.terminal = Input(self._loop, agent_ends[1])
        process.read_output(master, "pty")
        return process

    def _register(self, pid: int, request: StartRequest) -> Process:
        process = Process(
            self._loop,
            pid,
            config=request.get_config(),
            tag=request.tag,
            budget=self._budget,
            on_end=self._registry.record_end,
        )
        self._registry.add(process)
        self._waiter.expect(pid, process.set_exit_status)
        return process


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
