"""A whole engine process on the fake driver, used by the real SDK: how the parts work together."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import AuthenticationException, Sandbox, SandboxException, SandboxNotRunningException

STARTUP_SECONDS = 60


class Engine:
    """Starts and stops `sandyard engine` on one data directory."""

    def __init__(self, data: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        self.key = ""
        self.output = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options that make an SDK use this engine."""
        url = f"http://127.0.0.1:{self.port}"
        return {"api_url": url, "sandbox_url": url, "api_key": self.key, "request_timeout": 20}

    def start(self) -> None:
        log = self._data.parent / "engine.log"
        command = [sys.executable, "-m", "sandyard", "engine", "--driver", "fake", "--port", str(self.port)]
        command += ["--data-dir", str(self._data), "--pool-size", "0"]
        with log.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, text=True)
        deadline = time.monotonic() + STARTUP_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self.port}/health").status_code == 204:
                    break
            time.sleep(0.05)
        self.output = log.read_text()
        if match := re.search(r"E2B_API_KEY=(e2b_\w+)", self.output):
            self.key = match.group(1)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(30)

    def close(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.start()  # only an engine can kill the sandboxes that are left
        pages = Sandbox.list(**self.options)
        while pages.has_next:
            for found in pages.next_items():
                Sandbox.kill(found.sandbox_id, **self.options)
        self.stop()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    running = Engine(tmp_path_factory.mktemp("engine") / "data")
    running.start()
    yield running
    running.close()


@pytest.fixture
def sandbox(engine: Engine) -> Iterator[Sandbox]:
    created = Sandbox.create(**engine.options)
    yield created
    created.kill()


def test_commands_run_and_files_are_transferred(sandbox: Sandbox) -> None:
    assert sandbox.is_running()
    assert sandbox.commands.run("echo out; echo err >&2; exit 0").stdout == "out\n"
    sandbox.files.write("a.txt", "content")
    assert sandbox.files.read("a.txt") == "content"
    data = bytes(range(256)) * 40_000
    sandbox.files.write("large", data)
    assert bytes(sandbox.files.read("large", format="bytes")) == data


def test_a_signed_url_needs_no_header(sandbox: Sandbox) -> None:
    sandbox.files.write("a.txt", "content")
    assert httpx.get(sandbox.download_url("a.txt", use_signature_expiration=60)).text == "content"
    assert httpx.get(sandbox.download_url("a.txt", use_signature_expiration=-60)).status_code == 401


def test_waiting_for_a_command_fails_when_its_sandbox_is_killed(engine: Engine) -> None:
    sandbox = Sandbox.create(**engine.options)
    command = sandbox.commands.run("sleep 60", background=True)
    sandbox.kill()
    with pytest.raises(SandboxNotRunningException, match="sandbox was killed or reached its end of life"):
        command.wait()
    assert not sandbox.is_running()


def test_a_command_survives_pause_and_connect(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("sleep 600", background=True, timeout=0)
    assert sandbox.pause()
    assert not sandbox.is_running()
    with pytest.raises(SandboxException):
        sandbox.commands.list()
    sandbox.connect()
    assert command.pid in [process.pid for process in sandbox.commands.list()]


def test_a_server_inside_is_reached_by_its_host_name(engine: Engine, sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]  # a fake sandbox's ports are the host's
    sandbox.commands.run(f"python3 -m http.server {port} --bind 127.0.0.1", background=True, timeout=0)
    host = sandbox.get_host(port)
    assert host == f"{port}-{sandbox.sandbox_id}.localhost:{engine.port}"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        response = httpx.get(f"http://127.0.0.1:{engine.port}/", headers={"Host": host})
        if response.status_code == 200:
            break
        assert response.json()["message"] == "The sandbox is running but port is not open"
        time.sleep(0.1)
    assert "Directory listing" in response.text


def test_a_wrong_key_is_rejected(engine: Engine) -> None:
    with pytest.raises(AuthenticationException):
        Sandbox.create(**{**engine.options, "api_key": "e2b_" + "0" * 40})


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(item, marks=pytest.mark.slow) for item in (signal.SIGTERM, signal.SIGINT))],
)
def test_sandboxes_and_commands_outlive_the_engine(engine: Engine, sandbox: Sandbox, number: int) -> None:
    command = sandbox.commands.run("sleep 600", background=True, timeout=0)
    started = time.monotonic()
    code = engine.stop(number)
    assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    assert time.monotonic() - started < 20, "an open stream must not delay the stop"
    with pytest.raises(Exception, match=r".+"):
        command.wait()
    key = engine.key
    engine.start()
    assert engine.key == key, "the first key is created only once"
    assert "sandyard keys --data-dir" in engine.output
    assert "Traceback" not in engine.output
    assert command.pid in [process.pid for process in sandbox.commands.list()]
    assert sandbox.commands.kill(command.pid)
