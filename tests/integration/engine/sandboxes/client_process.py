"""A process that uses sandboxes of the fake driver until it is killed, and prints what it does: `python -m … DIR SEED`.

"created", "killed" and "paused" are printed after the service has responded, so they must hold after a crash.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.sandboxes.model import CreateSandbox
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.errors import SandyardError
from tests.unit.engine.sandboxes.harness import BASE, StaticTemplates


async def open_service(path: Path, **settings: object) -> tuple[Sandboxes, FakeDriver, Database, DataDir]:
    data = DataDir(path)
    data.lock()
    database = Database(data.database)
    database.open()
    driver = FakeDriver(path)
    values = {"data_dir": path, "pool_size": 1, "memory_reserve_mb": 0, "disk_reserve_mb": 0, **settings}
    service = Sandboxes(database, driver, StaticTemplates(BASE), EngineSettings(**values))
    await service.open()
    return service, driver, database, data


def report(*words: object) -> None:
    print(*words, flush=True)


async def run_client(service: Sandboxes, rng: random.Random) -> None:
    while True:
        records = service.list().items
        verb = (
            rng.choice(["pause", "connect", "pause", "connect", "kill", "fork", "stop"])
            if len(records) > 3
            else "create"
        )
        target = rng.choice(records).id if records else ""
        try:
            if verb == "create":
                report("created", (await service.create(CreateSandbox(timeout_s=3600))).id)
            elif verb == "pause":
                await service.pause(target)
                report("paused", target)
            elif verb == "stop":
                await service.pause(target, memory=False)
            elif verb == "connect":
                report("waking", target)
                try:
                    await service.connect(target, 3600)
                finally:
                    report("awake", target)
            elif verb == "kill":
                report("killing", target)
                await service.kill(target)
                report("killed", target)
            elif verb == "fork":
                for fork in await service.fork(target, 1, 3600):
                    if fork.sandbox is not None:
                        report("created", fork.sandbox.id)
        except SandyardError:
            await asyncio.sleep(0.01)


async def main(path: Path, seed: int) -> None:
    service, *_ = await open_service(path)
    report("open")
    rng = random.Random(seed)
    await asyncio.gather(*(run_client(service, rng) for _ in range(3)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
