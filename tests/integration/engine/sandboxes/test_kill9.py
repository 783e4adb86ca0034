"""A process with real guest agents is killed with SIGKILL at random moments, several times."""

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
from tests.integration.engine.sandboxes.client_process import open_service

KILLS = 5


def run_and_kill(path: Path, seed: int, rng: random.Random) -> list[list[str]]:
    """Start the process, read a few lines, kill it a moment later and return the events that it printed."""
    command = [sys.executable, "-m", "tests.integration.engine.sandboxes.client_process", str(path), str(seed)]
    root = Path(__file__).parents[4]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as engine:
        lines = [engine.stdout.readline() for _ in range(1 + rng.randrange(15))]
        assert lines[0] == "open\n"
        time.sleep(rng.uniform(0, 0.3))
        engine.kill()
        lines += engine.stdout.read().splitlines()
    return [line.split() for line in lines if line.count(" ") == 1]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killing_the_engine_loses_no_sandbox_and_leaves_no_process(tmp_path: Path) -> None:
    rng = random.Random(7)
    created: set[str] = set()
    maybe_killed: set[str] = set()
    killed: set[str] = set()
    paused: set[str] = set()
    for number in range(KILLS):
        connecting: Counter[str] = Counter()  # during a connect it is unknown whether a pause came before or after it
        for event, sandbox_id in run_and_kill(tmp_path, number, rng):
            if event == "created":
                created.add(sandbox_id)
            elif event == "killing":
                maybe_killed.add(sandbox_id)
            elif event == "killed":
                killed.add(sandbox_id)
            elif event == "paused" and not connecting[sandbox_id]:
                paused.add(sandbox_id)
            elif event == "waking":
                paused.discard(sandbox_id)
                connecting[sandbox_id] += 1
            elif event == "awake":
                connecting[sandbox_id] -= 1
    service, driver, database, data = await open_service(tmp_path, pool_size=0)
    try:
        records = {record.id: record for record in service.list().items}
        assert created - maybe_killed <= set(records), "every sandbox whose creation was confirmed must exist"
        assert not killed & set(records), "no sandbox whose kill was confirmed may exist"
        assert len(created) >= 4, "the test needs at least a few sandboxes"
        assert all(not records[sandbox_id].running for sandbox_id in paused & set(records) - maybe_killed)
        expected = {None: Condition.RUNNING, "memory": Condition.FROZEN, "filesystem": Condition.STOPPED}
        for record in records.values():
            assert await driver.get_condition(record.handle) is expected[record.pause_kind]
        assert {path.name for path in driver.files.sandboxes.iterdir()} == set(records)
        for sandbox_id in records:
            await service.kill(sandbox_id)
    finally:
        await service.close()
        database.close()
        data.unlock()
        await driver.open([], [])
    leftovers = [
        process.pid
        for process in processes.list_processes()
        if str(tmp_path) in " ".join(processes.read_command_line(process.pid))
    ]
    assert leftovers == []
