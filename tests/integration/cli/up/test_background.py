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


def test_started_and_stopped(tmp_path: Path) -> None:
    up = Background(0, keep=False)
    assert up.fresh
    heard: list[str] = []
    up.start(heard.append, new_token=False)
    try:
        assert up.token is not None
        headers = {"Authorization": f"Bearer {up.token.reveal()}"}
        assert httpx.get(f"{up.url}/api/v1/me", headers=headers, timeout=10).status_code == 200
        said = up.log.read_text()
        assert up.token.reveal() not in said, "the file does not keep it"
        assert "admin token: ***" in said and "#token=***" in said
        assert up.log.stat().st_mode & 0o777 == 0o600
        with pytest.raises(CommandError, match="is already running on") as caught:
            Background(0, keep=False).start(heard.append, new_token=False)
        assert str(up.log) in caught.value.message
    finally:
        up.stop()
    assert not up.fresh
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
def test_it_ends_with_whoever_has_started_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdin is not None
    number = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{number}/cmdline").exists() and Path(f"/proc/{number}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "it was left behind"
        time.sleep(0.05)
    owner.stdin.close()
    owner.stdout.close()
