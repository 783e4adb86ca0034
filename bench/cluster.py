"""Sandboxes on another host beside sandboxes on the engine's own machine, and one engine with many simulated hosts.

Two engines run at the same time: one without hosts, and one whose sandboxes are all on a host, which is a process on the
same machine. Measurements alternate between them, so that both see the same load, and only their ratios are judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2b import Sandbox
from e2b.exceptions import ServiceBusyException

from bench import measures
from bench.processes import Endpoint, EngineProcess, descendants, private_bytes, settle
from bench.report import Row, median, number
from bench.simulated_hosts import register
from bench.wire import Wire
from sandyard.kit.listen import free_port

POOL = "16"
BLOCK = 8
SECONDS = 180
HOSTS, SANDBOXES, FEW = 50, 10_000, 1000
AT_ONCE = 16
MB = 1 << 20
_REMOTE = {"JOIN_ADDRESS": "127.0.0.1", "JOIN_PORT": "0", "LOCAL_SANDBOXES": "false"}


def measure(rounds: int) -> list[Row]:
    """Measure one host beside the engine's own machine."""
    local, central = EngineProcess(["--pool-size", POOL], {}), EngineProcess(["--pool-size", POOL], _REMOTE)
    host = HostProcess(central)
    try:
        for process in (local, central):
            process.start()
        host.join()
        host.start()
        wait_for(lambda: list_hosts(central)["host"]["state"] == "ready")
        wait_for(lambda: has_template(central))
        idle_bytes = measure_memory(host.pid)
        return [
            *_measure_beside(Sides(local.endpoint, central.endpoint, host.pid), rounds),
            Row(
                "memory of a host service",
                idle_bytes / MB,
                "MB",
                None,
                100,
                note="private, with its zygote, sandboxes not counted",
            ),
            *_measure_faults(central, host, rounds),
        ]
    finally:
        for process in (local, central):
            with contextlib.suppress(Exception):
                process.stop()
        host.stop()
        for process in (local, central):
            process.delete()


@dataclass(frozen=True)
class Sides:
    """The two endpoints to compare. `host`: the process id of the host service."""

    local: Endpoint
    remote: Endpoint
    host: int

    def alternate(self, blocks: int, work: Callable[[Endpoint], list[float]]) -> tuple[float, float]:
        """Return the medians of both sides, local first."""
        found: dict[str, list[float]] = {self.local.url: [], self.remote.url: []}
        for number_of_block in range(blocks):
            for side in (self.local, self.remote) if number_of_block % 2 else (self.remote, self.local):
                side.use()
                found[side.url] += work(side)
        return median(found[self.local.url]), median(found[self.remote.url])

    def settle(self, side: Endpoint) -> None:
        """Wait until the pool of a side is full."""
        settle(side if side is self.local else Endpoint(side.url, side.key, self.host))


