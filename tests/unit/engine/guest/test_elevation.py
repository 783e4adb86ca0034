"""Test who may run sudo on a kernel without set-user-id programs."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.guest import elevation
from sandyard.engine.guest.config import GuestConfig
from sandyard.engine.guest.elevation import Elevation, may_become_root
from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.sandbox import Sandbox
from sandyard.engine.guest.users import User
from sandyard.engine.guest.wire.connection import Connection

GROUPS = {27: "sudo", 1000: "user"}
ROOT = User("root", 0, 0, "/root", "/bin/sh", (0,))
USER = User("user", 1000, 1000, "/home/user", "/bin/sh", (1000, 27))


def is_allowed(etc: Path, user: User) -> bool:
    return may_become_root(user, lambda number: GROUPS.get(number, str(number)), str(etc))


@pytest.mark.parametrize(
    "line",
    [
        "user ALL=(ALL:ALL) NOPASSWD: ALL",
        "user\tALL=(ALL) NOPASSWD:ALL",
        "%sudo ALL = (ALL : ALL) NOPASSWD : ALL",
        "ALL ALL=(ALL) NOPASSWD: ALL",
    ],
)
def test_users_who_may_do_everything_without_a_password_are_allowed(tmp_path: Path, line: str) -> None:
    (tmp_path / "sudoers").write_text(f"root ALL=(ALL) ALL\n  {line}  \n")
    assert is_allowed(tmp_path, USER)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# user ALL=(ALL:ALL) NOPASSWD: ALL",
        "user ALL=(ALL:ALL) ALL",
        "user ALL=(ALL:ALL) NOPASSWD: /bin/ls",
        "user ALL=(ALL:ALL) NOPASSWD: ALL, !/bin/sh",
        "user ALL=(www) NOPASSWD: ALL",
        "user elsewhere=(ALL) NOPASSWD: ALL",
        "other ALL=(ALL) NOPASSWD: ALL",
        "%wheel ALL=(ALL) NOPASSWD: ALL",
    ],
)
def test_others_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "sudoers").write_text(f"{line}\n")
    assert not is_allowed(tmp_path, USER)
    assert is_allowed(tmp_path, ROOT)


def test_files_that_sudo_ignores_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "sudoers.d"
    folder.mkdir()
    for name in ("user.bak", "user~"):
        (folder / name).write_text("user ALL=(ALL) NOPASSWD: ALL\n")
    assert not is_allowed(tmp_path, USER)
    (folder / "user").write_text("user ALL=(ALL) NOPASSWD: ALL\n")
    assert is_allowed(tmp_path, USER)


def test_a_pipe_among_the_files_does_not_block_the_agent(tmp_path: Path) -> None:
    folder = tmp_path / "sudoers.d"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "user").write_text("user ALL=(ALL) NOPASSWD: ALL\n")
    found: list[bool] = []
    looking = threading.Thread(target=lambda: found.append(is_allowed(tmp_path, USER)), daemon=True)
    looking.start()
    looking.join(5)
    assert found == [True]


def test_a_signal_right_after_the_request_reaches_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's signal may arrive together with its request."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "etc/sudoers").write_text("ALL ALL=(ALL) NOPASSWD: ALL\n")
    loop = Loop()
    sent: list[tuple[int, int]] = []
    exits: dict[int, Callable[[int], None]] = {}

    class FakeSpawner:
        def spawn(self, _program: object, _user: object, _streams: object) -> int:
            return 4321

    class FakeWaiter:
        def expect(self, pid: int, on_exit: Callable[[int], None]) -> None:
            exits[pid] = on_exit

    def record_signal(pid: int, number: int) -> None:
        sent.append((pid, number))
        exits[pid](number)

    monkeypatch.setattr(os, "killpg", record_signal)
    monkeypatch.setattr(elevation, "SOCKET", str(tmp_path / "socket"))
    sandbox = Sandbox(GuestConfig(root=str(tmp_path)))
    spawner: Any = FakeSpawner()
    Elevation(loop, sandbox, spawner, FakeWaiter()).listen()
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(elevation.SOCKET)
    request = json.dumps({"arguments": ["true"], "env": {}, "cwd": "/"}).encode()
    data = struct.pack("!I", len(request)) + request + bytes([signal.SIGINT])
    credentials = struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())
    ancillary: list[tuple[int, int, bytes | array.array[int]]] = [
        (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials),
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2])),
    ]
    client.sendmsg([data], ancillary)

    async def main() -> bytes:
        conn = Connection(loop, client)
        assert await conn.fill(10)
        answer = conn.take(1000)
        conn.close()
        return answer

    assert json.loads(loop.run(main())) == {"status": signal.SIGINT}
    assert sent == [(4321, signal.SIGINT)]
    loop.close()
