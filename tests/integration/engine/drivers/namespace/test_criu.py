"""Save the memory of processes to disk and restore it with CRIU. Tests of real processes are skipped where CRIU does not work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.drivers.namespace.criu import probe, scan
from sandyard.engine.drivers.namespace.criu.checkpoint import Criu, Frozen, RestoreTarget, explain_failure
from sandyard.kit.errors import NoSpaceError, UnsupportedError

# The program that runs as the guest agent: a child that counts in shared memory, a thread, a deleted file, a pipe with data in it.
AGENT = r"""
import ctypes, json, mmap, os, select, sys, threading, time
from sandyard.engine.drivers.namespace.criu import probe

def serve(listener):
    shared = mmap.mmap(-1, 4096)
    secret = os.urandom(1 << 20)
    deleted = open("/deleted", "w+")
    deleted.write("still here"); deleted.flush(); os.unlink("/deleted")
    reader, writer = os.pipe()
    os.write(writer, b"in the pipe")
    child = os.fork()
    if child == 0:
        while True:
            shared[0:8] = (int.from_bytes(shared[0:8], "little") + 1).to_bytes(8, "little")
            time.sleep(0.001)
    turns = [0]
    def turn():
        while True:
            turns[0] += 1
            time.sleep(0.001)
    threading.Thread(target=turn, daemon=True).start()
    while True:
        select.select([listener], [], [])
        client, _ = listener.accept()
        client.setblocking(True)
        with client:
            asked = client.recv(100)
            if asked == b"sysv":
                libc = ctypes.CDLL(None)
                libc.shmat.restype = ctypes.c_void_p
                libc.shmat(libc.shmget(0, 4096, 0o1600), None, 0)
            if asked == b"pipe":
                client.sendall(os.read(reader, 100))
            elif asked:
                deleted.seek(0)
                answer = {"pid": os.getpid(), "child": child, "secret": hash(secret), "deleted": deleted.read(),
                          "count": int.from_bytes(shared[0:8], "little"), "turns": turns[0], "time": time.monotonic()}
                client.sendall(json.dumps(answer).encode())

