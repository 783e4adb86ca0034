"""`make bench`: measure, print the table, write JSON beside it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from bench import agents, cluster, git, interpreter, isolation, large, measures, output, platform, tasks, templates, web
from bench.processes import engine, floor, settle
from bench.report import Row, machine, median, percentile, table, write

PARTS = ["engine", "isolation", "cluster", "e2b", "platform", "git", "large", "output", "tasks", "agents", "web"]


def print_progress(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 100 idle sandboxes instead of 1,000")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="the folder for the JSON")
    options = parser.parse_args()
    rounds, many = (40, 100) if options.quick else (200, 1000)
    if options.only in (None, "engine"):
        rows = measure_engine(rounds, many, measure_floor(rounds))
        show("the engine", rows, options.out / "engine.json")
    if options.only in (None, "isolation"):
        print_progress("gVisor beside namespaces")
        show("isolation levels", isolation.measure(rounds), options.out / "isolation.json")
    if options.only in (None, "cluster"):
        print_progress("a host beside the engine's own machine; many simulated hosts")
        show("the cluster", [*cluster.measure(rounds), *cluster.measure_many(rounds)], options.out / "cluster.json")
    if options.only in (None, "e2b"):
        print_progress("templates and the code interpreter")
        show("templates and the code interpreter", measure_e2b(rounds), options.out / "e2b.json")
    if options.only in (None, "platform"):
        print_progress("the platform: reads, commands, events")
        show("the platform", platform.measure(rounds), options.out / "platform.json")
    if options.only in (None, "git"):
        print_progress("git: a repository of 50 MB into a sandbox")
        show("git", git.measure(rounds), options.out / "git.json")
    if options.only in (None, "large"):
        print_progress("the first task on a repository of 50,000 files")
        show("a large repository", large.measure(rounds), options.out / "large.json")
    if options.only in (None, "output"):
        print_progress("500 MB of output of one command")
        show("output", output.measure(rounds), options.out / "output.json")
    if options.only in (None, "tasks"):
        print_progress("tasks: from a card to the agent's first command, and many at once")
        show("tasks", tasks.measure(rounds), options.out / "tasks.json")
    if options.only in (None, "agents"):
        print_progress("agents: from a card to the first command of each")
        show("agents", agents.measure(rounds), options.out / "agents.json")
    if options.only in (None, "web"):
        print_progress("the web: weight and frames, in a real Chromium")
        show("the web", web.measure(rounds), options.out / "web.json")
    return 0


def show(part: str, rows: list[Row], out: Path) -> None:
    print(f"\n{part}, on {machine()}\n\n{table(rows)}\n")
    write(rows, out)
    print(f"written to {out}")


def measure_floor(rounds: int) -> dict[str, float]:
    """Measure the same code against a server that does nothing."""
    print_progress("floors: a bare spawn; the SDK against a server that does nothing")
    low = {"spawn": median(measures.spawn(rounds))}
    with floor() as endpoint:
        endpoint.use()
        measures.create_to_output(5)
        sequential = measures.create_to_output(rounds)
        low["create"], low["create99"] = median(sequential), percentile(sequential, 0.99)
        low["burst99"] = percentile(asyncio.run(measures.burst(100)), 0.99)
        sandbox = measures.Sandbox.create()
        low["exec"] = median(measures.execs(sandbox, rounds))
        pauses, resumes = measures.pause_resume(sandbox, rounds)
        low["pause"], low["resume"] = median(pauses), median(resumes)
        low["fork"] = median(measures.fork_to_output(sandbox, rounds))
        up, down = measures.transfer(sandbox, 5)
        low["up"], low["down"] = median(up), median(down)
    return low


def measure_e2b(rounds: int) -> list[Row]:
    with floor() as endpoint:
        endpoint.use()
        floors = templates.low(rounds)
    with engine() as endpoint:
        endpoint.use()
        return [*interpreter.measure(rounds), *templates.measure(endpoint, rounds, floors)]


def measure_engine(rounds: int, many: int, low: dict[str, float]) -> list[Row]:
    rows: list[Row] = []
    with engine() as endpoint:
        endpoint.use()
        measures.create_to_output(5)
        settle(endpoint)
        print_progress("create → first output")
        sequential = measures.create_to_output(rounds)
        rows.append(Row("create → first output, p50", median(sequential), "ms", low["create"], 8))
        rows.append(Row("create → first output, p99", percentile(sequential, 0.99), "ms", low["create99"], 40))
        print_progress("100 at once")
        settle(endpoint)
        rows.append(
            Row("100 at once, p99", percentile(asyncio.run(measures.burst(100)), 0.99), "ms", low["burst99"], 500)
        )
        settle(endpoint)
        sandbox = measures.Sandbox.create(timeout=600)
        print_progress("exec, pause, resume")
        rows.append(Row("exec of true, p50", median(measures.execs(sandbox, rounds)), "ms", low["exec"], 3))
        pauses, resumes = measures.pause_resume(sandbox, rounds)
        rows.append(Row("pause, p50", median(pauses), "ms", low["pause"], 5))
        rows.append(Row("resume, p50", median(resumes), "ms", low["resume"], 5))
        print_progress("fork with 200 MB changed")
        measures.change_200_mb(sandbox)
        rows.append(
            Row(
                "fork → first output, p50", median(measures.fork_to_output(sandbox, rounds // 4)), "ms", low["fork"], 20
            )
        )
        print_progress("100 MB up and down")
        up, down = measures.transfer(sandbox, 5)
        rows.append(Row("upload, 100 MB", median(up), "MB/s", low["up"], 300, more_is_better=True))
        rows.append(Row("download, 100 MB", median(down), "MB/s", low["down"], 300, more_is_better=True))
        sandbox.kill()
    with engine("--pool-size", "0") as endpoint:
        endpoint.use()
        print_progress("create → first output, without a pool")
        measures.create_to_output(5)
        bare = measures.create_to_output(rounds)
        rows.append(Row("create → first output, no pool, p50", median(bare), "ms", low["create"], None))
        print_progress(f"{many} idle sandboxes")
        settle(endpoint)
        seconds, private, each = measures.idle(endpoint, many)
        rows.append(Row("private memory of an idle sandbox", private, "MB", None, 4))
        rows.append(
            Row(f"{many} idle sandboxes, memory each", each, "MB", None, None, note="all of it, kernel included")
        )
        rows.append(Row(f"{many} idle sandboxes, made in", seconds, "s", None, None))
    rows.append(Row("a bare spawn of echo on the host", low["spawn"], "ms", None, None))
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
