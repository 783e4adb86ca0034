"""The real thing in small: a process with real agents is killed with -9 at random moments, again and again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition
from sandyard.engine.drivers.fake import processes
from tests.integration.engine.sandboxes.crashing import opened

KILLS = 5


def live_and_die(path: Path, seed: int, pick: random.Random) -> list[list[str]]:
    """Start it, let it answer a few times, kill it some moment later. What it said."""
    command = [sys.executable, "-m", "tests.integration.engine.sandboxes.crashing", str(path), str(seed)]
    root = Path(__file__).parents[4]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as engine:
        said = [engine.stdout.readline() for _ in range(1 + pick.randrange(15))]
        assert said[0] == "open\n"
        time.sleep(pick.uniform(0, 0.3))
        engine.kill()
        said += engine.stdout.read().splitlines()
    return [line.split() for line in said if line.count(" ") == 1]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nothing_is_lost_and_nothing_is_left(tmp_path: Path) -> None:
    pick = random.Random(7)
    exist: set[str] = set()
    maybe_gone: set[str] = set()
    gone: set[str] = set()
    asleep: set[str] = set()
    for number in range(KILLS):
        waking: Counter[str] = Counter()  # while somebody wakes it, nobody knows whether a pause came before or after
        for word, sandbox_id in live_and_die(tmp_path, number, pick):
            if word == "created":
                exist.add(sandbox_id)
            elif word == "killing":
                maybe_gone.add(sandbox_id)
            elif word == "killed":
                gone.add(sandbox_id)
            elif word == "paused" and not waking[sandbox_id]:
                asleep.add(sandbox_id)
            elif word == "waking":
                asleep.discard(sandbox_id)
                waking[sandbox_id] += 1
            elif word == "awake":
                waking[sandbox_id] -= 1
    service, driver, database, data = await opened(tmp_path, pool_size=0)
    try:
        records = {record.id: record for record in service.list().items}
        assert exist - maybe_gone <= set(records), "a sandbox that was answered is gone"
        assert not gone & set(records), "a sandbox that was killed is back"
        assert len(exist) >= 4, "nothing happened, so nothing was tested"
        assert all(not records[sandbox_id].running for sandbox_id in asleep & set(records) - maybe_gone)
        agrees = {None: Condition.RUNNING, "memory": Condition.FROZEN, "filesystem": Condition.STOPPED}
        for record in records.values():
            assert await driver.condition(record.handle) is agrees[record.pause_kind]
        assert {path.name for path in driver._files.sandboxes.iterdir()} == set(records)
        for sandbox_id in records:
            await service.kill(sandbox_id)
    finally:
        await service.close()
        database.close()
        data.unlock()
        await driver.open([], [])
    left = [
        process.pid
        for process in processes.all_processes()
        if str(tmp_path) in " ".join(processes.command_line(process.pid))
    ]
    assert left == []
