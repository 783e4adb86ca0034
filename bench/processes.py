"""The processes a bench run stands on: the engine, the floor, and what /proc says of them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.kit.listen import free_port


@dataclass(frozen=True)
class Endpoint:
    url: str
    key: str
    pid: int

    def use(self) -> None:
        """Point the SDKs of this process here, as a user's environment would."""
        os.environ.update(E2B_API_URL=self.url, E2B_SANDBOX_URL=self.url, E2B_API_KEY=self.key)


@contextlib.contextmanager
def floor() -> Iterator[Endpoint]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.floor"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin
    assert child.stdout
    try:
        yield Endpoint(f"http://127.0.0.1:{int(child.stdout.readline())}", "floor", child.pid)
    finally:
        child.stdin.close()
        child.wait()


class EngineProcess:
    """An engine on a new data directory in `folder`. `settings`: SANDYARD_<NAME> variables."""

    def __init__(self, options: Sequence[str], settings: Mapping[str, str]) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="sandyard-bench-", dir=os.environ.get("SANDYARD_BENCH_DIR", "/var/tmp"))
        )
        self.data = self.folder / "data"
        self.log = self.folder / "engine.log"
        self.port, self.key = free_port(), secrets.token_hex(16)
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--data-dir", str(self.data), "--api-key", self.key]
        self._command = [sys.executable, "-m", "sandyard", "engine", *where, *options]
        self._variables = {**os.environ, **{f"SANDYARD_{name}": value for name, value in settings.items()}}
        self._child: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.port}", self.key, self._child.pid)

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._variables)
        wait_ready(self.endpoint, self._child, self.log)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def stop(self) -> None:
        """Remove its sandboxes and end it."""
        with contextlib.suppress(Exception):
            destroy_all(self.endpoint)
        self._child.terminate()
        self._child.wait(60)

    def delete(self) -> None:
        """Delete everything."""
        if os.path.ismount(self.data / "store"):
            subprocess.run(["umount", str(self.data / "store")], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def engine(*options: str, **settings: str) -> Iterator[Endpoint]:
    """Start an engine on a new data directory and delete everything afterwards. `settings`: SANDYARD_<NAME> variables."""
    process = EngineProcess(options, settings)
    try:
        process.start()
        try:
            yield process.endpoint
        finally:
            process.stop()
    finally:
        process.delete()


def wait_ready(endpoint: Endpoint, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise SystemExit(f"the engine ended at once:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(f"{endpoint.url}/health", timeout=1).status == 204:
                return
        time.sleep(0.05)
    raise SystemExit(f"the engine did not become ready in a minute:\n{log.read_text()[-2000:]}")


def destroy_all(endpoint: Endpoint) -> None:
    from e2b import Sandbox  # noqa: PLC0415 - the SDK reads its environment at import

    endpoint.use()
    pages = Sandbox.list(limit=100)
    while pages.has_next:
        for info in pages.next_items():
            Sandbox.kill(info.sandbox_id)


def descendants(pid: int) -> set[int]:
    """Return all descendants of `pid`, according to /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                children.setdefault(int(stat.rsplit(") ", 1)[1].split()[1]), []).append(int(entry.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        fresh = [child for child in children.get(todo.pop(), ()) if child not in found]
        found.update(fresh)
        todo.extend(fresh)
    return found


def settle(endpoint: Endpoint, seconds: float = 60) -> None:
    """Wait until the engine makes and removes no more processes: its pool is full, and what was killed is gone."""
    deadline, quiet_since, before = time.monotonic() + seconds, time.monotonic(), set[int]()
    while time.monotonic() < deadline:
        now = descendants(endpoint.pid)
        if now != before:
            before, quiet_since = now, time.monotonic()
        elif time.monotonic() - quiet_since > 1:
            return
        time.sleep(0.1)


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")
