"""Run an engine for tests with its own process, port, data directory and key, and remove everything afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sandyard.kit.listen import free_port
from tests.harness.processes import ROOT, Program
from tests.harness.releases import Release

READY_SECONDS = 300
STOP_SECONDS = 30
GONE_SECONDS = 10
SCRATCH = Path(os.environ.get("SANDYARD_TEST_DIR", "/var/tmp"))
"""Parent of the data directories. It must be on a real disk, because the engine's copy-on-write store is a file in it."""


@dataclass
class Engine:
    """A `sandyard engine` process. `start` returns when it is ready; `stop` ends it and removes its data."""

    settings: dict[str, str] = field(default_factory=dict)
    """`SANDYARD_…` variables, without their prefix."""
    key: str = field(default_factory=lambda: f"e2b_{secrets.token_hex(20)}")
    port: int = field(default_factory=free_port)
    release: Release | None = None

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sandyard-protocol-", dir=SCRATCH))
        self.data = self.folder / "data"
        self.log = self.folder / "engine.log"
        self.layouts = self.folder / "layouts"
        """Directory for local images, if the settings allow it."""
        self.process: Program | subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point an unmodified SDK at this engine."""
        urls = dict.fromkeys(("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"), self.url)
        return {**urls, "E2B_API_KEY": self.key}

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"X-API-KEY": self.key}, timeout=30)

    def start(self) -> None:
        """Start the engine and wait until it is ready. On failure, remove its data and raise RuntimeError with the end of its log."""
        try:
            self.launch()
            self.wait_until_ready()
        except RuntimeError:
            self.stop()
            raise

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        arguments = ["engine", "--host", "127.0.0.1", "--port", str(self.port)]
        arguments += ["--data-dir", str(self.data), "--api-key", self.key]
        arguments += os.environ.get("SANDYARD_TEST_ENGINE_ARGS", "").split()
        variables = {**os.environ, **{f"SANDYARD_{name}": value for name, value in self.settings.items()}}
        self.process = self._launch(arguments, variables)

    def wait_until_ready(self) -> None:
        """Wait until the engine serves. Raises RuntimeError with the end of its log if it ends."""
        assert self.process is not None
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the engine ended with {self.process.returncode}:\n{self.tail()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=2).status_code == 204:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the engine was not ready after {READY_SECONDS} s:\n{self.tail()}")

    def _launch(self, arguments: list[str], variables: dict[str, str]) -> Program | subprocess.Popen[bytes]:
        return Program(arguments, variables, ROOT, out=self.log, err=self.log, release=self.release)

    def tail(self, lines: int = 60) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def clear(self) -> None:
        """Kill every sandbox and delete every snapshot and volume through the API."""
        with self.client() as client:
            while sandboxes := client.get("/v2/sandboxes", params={"limit": 100}).json():
                for sandbox in sandboxes:
                    client.delete(f"/sandboxes/{sandbox['sandboxID']}")
            for snapshot in client.get("/snapshots", params={"limit": 100}).json():
                client.delete(f"/templates/{snapshot['snapshotID']}")
            for volume in client.get("/volumes").json():
                client.delete(f"/volumes/{volume['volumeID']}")

    def first_process(self, sandbox_id: str) -> int:
        """Return the host pid of the sandbox's first process. Killing it ends all processes of the sandbox."""
        with contextlib.closing(sqlite3.connect(f"file:{self.data}/engine.db?mode=ro", uri=True)) as database:
            (handle,) = database.execute("SELECT handle FROM sandboxes WHERE id = ?", (sandbox_id,)).fetchone()
        return int(json.loads(handle)["data"]["life"]["pid"])

    def kill(self) -> None:
        """Send SIGKILL to simulate a crash."""
        assert self.process
        self.process.kill()
        self.process.wait()

    def stop(self) -> list[str]:
        """Stop the engine, remove its data and return what it left behind on the host."""
        if self.process and self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                self.clear()
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                return [f"the engine did not stop within {STOP_SECONDS} s of SIGTERM"]
        deadline = time.monotonic() + GONE_SECONDS
        while (left := list(self._left_behind())) and time.monotonic() < deadline:
            time.sleep(0.1)  # the mounts of a killed process disappear shortly after it
        for mount in sorted(self._mounts(Path("/proc/self/mountinfo")), key=len, reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        for device in self._loop_devices():
            subprocess.run(["losetup", "-d", device], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        return left

    def _left_behind(self) -> Iterator[str]:
        """Yield mounts and processes of sandboxes. The mount of the store may stay: it belongs to no sandbox."""
        store = str(self.data / "store")
        yield from (f"mount {mount}" for mount in self._mounts(Path("/proc/self/mountinfo")) if mount != store)
        record = self.data / "instance.json"
        if not record.exists():
            return
        cgroup = f"/sandyard-{json.loads(record.read_text())['name']}/"
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if cgroup in (process / "cgroup").read_text():
                    yield f"process {process.name}: {(process / 'cmdline').read_text().replace(chr(0), ' ')}"

    def _mounts(self, mountinfo: Path) -> list[str]:
        points = [line.split()[4] for line in mountinfo.read_text().splitlines()]
        return [point for point in points if point.startswith(f"{self.data}/")]

    def _loop_devices(self) -> list[str]:
        devices = []
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                if backing.read_text().startswith(f"{self.data}/"):
                    devices.append(f"/dev/{backing.parts[-3]}")
        return devices


@contextlib.contextmanager
def started(**settings: str) -> Iterator[Engine]:
    """Run an engine and check that it leaves nothing behind."""
    engine = Engine(settings)
    engine.start()
    yield engine
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@contextlib.contextmanager
def pointed_at(engine: Engine) -> Iterator[None]:
    """Set the environment variables through which the SDKs find the engine."""
    before = {name: os.environ.get(name) for name in engine.environment}
    os.environ.update(engine.environment)
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@contextlib.contextmanager
def serving(**settings: str) -> Iterator[Engine]:
    """Run a separate engine and point the SDKs at it."""
    with started(**settings) as engine, pointed_at(engine):
        yield engine
