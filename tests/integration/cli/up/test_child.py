"""One child of `sandyard up`: as whom it runs, and what it can't be."""

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


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
async def test_it_runs_as_another_user(lock: int, tmp_path: Path) -> None:
    heard: list[str] = []
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
        heard.append,
        heard.append,
    )
    starting = asyncio.create_task(child.first())
    async with asyncio.timeout(30):
        while len(heard) < 2:
            await asyncio.sleep(0.02)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await child.stop(asyncio.Event())
    nobody = pwd.getpwnam("nobody")
    assert heard[:2] == [str(nobody.pw_uid), str(nobody.pw_gid)], "and none of root's groups"
    assert child.process is not None
    assert child.process.returncode is not None


async def test_what_cannot_be_started(lock: int) -> None:
    child = Child("engine", ["/no/such/program"], {}, NOWHERE, 204, lock, lambda line: None)
    with pytest.raises(CommandError, match=r"Could not start the engine: .*no/such/program"):
        await child.first()
    await child.stop(asyncio.Event())


async def test_a_line_without_end_is_heard_in_pieces(lock: int) -> None:
    heard: list[str] = []
    script = "head -c 300000 /dev/zero | tr '\\0' x; echo; printf 'no end'; exit 3"
    child = Child(
        "engine", ["/bin/sh", "-c", script], {"PATH": os.environ["PATH"]}, NOWHERE, 204, lock, print, heard.append
    )
    with pytest.raises(CommandError, match="exit code 3"):
        await child.first()
    assert "".join(heard) == "x" * 300000 + "no end"
    await child.stop(asyncio.Event())


async def test_what_it_has_left_behind_hides_its_end_from_nobody(lock: int) -> None:
    """Neither of one that is killed, nor of one that is stopped."""
    said: list[str] = []
    heard: asyncio.Queue[str] = asyncio.Queue()
    command = ["/bin/sh", "-c", "sleep 1000 & echo $!; wait"]
    child = Child("engine", command, {"PATH": os.environ["PATH"]}, NOWHERE, 204, lock, said.append, heard.put_nowait)
    starting = asyncio.create_task(child.first())
    left = [int(await heard.get())]
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    keeping = asyncio.create_task(child.keep())
    try:
        async with asyncio.timeout(30):
            assert child.process is not None
            child.process.kill()
            left.append(int(await heard.get()))  # of the next one
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await child.stop(asyncio.Event())
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})  # who listens hears the end
    assert said == ["The engine ended: killed by SIGKILL. Restarting in 0.5 s.", "Stopping the engine."]
