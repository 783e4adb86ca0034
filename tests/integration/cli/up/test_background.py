"""`sandyard up` in the background, with the real engine (driver fake) and the real platform."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from sandyard.cli.errors import CommandError
from sandyard.cli.up.background import Background


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SANDYARD_DATA_DIR": str(tmp_path / "data"),
        "SANDYARD_DRIVER": "fake",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SANDYARD_POOL_SIZE", "0")


@pytest.mark.slow  # tests/integration/cli/test_run.py::test_run_starts_its_own_platform starts and stops it too
def test_it_is_started_once_and_stopped(tmp_path: Path) -> None:
    up = Background(0, keep=False)
    assert up.is_new
    lines: list[str] = []
    up.start(lines.append, new_token=False)
    try:
        assert up.token is not None
        headers = {"Authorization": f"Bearer {up.token.reveal()}"}
        assert httpx.get(f"{up.url}/api/v1/me", headers=headers, timeout=10).status_code == 200
        log = up.log.read_text()
        assert up.token.reveal() not in log, "the log must not contain the token"
        assert "admin token: ***" in log and "#token=***" in log
        assert up.log.stat().st_mode & 0o777 == 0o600
        with pytest.raises(CommandError, match="is already running on") as caught:
            Background(0, keep=False).start(lines.append, new_token=False)
        assert str(up.log) in caught.value.message
    finally:
        up.stop()
    assert not up.is_new
    with pytest.raises(httpx.ConnectError):
        httpx.get(up.url)
    up.stop()


CODE = """
from sandyard.cli.up.background import Background
up = Background(0, keep=False)
up.start(lambda words: None, new_token=True)
print(up._process.pid, flush=True)
input()
"""


@pytest.mark.slow
def test_it_ends_when_its_owner_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdin is not None
    number = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{number}/cmdline").exists() and Path(f"/proc/{number}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "the process was left running"
        time.sleep(0.05)
    owner.stdin.close()
    owner.stdout.close()
