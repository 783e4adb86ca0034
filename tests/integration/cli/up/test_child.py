"""One child process of `sandyard up`: its user, its output and its end."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandyard.cli.errors import CommandError
from sandyard.cli.up.account import make_stepdown_command
from sandyard.cli.up.child import Child

NOWHERE = "http://127.0.0.1:1/"


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="switches to another user")
async def test_a_child_runs_as_another_user(lock: int, tmp_path: Path) -> None:
    lines: list[str] = []
    environment = {"PATH": os.environ["PATH"], "SANDYARD_PORT": "8700"}
    command = ["/bin/sh", "-c", "id -u; id -G; exec sleep 1000"]
    os.chown(tmp_path, pwd.getpwnam("nobody").pw_uid, -1)
    child = Child(
        "platform",
        make_stepdown_command(pwd.getpwnam("nobody"), command, environment, tmp_path),
        environment,
        NOWHERE,
        200,
        lock,
        lines.append,
        lines.append,
    )
    starting = asyncio.create_task(child.start_and_wait())
    async with asyncio.timeout(30):
        while len(lines) < 2:
            await asyncio.sleep(0.02)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await child.stop(asyncio.Event())
    nobody = pwd.getpwnam("nobody")
    assert lines[:2] == [str(nobody.pw_uid), str(nobody.pw_gid)], "and no groups of root"
    assert child.process is not None
    assert child.process.returncode is not None


async def test_a_missing_program_is_reported(lock: int) -> None:
    child = Child("engine", ["/no/such/program"], {}, NOWHERE, 204, lock, lambda line: None)
    with pytest.raises(CommandError, match=r"Could not start the engine: .*no/such/program"):
        await child.start_and_wait()
    await child.stop(asyncio.Event())


async def test_a_very_long_line_is_read_in_pieces(lock: int) -> None:
    lines: list[str] = []
    script = "head -c 300000 /dev/zero | tr '\\0' x; echo; printf 'no end'; exit 3"
    child = Child(
        "engine", ["/bin/sh", "-c", script], {"PATH": os.environ["PATH"]}, NOWHERE, 204, lock, print, lines.append
    )
    with pytest.raises(CommandError, match="exit code 3"):
        await child.start_and_wait()
    assert "".join(lines) == "x" * 300000 + "no end"
    await child.stop(asyncio.Event())


async def test_processes_left_by_a_child_do_not_hide_its_end(lock: int) -> None:
    """Neither when it is killed nor when it is stopped."""
    messages: list[str] = []
    lines: asyncio.Queue[str] = asyncio.Queue()
    command = ["/bin/sh", "-c", "sleep 1000 & echo $!; wait"]
    child = Child(
        "engine", command, {"PATH": os.environ["PATH"]}, NOWHERE, 204, lock, messages.append, lines.put_nowait
    )
    starting = asyncio.create_task(child.start_and_wait())
    left = [int(await lines.get())]
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    keeping = asyncio.create_task(child.keep_running())
    try:
        async with asyncio.timeout(30):
            assert child.process is not None
            child.process.kill()
            left.append(int(await lines.get()))  # of the restarted child
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await child.stop(asyncio.Event())
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})  # the readers of the output see its end
    assert messages == ["The engine ended: killed by SIGKILL. Restarting in 0.5 s.", "Stopping the engine."]
