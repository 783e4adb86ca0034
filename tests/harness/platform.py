"""Run a platform for tests with its own process, port, data directory and token, and remove everything afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sandyard.kit.listen import free_port
from tests.harness.engine import SCRATCH, Engine
from tests.harness.processes import ROOT, Program

READY_SECONDS = 300
PATIENCE = 90.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
TASK_PAUSE = 0.4
"""Seconds between polls of a started task: no task settles sooner."""
LOG_CHARACTERS = 20_000
"""Characters of the log that are shown when a test fails."""


@dataclass
class Platform:
    """A `sandyard platform` process that uses an engine. `start` returns when it is ready; `stop` removes its data."""

    engine: Engine
    database_url: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    """`SANDYARD_…` variables, without their prefix."""
    port: int = field(default_factory=free_port)
    token: str = ""

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sandyard-platform-", dir=SCRATCH))
        self.log = self.folder / "platform.log"
        self.stdout_file = self.folder / "stdout"
        self.process: Program | None = None
        self._client: httpx.Client | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        if self._client is None or self._client.headers["Authorization"] != headers["Authorization"]:
            self._client = httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=120)
        return self._client

    def start(self) -> None:
        self.launch()
        self._wait_until_ready()
        for line in self.stdout_file.read_text().splitlines():
            if line.startswith("admin token:"):
                self.token = line.split()[-1]

    def launch(self) -> None:
        """Start the process without waiting until it is ready, because it may be a standby."""
        variables = {**os.environ, **self.engine.environment}
        variables |= {f"SANDYARD_{name}": value for name, value in self.settings.items()}
        variables |= {"SANDYARD_PORT": str(self.port), "SANDYARD_DATA_DIR": str(self.folder / "data")}
        if self.database_url is not None:
            variables["SANDYARD_DATABASE_URL"] = self.database_url
        self.process = Program(["platform"], variables, ROOT, out=self.stdout_file, err=self.log)

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the platform did not start:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Send SIGKILL to simulate a crash."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """Stop the process and remove its data. Idempotent."""
        if self._client is not None:
            self._client.close()
        self._end(signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)


@contextlib.contextmanager
def running(engine: Engine, database_url: str | None = None, **settings: str) -> Iterator[Platform]:
    platform = Platform(engine, database_url, settings)
    try:
        platform.start()
        yield platform
    except BaseException:
        print(platform.log.read_text()[-LOG_CHARACTERS:])
        raise
    finally:
        platform.stop()


def until(condition: Callable[[], Any], patience: float = PATIENCE, pause: float = FIRST_PAUSE) -> Any:
    """Wait until `condition` returns a true value, and return it. Polls after `pause` seconds and then less and less often, because polling
    slows down the machine that it waits for."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"the condition was not met within {patience:.0f} s; last value: {value!r}")
        time.sleep(pause)
        pause = min(pause * 1.3, LONGEST_PAUSE)
    return value


def sign_in(client: httpx.Client, **credentials: str) -> None:
    """Sign in like a browser: the client keeps the cookie and sends the key of the login with every request."""
    client.headers["X-Sandyard-CSRF"] = ok(client.post("/login", json=credentials))["key"]


def ok(response: httpx.Response, *statuses: int) -> Any:
    """Check that the response has one of these statuses (by default, any success) and return its JSON."""
    assert response.status_code in statuses if statuses else response.is_success, response.text
    return response.json() if response.content else None