probe.main(serve)
"""


class Sandbox:
    def __init__(self, criu: Criu, folder: Path, freezer: Path) -> None:
        self.criu, self.folder, self.freezer = criu, folder, freezer
        self.images = folder / "images" / "one"
        self.socket = folder / "agent.sock"
        self.pid = 0

    async def start(self) -> None:
        self.pid = await probe.start(self.folder, "live", self.freezer, f"exec({AGENT!r})")

    async def request(self, question: bytes = b"state") -> bytes:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        writer.write(question)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer

    async def get_state(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self.request())
        return answer

    def freeze(self) -> None:
        probe.set_frozen(self.freezer, frozen=True)

    def thaw(self) -> None:
        probe.set_frozen(self.freezer, frozen=False)

    async def dump(self) -> None:
        self.freeze()
        await self.criu.dump(Frozen(self.pid, self.freezer), self.images)

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.thaw()
        await asyncio.to_thread(probe.kill_all, self.freezer)

    async def restore(self) -> None:
        holder = await probe.start(self.folder, "hold", self.freezer)
        try:
            target = RestoreTarget(holder, self.folder / "stage/root", (self.freezer,), self.socket)
            self.pid = await self.criu.restore(self.images, target)
        finally:
            os.kill(holder, signal.SIGKILL)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    try:
        criu = await probe.find_working()
    except UnsupportedError as error:
        pytest.skip(error.message)
    with tempfile.TemporaryDirectory(prefix="sandyard-test-criu-") as name, probe.freezer_group() as freezer:
        Path(name).chmod(0o711)
        created = Sandbox(criu, Path(name), freezer)
        await created.start()
        yield created


async def test_processes_are_restored_as_they_were(sandbox: Sandbox) -> None:
    before = await sandbox.get_state()
    await sandbox.dump()
    await sandbox.kill()
    await sandbox.restore()
    after = await sandbox.get_state()
    assert (after["pid"], after["child"]) == (1, before["child"])
    assert after["secret"] == before["secret"]
    assert after["deleted"] == "still here"
    assert after["count"] >= before["count"]
    assert after["time"] > before["time"], "the clock must not go back"
    assert await sandbox.request(b"pipe") == b"in the pipe"
    while (later := await sandbox.get_state())["count"] == after["count"] or later["turns"] == after["turns"]:
        await asyncio.sleep(0.001)  # the child and the thread must continue; otherwise the test times out


async def test_restored_processes_can_be_dumped_again(sandbox: Sandbox) -> None:
    before = await sandbox.get_state()
    for _ in range(3):
        await sandbox.dump()
        await sandbox.kill()
        await sandbox.restore()
    assert (await sandbox.get_state())["secret"] == before["secret"]


async def test_processes_inside_cannot_inspect_the_restored_agent(sandbox: Sandbox) -> None:
    users = Path(f"/proc/{sandbox.pid}/uid_map").read_text()
    await sandbox.dump()
    await sandbox.kill()
    await sandbox.restore()
    status = Path(f"/proc/{sandbox.pid}/status").read_text()
    assert "Seccomp:\t2" in status
    assert Path(f"/proc/{sandbox.pid}/uid_map").read_text() == users
    # As root of its user namespace, with every capability in it.
    inside = await asyncio.create_subprocess_exec(
        *("nsenter", f"--user=/proc/{sandbox.pid}/ns/user", "readlink", f"/proc/{sandbox.pid}/exe"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, _ = await inside.communicate()
    assert (inside.returncode, output) == (1, b"")


async def test_a_dump_leaves_the_sandbox_frozen_and_intact(sandbox: Sandbox) -> None:
    before = await sandbox.get_state()
    await sandbox.dump()
    assert {path.name for path in sandbox.images.parent.iterdir()} == {"one", "library"}
    assert sandbox.images.stat().st_mode & 0o777 == 0o700
    assert _is_frozen(sandbox.freezer)
    sandbox.thaw()
    assert (await sandbox.get_state())["secret"] == before["secret"]


async def test_a_failed_dump_names_the_reason_and_leaves_the_sandbox_intact(sandbox: Sandbox) -> None:
    before = json.loads(await sandbox.request(b"sysv"))
    with pytest.raises(UnsupportedError, match="System V shared memory"):
        await sandbox.dump()
    assert _is_frozen(sandbox.freezer)
    assert {path.name for path in sandbox.images.parent.iterdir()} == {"library"}
    sandbox.thaw()
    assert (await sandbox.get_state())["secret"] == before["secret"]


async def test_a_dump_with_an_open_connection_fails_with_that_reason(sandbox: Sandbox) -> None:
    reader, writer = await asyncio.open_unix_connection(sandbox.socket)
    while not scan.list_connections(sandbox.pid):
        await asyncio.sleep(0.001)
    with pytest.raises(UnsupportedError, match="1 connections to its agent are still open"):
        await sandbox.dump()
    sandbox.thaw()
    writer.close()
    await reader.read()
    while scan.list_connections(sandbox.pid):
        await asyncio.sleep(0.001)
    await sandbox.dump()


async def test_a_failed_restore_keeps_the_images(sandbox: Sandbox) -> None:
    before = await sandbox.get_state()
    await sandbox.dump()
    await sandbox.kill()
    core = sandbox.images / "criu" / "core-1.img"
    moved = core.rename(core.with_suffix(".aside"))
    with pytest.raises(UnsupportedError, match="can't be restored"):
        await sandbox.restore()
    await asyncio.to_thread(probe.kill_all, sandbox.freezer)  # a helper of CRIU may take a moment longer to end
    moved.rename(core)
    await sandbox.restore()
    assert (await sandbox.get_state())["secret"] == before["secret"]


async def test_a_dump_can_be_restored_after_an_upgrade_of_the_host(sandbox: Sandbox) -> None:
    before = await sandbox.get_state()
    await sandbox.dump()
    await sandbox.kill()
    facts = json.loads((sandbox.images / "sandbox.json").read_text())
    for file in facts["files"]:
        file["mtime_ns"] += 1  # as if the file of the host had been replaced
    (sandbox.images / "sandbox.json").write_text(json.dumps(facts))
    await sandbox.restore()
    assert (await sandbox.get_state())["secret"] == before["secret"]
    assert f"{sandbox.folder}/images/library/" in Path(f"/proc/{sandbox.pid}/maps").read_text()


async def test_a_cancelled_dump_still_completes(sandbox: Sandbox) -> None:
    before = await sandbox.get_state()
    task = asyncio.create_task(sandbox.dump())
    while not sandbox.images.parent.exists():
        await asyncio.sleep(0.001)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert sandbox.images.exists()
    sandbox.thaw()
    assert (await sandbox.get_state())["secret"] == before["secret"]


def _is_frozen(freezer: Path) -> bool:
    new, old = freezer / "cgroup.events", freezer / "freezer.state"
    return "frozen 1" in new.read_text() if new.exists() else old.read_text().strip() == "FROZEN"


def _write_program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


async def test_find_returns_the_first_criu_that_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    old = _write_program(tmp_path / "old", "echo 'Version: 3.17.1'")
    new = _write_program(tmp_path / "new", "echo 'Version: 4.2'; echo 'GitID: v4.2'")
    found = await Criu.find([tmp_path / "none", old, new])
    assert (found.command, found.version) == ((str(new),), (4, 2))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Version: 3.17.1'", "is version 3.17.1, but 4.1 or later is required"),
        ("echo no library >&2; exit 127", "does not start"),
        (None, "CRIU is not installed on this machine"),
    ],
)
async def test_find_reports_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    candidate = _write_program(tmp_path / "criu", script) if script else tmp_path / "none"
    with pytest.raises(UnsupportedError, match=f"{reason}; run `sandyard setup criu`"):
        await Criu.find([candidate])


async def test_find_requires_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedError, match="runs as root"):
        await Criu.find([])


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("Task 7 with SysVIPC shmem map @ffff doesn't live in IPC ns", UnsupportedError, "System V shared memory"),
        ("unix: Found a closed in-flight socket to 0x3fe5d", UnsupportedError, "a connection to its agent"),
        ("pages: Can't write: No space left on device", NoSpaceError, "no space left on the disk"),
        ("something never seen", UnsupportedError, "CRIU reported: something never seen"),
    ],
)
def test_failures_of_criu_are_explained(line: str, kind: type[Exception], message: str) -> None:
    log = (
        "(00.01) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
        f"(00.02) Error (criu/sk.c:5): {line}\n(00.03) Error (criu/cr-dump.c:2111): Dumping FAILED.\n"
    )
    error = explain_failure(log, "be dumped")
    assert type(error) is kind
    assert message in error.message
    assert "RLIMIT" not in error.message


async def test_sweep_keeps_the_named_images_and_the_files_they_need(tmp_path: Path) -> None:
    for name, copy in (("kept", "a"), ("gone", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sandbox.json").write_text(json.dumps({"files": [{"copy": copy}, {"copy": None}]}))
    (tmp_path / "half.partial").mkdir()
    (tmp_path / "library").mkdir()
    for copy in "abc":
        (tmp_path / "library" / copy).touch()
    await Criu.sweep(tmp_path, ["kept"])
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "library"}
    assert [path.name for path in (tmp_path / "library").iterdir()] == ["a"]
    await Criu.sweep(tmp_path / "never made", [])
