"""gVisor beside namespaces: the same measurements at both isolation levels. The floor of each row is the namespaces' value."""

from __future__ import annotations

import asyncio

from e2b import Sandbox

from bench import measures
from bench.processes import Endpoint, available_bytes, engine, settle
from bench.report import Row, median

CREATES = 5  # fewer than the pool holds, because refilling it with gVisor takes a second for each sandbox
IDLE = 20
MEMORY_TARGET_MB = 35


def measure(rounds: int) -> list[Row]:
    low, high = (_measure_level(level, rounds) for level in ("namespace", "gvisor"))
    targets = {"create → first output, from the pool": 3 * low["create → first output, from the pool"]}
    targets |= {"pause": 5.0, "resume": 5.0}
    rows = [Row(f"gVisor: {what}, p50", value, "ms", low[what], targets.get(what)) for what, value in high.items()]
    return [*rows, *_measure_forks(max(3, rounds // 20)), *_measure_memory()]


def _measure_forks(rounds: int) -> list[Row]:
    """Measure forks with memory, which namespaces do not support."""
    with engine("--min-isolation", "gvisor", "--pool-size", "0") as endpoint:
        endpoint.use()
        sandbox = Sandbox.create(timeout=600)
        measures.hold_200_mb(sandbox)
        measures.fork_many_to_output(sandbox, 1)
        single = median([measures.fork_many_to_output(sandbox, 1) for _ in range(rounds)])
        four = median([measures.fork_many_to_output(sandbox, 4) for _ in range(rounds)])
        sandbox.kill()
    return [
        Row("gVisor: fork with 200 MB of memory → first output, p50", single, "ms", None, 1000.0),
        Row("gVisor: 4 such forks at once → first output of all, p50", four, "ms", None, 3000.0),
    ]


def _measure_level(level: str, rounds: int) -> dict[str, float]:
    with engine("--min-isolation", level) as endpoint:
        endpoint.use()
        measures.create_to_output(CREATES)
        creates: list[float] = []
        for _ in range(max(1, rounds // 40)):
            settle(endpoint)
            creates += measures.create_to_output(CREATES)
        settle(endpoint)
        sandbox = Sandbox.create(timeout=600)
        values = {
            "create → first output, from the pool": median(creates),
            "exec of true": median(measures.execs(sandbox, rounds)),
        }
        pauses, resumes = measures.pause_resume(sandbox, rounds)
        values |= {"pause": median(pauses), "resume": median(resumes)}
        values["fork → first output"] = median(measures.fork_to_output(sandbox, max(3, rounds // 20)))
        sandbox.kill()
    with engine("--min-isolation", level, "--pool-size", "0") as endpoint:
        endpoint.use()
        measures.create_to_output(2)
        values["create → first output, no pool"] = median(measures.create_to_output(max(5, rounds // 10)))
    return values


def _measure_memory() -> list[Row]:
    with engine("--min-isolation", "gvisor", "--pool-size", "0") as endpoint:
        endpoint.use()
        measures.create_to_output(1)
        settle(endpoint)
        each = _measure_idle(endpoint)
    note = f"of {IDLE}, all of it, kernel included"
    return [Row("gVisor: memory of an idle sandbox", each, "MB", None, MEMORY_TARGET_MB, note=note)]


def _measure_idle(endpoint: Endpoint) -> float:
    before = available_bytes()
    sandboxes = asyncio.run(measures.make_idle(IDLE))
    settle(endpoint)
    each = (before - available_bytes()) / measures.MB / IDLE
    asyncio.run(measures.kill_all(sandboxes))
    return each
