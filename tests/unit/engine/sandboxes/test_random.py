"""Random sequences of verbs, faults, crashes and reboots: at the end records and host must agree and nothing may be
lost.

`expected` models what was acknowledged to clients: a sandbox that was acknowledged and not killed must exist.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, NetworkPolicy
from sandyard.engine.sandboxes.model import Network, OnTimeout
from sandyard.kit.errors import SandyardError
from tests.unit.engine.sandboxes.harness import SandboxesHarness

FAULTY = (
    *("create", "freeze", "thaw", "stop", "boot", "snapshot", "fork", "kill"),
    *("set_network", "condition", "connect", "suspend", "restore", "delete_snapshot"),
)


FIRST = int(os.environ.get("SANDYARD_FIRST_STORY", "0"))
STORIES = int(os.environ.get("SANDYARD_STORIES", "40"))


class Scenario:
    def __init__(self, harness: SandboxesHarness, seed: int) -> None:
        self.harness = harness
        self.random = random.Random(seed)
        self.expected: set[str] = set()  # must exist
        self.unsure: set[str] = set()  # the kill was not acknowledged
        self.snapshots: set[str] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    async def run_random_verb(self) -> None:
        service, pick = self.harness.service, self.random
        known = sorted(self.expected)
        name = pick.choice("create create pause cold connect connect fork kill snapshot network from drop".split())
        if not known:
            name = "create"
        target = pick.choice(known) if known else ""
        try:
            if name == "create":
                env = {"A": "1"} if pick.random() < 0.3 else {}
                short = pick.random() < 0.5
                created = await self.harness.create(
                    timeout_s=30 if short else 50_000,
                    on_timeout=OnTimeout.PAUSE if short else OnTimeout.KILL,
                    auto_pause_memory=pick.random() < 0.7,
                    env=env,
                )
                self.expected.add(created.id)
            elif name == "pause":
                await service.pause(target)
            elif name == "cold":
                await service.pause(target, memory=False)
            elif name == "connect":
                await service.connect(target, 50_000, memory=pick.random() < 0.8)
            elif name == "fork":
                forks = await service.fork(target, pick.choice([1, 1, 3]), 50_000)
                self.expected |= {fork.sandbox.id for fork in forks if fork.sandbox}
            elif name == "kill":
                self.expected.discard(target)
                self.unsure.add(target)
                await service.kill(target)
                self.unsure.discard(target)
            elif name == "snapshot":
                self.snapshots.add((await service.snapshot(target)).id)
            elif name == "network":
                await service.set_network(target, Network(NetworkPolicy(pick.random() < 0.5, ("1.1.1.1",))))
            elif name == "from" and self.snapshots:
                created = await self.harness.create(template=pick.choice(sorted(self.snapshots)), timeout_s=50_000)
                self.expected.add(created.id)
            elif name == "drop" and self.snapshots:
                snapshot = pick.choice(sorted(self.snapshots))
                self.snapshots.discard(snapshot)
                await service.delete_snapshot(snapshot)
        except SandyardError:
            pass

    async def take_random_step(self) -> None:
        roll = self.random.random()
        driver = self.harness.driver
        if roll < 0.75:
            task = asyncio.create_task(self.run_random_verb())
            self.tasks.add(task)
            if self.random.random() < 0.1:
                asyncio.get_running_loop().call_soon(task.cancel)
        elif roll < 0.85:
            fault, when = self.random.choice(FAULTY), self.random.choice(["before", "after"])
            if self.random.random() < 0.5:
                driver.fail(fault, self.random.choice([SandyardError("scripted failure"), RuntimeError("boom")]), when)
            else:
                driver.block(fault, when)
        elif roll < 0.95:
            driver.clear_faults()
        elif roll < 0.97:
            await self.crash(reboot=self.random.random() < 0.3)
        elif roll < 0.975:
            if self.harness.host.away:
                driver.come_back(rebooted=self.random.random() < 0.5)
            else:
                self.harness.host.away = True
        elif roll < 0.985:
            await self.harness.clock.advance(self.random.choice([1, 40, 200]))
        elif self.expected:
            victim = self.random.choice(sorted(self.expected))
            self.expected.discard(victim)
            machine = self.harness.host.machines.get(victim)
            if machine is not None and machine.condition in {Condition.RUNNING, Condition.FROZEN}:
                self.harness.host.end(victim, keep_files=self.random.random() < 0.7)
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(0)

    async def crash(self, *, reboot: bool) -> None:
        await self.harness.crash()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        if reboot:
            self.harness.host.reboot()
            self.harness.boot_id += "x"
        await self.harness.start()

    async def finish(self) -> None:
        self.harness.driver.clear_faults()
        self.harness.driver.come_back(rebooted=self.random.random() < 0.5)
        await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), 20)
        for _ in range(4):
            await self.harness.clock.advance(70)
            await self.harness.settle()
        await asyncio.wait_for(self.harness.service.components.tasks.wait(10), 20)
        await asyncio.wait_for(self.harness.service.components.background.wait(10), 20)
        await self.harness.settle()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(FIRST + number, marks=pytest.mark.slow if number >= STORIES // 2 else ())
        for number in range(STORIES)
    ],
)
async def test_records_and_host_agree_after_random_operations(tmp_path: Path, seed: int) -> None:
    harness = SandboxesHarness(
        tmp_path, suspend=seed % 2 == 0, suspend_after_s=100, kill_patience_s=0.01, pool_size=seed % 3
    )
    await harness.start()
    scenario = Scenario(harness, seed)
    for _ in range(120):
        await scenario.take_random_step()
    await scenario.finish()
    if harness.settings.pool_size:
        await harness.service.components.loops.cancel()  # no more sandboxes are prepared
        await harness.service.components.pool.drain_and_wait()
    harness.driver.overlaps.clear()
    harness.check()
    living = {item.id for item in harness.service.list().items}
    assert scenario.expected <= living, "an acknowledged sandbox is missing"
    assert set(harness.host.snapshots) >= scenario.snapshots, "an acknowledged snapshot is missing"
    for sandbox_id in living:
        await harness.service.kill(sandbox_id)
    for snapshot in harness.service.list_snapshots().items:
        await harness.service.delete_snapshot(snapshot.id)
    await harness.settle()
    assert harness.host.machines == {} and harness.host.snapshots == {}
    await harness.stop()