def _measure_beside(sides: Sides, rounds: int) -> list[Row]:
    def create(side: Endpoint) -> list[float]:
        sides.settle(side)
        return measures.create_to_output(BLOCK)

    blocks = max(4, rounds // (2 * BLOCK))
    sides.alternate(2, create)
    rows = [compare("create → first output, from the pool", sides.alternate(blocks, create), 1.3)]
    kept: dict[str, Sandbox] = {}
    for side in (sides.local, sides.remote):
        side.use()
        kept[side.url] = Sandbox.create(timeout=3600)
        kept[side.url].files.write("small", "hello")
    rows.append(
        compare("exec of true", sides.alternate(blocks, lambda side: measures.execs(kept[side.url], BLOCK)), 1.2)
    )

    def read(side: Endpoint) -> list[float]:
        return [measures.timed(lambda: kept[side.url].files.read("small")) for _ in range(BLOCK)]

    rows.append(compare("reading a small file on a kept connection", sides.alternate(blocks, read), 1.2))
    transfers: dict[str, dict[str, list[float]]] = {
        side.url: {"up": [], "down": []} for side in (sides.local, sides.remote)
    }

    def transfer(side: Endpoint) -> list[float]:
        up, down = measures.transfer(kept[side.url], 1)
        transfers[side.url]["up"] += up
        transfers[side.url]["down"] += down
        return up

    sides.alternate(6, transfer)
    for name, text in (("up", "upload, 100 MB"), ("down", "download, 100 MB")):
        pair = median(transfers[sides.local.url][name]), median(transfers[sides.remote.url][name])
        rows.append(compare(text, pair, 0.8, "MB/s", more_is_better=True))
    for sandbox in kept.values():
        sandbox.kill()
    return rows


def compare(
    what: str, pair: tuple[float, float], target: float, unit: str = "ms", *, more_is_better: bool = False
) -> Row:
    local, remote = pair
    note = f"{number(remote)} {unit}, local {number(local)} {unit}"
    return Row(f"{what}: host / local", remote / local, "x", None, target, more_is_better, note)


def _measure_faults(central: EngineProcess, host: HostProcess, rounds: int) -> list[Row]:
    times = 2 if rounds < 100 else 5
    lost, serving = [], []
    central.endpoint.use()
    sandbox = Sandbox.create(timeout=3600)
    for _ in range(times):
        with host.stopped():
            start = time.perf_counter()
            wait_for(lambda: list_hosts(central)["host"]["state"] == "unreachable")
            lost.append(time.perf_counter() - start)
        wait_for(lambda: list_hosts(central)["host"]["state"] == "ready")
        central.kill()
        start = time.perf_counter()
        central.start()
        wait_for(lambda: run(sandbox))
        serving.append(time.perf_counter() - start)
        wait_for(lambda: list_hosts(central)["host"]["state"] == "ready")
    sandbox.kill()
    return [
        Row("a host falls silent → the engine says so", median(lost), "s", None, 7),
        Row("the engine is killed → a command runs on the host", median(serving), "s", None, 10),
    ]


def has_template(engine: EngineProcess) -> bool:
    """Return whether sandboxes can be created, or the template is still being copied to the host."""
    engine.endpoint.use()
    try:
        Sandbox.create(timeout=60).kill()
    except ServiceBusyException:
        return False
    return True


def run(sandbox: Sandbox) -> bool:
    with contextlib.suppress(Exception):
        return sandbox.commands.run("echo hi", request_timeout=2).stdout == "hi\n"
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the hosts did not get into the expected state")
        time.sleep(0.02)


def call(engine: EngineProcess, method: str, path: str, body: object = None) -> Any:
    """Call the API of an engine."""
    request = urllib.request.Request(
        f"{engine.endpoint.url}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"X-API-Key": engine.key, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def list_hosts(engine: EngineProcess) -> Mapping[str, Any]:
    return {host["name"]: host for host in call(engine, "GET", "/hosts")["hosts"]}


def measure_memory(pid: int) -> int:
    """Return the private bytes of a host service and its helpers, without sandboxes."""
    return sum(private_bytes(process) for process in {pid, *descendants(pid)} if not is_sandbox(process))


def is_sandbox(pid: int) -> bool:
    return "/sandyard-" in Path(f"/proc/{pid}/cgroup").read_text()


class HostProcess:
    """A host service for the sandboxes of an engine."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._data = ["--data-dir", str(engine.folder / "host")]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def join(self) -> None:
        token = call(self._engine, "POST", "/hosts/tokens", {"lifetime": 600.0})["token"]
        named = ["--name", "host", "--address", "127.0.0.1", "--port", str(free_port())]
        subprocess.run(self._command("join", token, *named), check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        with (self._engine.folder / "host.log").open("ab") as log:
            self._child = subprocess.Popen(self._command("serve", "--listen", "127.0.0.1"), stdout=log, stderr=log)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Keep its processes from running, as if its network was cut. Its sandboxes run on."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it and remove what is left."""
        if self._child is not None:
            self._child.terminate()
            self._child.wait(60)
            subprocess.run(self._command("leave", "--force"), check=False, stdout=subprocess.DEVNULL)

    def _command(self, verb: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sandyard", "host", verb, *arguments, *self._data]


def measure_many(rounds: int) -> list[Row]:
    """Measure creates through one engine with many simulated hosts."""
    hosts, total, few = (HOSTS, SANDBOXES, FEW) if rounds >= 100 else (10, 2000, 400)
    settings = {"DRIVER": "fake", "POOL_SIZE": "0", "MAX_SANDBOXES": str(2 * total), "CARRY_HOST_TRUST": "false"}
    # measurements cost the same per second and sandbox, whether any are created, and their history grows with time
    settings |= {"METRICS_INTERVAL_S": "3600", "DISK_RESERVE_MB": "0", "MEMORY_RESERVE_MB": "0"}
    central = EngineProcess([], {**_REMOTE, **settings})
    child: subprocess.Popen[bytes] | None = None
    try:
        folder = register(central.data, hosts)
        with (central.folder / "hosts.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "bench.simulated_hosts", str(folder)], stdout=log, stderr=log
            )
        central.start()
        wait_for(lambda: sum(host["state"] == "ready" for host in list_hosts(central).values()) == hosts + 1)
        return _create_many(central, total, few, hosts)
    finally:
        central.kill()
        if child is not None:
            child.terminate()
            child.wait()
        central.delete()


@dataclass(frozen=True)
class Usage:
    """The resources that the engine uses with this number of sandboxes."""

    sandboxes: int
    seconds: float
    cpu_seconds: float
    bytes: int

    @classmethod
    def read(cls, engine: EngineProcess, sandboxes: int) -> Usage:
        fields = Path(f"/proc/{engine.endpoint.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        ticks = os.sysconf("SC_CLK_TCK")
        cpu = (int(fields[11]) + int(fields[12])) / ticks
        return cls(sandboxes, time.perf_counter(), cpu, private_bytes(engine.endpoint.pid))


def _create_many(central: EngineProcess, total: int, few: int, hosts: int) -> list[Row]:
    asyncio.run(create(central, few))  # caches and connections
    usages = [Usage.read(central, few)]
    while usages[-1].sandboxes < total:
        asyncio.run(create(central, few))
        usages.append(Usage.read(central, usages[-1].sandboxes + few))
    first, last = usages[0], usages[-1]
    costs = [(after.cpu_seconds - before.cpu_seconds) / few * 1000 for before, after in itertools.pairwise(usages)]
    counts = sorted(host["sandboxes"] for name, host in list_hosts(central).items() if name != "local")
    made = last.sandboxes - first.sandboxes
    where = f"with {hosts} hosts"
    return [
        Row(
            f"CPU per create, the last {few:,} of {total:,} / the second {few:,}",
            median(costs[-2:]) / median(costs[:2]),
            "x",
            None,
            1.3,
            note=f"{number(median(costs[-2:]))} ms, {number(median(costs[:2]))} ms",
        ),
        Row(f"creates {where}", made / (last.seconds - first.seconds), "/s", None, 100, more_is_better=True),
        Row("memory of the engine per sandbox", (last.bytes - first.bytes) / made / 1024, "KiB", None, 6),
        Row("sandboxes of the fullest host / of the emptiest", counts[-1] / max(1, counts[0]), "x", None, 1.2),
    ]


async def create(central: EngineProcess, count: int) -> None:
    """Create sandboxes over connections that are kept."""
    body = b'{"templateID":"base","timeout":3600}'
    head = f"POST /v2/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {central.key}\r\n"
    request = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    left = iter(range(count))

    async def work() -> None:
        _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", central.port)
        for _ in left:
            status = await wire.ask(request)
            assert status == 201, (status, wire.body)
        wire.close()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
