"""Create, use and remove sandboxes for `SANDYARD_SOAK_S` (30) seconds: the engine uses no more of anything than it did before."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from e2b import Sandbox

from sandyard.engine.drivers.machine.net.names import Names
from tests.harness.engine import Engine, serving
from tests.harness.platform import until
from tests.proof.record import record

SECONDS = float(os.environ.get("SANDYARD_SOAK_S", "30"))
WORKERS = 4
POOL_SIZE = 2
WARM_UP_ROUNDS = 5
"""Rounds of each worker before the first measurement: caches fill, and the allocator takes its memory."""
SPARE = {"descriptors": 8, "threads": 4, "memory_mb": 40, "disk_mb": 64}
"""How much more may be in use afterwards: kept connections, thread pools, and what the allocator does not return."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 + 2 * SECONDS)]


@dataclass(frozen=True)
class Usage:
    """The resources that the engine uses with no sandboxes but those of the pool."""

    memory_mb: int
    descriptors: int
    threads: int
    processes: int
    mounts: int
    cgroups: int
    interfaces: int
    disk_mb: int

    @classmethod
    def measure(cls, engine: Engine) -> Usage:
        assert engine.process
        process = Path("/proc", str(engine.process.pid))
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        disk = os.statvfs(engine.data / "store")
        instance = json.loads((engine.data / "instance.json").read_text())
        prefix = Names.for_instance(instance["name"]).prefix
        return cls(
            memory_mb=int(status["VmRSS"].split()[0]) >> 10,
            descriptors=len(list((process / "fd").iterdir())),
            threads=int(status["Threads"]),
            processes=len(list(_list_processes(instance["name"]))),
            mounts=sum(str(engine.data) in line for line in (process / "mountinfo").read_text().splitlines()),
            cgroups=sum(len(list(Path(folder).rglob("*/"))) for folder in set(instance["cgroups"].values())),
            interfaces=len(list(Path("/sys/class/net").glob(f"{prefix}*"))),
            disk_mb=(disk.f_blocks - disk.f_bfree) * disk.f_frsize >> 20,
        )


def _list_processes(instance: str) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"/sandyard-{instance}/" in (process / "cgroup").read_text():
                yield int(process.name)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE=str(POOL_SIZE), DEFAULT_MEMORY_MB="128", DEFAULT_DISK_MB="256") as engine:
        yield engine


def _use_sandboxes() -> int:
    """Take a sandbox through everything that can be done with it. Return how many sandboxes there were."""
    sandbox = Sandbox.create(timeout=600)
    sandbox.files.write("/home/user/a", "a" * 100_000)
    assert sandbox.commands.run("cat a | wc -c").stdout.strip() == "100000"
    background = sandbox.commands.run("sleep 600", background=True, timeout=0)
    sandbox.pause()
    sandbox.connect(timeout=600)
    snapshot = sandbox.create_snapshot()
    (fork,) = sandbox.fork(timeout=600)
    assert isinstance(fork, Sandbox)
    copy = Sandbox.create(snapshot.snapshot_id, timeout=600)
    assert copy.files.read("/home/user/a") == fork.files.read("/home/user/a") == "a" * 100_000
    background.disconnect()
    for used in (copy, fork, sandbox):
        used.kill()
    Sandbox.delete_snapshot(snapshot.snapshot_id)
    return 3


def _wait_until_idle(engine: Engine) -> Usage:
    """Return what is used once it has not changed for a while: removing goes on in the background."""
    usage = [Usage.measure(engine)]

    def is_stable() -> Usage | None:
        time.sleep(1)
        usage.append(Usage.measure(engine))
        recent = [asdict(known) | {"memory_mb": 0, "disk_mb": 0} for known in usage[-5:]]
        return usage[-1] if len(usage) > 5 and all(known == recent[0] for known in recent) else None

    settled = until(is_stable, 120)
    assert isinstance(settled, Usage)
    return settled


def test_an_engine_does_not_grow(engine: Engine) -> None:
    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(lambda _: _use_sandboxes(), range(WORKERS * WARM_UP_ROUNDS)))
        before, deadline = _wait_until_idle(engine), time.monotonic() + SECONDS

        def work(_: int) -> int:
            count = 0
            while time.monotonic() < deadline:
                count += _use_sandboxes()
            return count

        sandboxes = sum(workers.map(work, range(WORKERS)))
    after = _wait_until_idle(engine)
    grown = {name: getattr(after, name) - value for name, value in asdict(before).items()}
    print(f"{sandboxes} sandboxes in {SECONDS:.0f} s: {before} → {after}")
    assert all(more <= SPARE.get(name, 0) for name, more in grown.items()), f"{before} → {after}"
    record({"sandboxes": sandboxes}, before=_describe(before), after=_describe(after))


def _describe(usage: Usage) -> str:
    return ", ".join(
        f"{value} {name.removesuffix('_mb') + ' MB' if name.endswith('_mb') else name}"
        for name, value in asdict(usage).items()
    )
