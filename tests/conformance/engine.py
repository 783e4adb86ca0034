"""A stand-in for an engine process that tests can start on a driver's data directory and kill.

`python -m tests.conformance.engine KIND DATA_DIR LAYER adopt HANDLES SNAPSHOTS` opens the driver, prints as JSON the
condition of each sandbox and the output of `cat file` in it, and exits. `… work` creates, forks, freezes and kills
sandboxes until it is killed itself, and prints the handle of each sandbox that an engine would have stored.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from sandyard.engine.contract import Condition, Driver, Handle, Spec
from tests.conformance.guest_agent import GuestAgent
from tests.conformance.harness import as_json, make_driver


async def adopt(driver: Driver, keep: list[Handle], snapshots: list[str]) -> None:
    conditions = await driver.open(keep, snapshots)
    report = {}
    for handle in keep:
        content = None
        if conditions[handle.id] is Condition.RUNNING:
            content = (await GuestAgent(driver, handle).run("cat file")).out
        report[handle.id] = [conditions[handle.id].value, content]
    await driver.close()
    print(json.dumps(report))


async def work(driver: Driver, layer: str) -> None:
    await driver.open([], [])
    print("open", flush=True)

    async def create_sandboxes(number: int) -> None:
        rng = random.Random(number)
        for round_number in range(1000):
            handle = await driver.create(Spec(f"w{number}t{round_number}", (layer,)))
            await GuestAgent(driver, handle).run("echo alive > file")
            print(as_json(handle), flush=True)
            match rng.randrange(4):
                case 0:
                    await driver.freeze(handle)
                    await driver.thaw(handle)
                case 1:
                    fork = await driver.fork(handle, Spec(f"w{number}f{round_number}", (layer,)))
                    print(as_json(fork), flush=True)
                case 2:
                    await driver.snapshot(handle, f"w{number}s{round_number}")
                case _:
                    await driver.kill(await driver.stop(handle))

    await asyncio.gather(*(create_sandboxes(number) for number in range(4)))


def main() -> None:
    kind, data_dir, layer, verb, *rest = sys.argv[1:]
    driver = make_driver(kind, Path(data_dir), (layer,))
    if verb == "adopt":
        keep = [Handle(**item) for item in json.loads(rest[0])]
        asyncio.run(adopt(driver, keep, json.loads(rest[1])))
    else:
        asyncio.run(work(driver, layer))


if __name__ == "__main__":
    main()
