"""Stands in for an engine process, so that tests can start one on a yard and kill it.

`python -m tests.conformance.engine KIND DATA_DIR LAYER adopt HANDLES SNAPSHOTS` opens the driver, prints as JSON in
which condition each sandbox was found and what `cat file` says in it, and ends. `… work` makes sandboxes, forks,
pauses and kills them until it is killed itself, and prints the handle of each that an engine would have stored.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from sandyard.engine.contract import Condition, Driver, Handle, Spec
from tests.conformance.agent import Agent
from tests.conformance.yard import as_json, make_driver


async def adopt(driver: Driver, keep: list[Handle], snapshots: list[str]) -> None:
    found = await driver.open(keep, snapshots)
    report = {}
    for handle in keep:
        content = None
        if found[handle.id] is Condition.RUNNING:
            content = (await Agent(driver, handle).run("cat file")).out
        report[handle.id] = [found[handle.id].value, content]
    await driver.close()
    print(json.dumps(report))


async def work(driver: Driver, layer: str) -> None:
    await driver.open([], [])
    print("open", flush=True)

    async def one(number: int) -> None:
        rng = random.Random(number)
        for turn in range(1000):
            handle = await driver.create(Spec(f"w{number}t{turn}", (layer,)))
            await Agent(driver, handle).run("echo alive > file")
            print(as_json(handle), flush=True)
            match rng.randrange(4):
                case 0:
                    await driver.freeze(handle)
                    await driver.thaw(handle)
                case 1:
                    fork = await driver.fork(handle, Spec(f"w{number}f{turn}", (layer,)))
                    print(as_json(fork), flush=True)
                case 2:
                    await driver.snapshot(handle, f"w{number}s{turn}")
                case _:
                    await driver.kill(await driver.stop(handle))

    await asyncio.gather(*(one(number) for number in range(4)))


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
