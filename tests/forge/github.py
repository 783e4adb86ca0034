"""`emulate`, a third-party GitHub API, in its own process. Tests use it through `facade.py`."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from sandyard.kit.listen import free_port
from tests.harness.processes import ROOT

READY_SECONDS = 60
FOLDER = Path(__file__).parent / "js"
NODE = ROOT / ".venv-node" / "bin" / "node"


class Emulate:
    """`start` returns when it responds; `stop` ends it. All of its state is in memory."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        """The base of the URLs in its answers."""
        self.port = free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30, trust_env=False)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if not (FOLDER / "node_modules" / "emulate").exists():
            raise RuntimeError("emulate is not installed: run `make setup-test`")
        self._process = subprocess.Popen(
            [str(NODE), "server.mjs"], cwd=FOLDER, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"port": self.port, "baseUrl": self.base_url}).encode() + b"\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.client.get("/zen", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"emulate did not start:\n{self.read_log()}")

    def read_log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]

    def stop(self) -> None:
        """Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.client.close()

    def call_route(self, path: str, body: Mapping[str, Any]) -> None:
        """Call one of the additional routes in server.mjs."""
        answer = self.client.post(f"/_double/{path}", json=body)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}\n{self.read_log()}"
