"""The program that runs an MCP server in a sandbox, and the one that reads its records. Run on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

GUEST = Path(str(resources.files("sandyard.platform.domain.sandboxes.e2b.guest")))
DEADLINE_S = 60
WAITING = """
import os, signal, sys
def stop(number, frame):
    os.write(1, b"signal %d\\n" % number)  # not print, which the signal may have interrupted
    os._exit(4)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, stop) if signal.getsignal(number) is not signal.SIG_IGN else print("ignored", number)
print("ready", flush=True)
sys.stdin.read()
sys.exit(6)
"""


class Servers:
    """Servers that are started as an agent starts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        server = subprocess.Popen(
            ["/bin/bash", str(GUEST / "run_mcp_server.sh"), str(self.folder / "server"), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self.started.append(server)
        return server

    def read_records(self) -> list[bytes]:
        argv = ["/bin/bash", str(GUEST / "read_mcp_records.sh"), str(self.folder), "other", "server"]
        return subprocess.run(argv, capture_output=True, check=True, timeout=DEADLINE_S).stdout.split(b"\0")[:-1]

    def close(self) -> None:
        for server in self.started:
            server.kill()
            server.communicate(timeout=DEADLINE_S)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    opened = Servers(tmp_path / "records")
    yield opened
    opened.close()


def read_rest(server: subprocess.Popen[bytes]) -> tuple[bytes, bytes, int]:
    """Read both outputs to their end, with the input open."""
    assert server.stdout is not None
    assert server.stderr is not None
    stderr = server.stderr.read()  # first, because a server that prints a lot waits until it is read
    return server.stdout.read(), stderr, server.wait(DEADLINE_S)


def test_records_the_status_and_the_reason(servers: Servers) -> None:
    server = servers.start("sh", "-c", "echo out; echo oh no >&2; exit 3")
    assert read_rest(server) == (b"out\n", b"oh no\n", 3)
    assert servers.read_records() == [b"server", b"3\n", b"oh no\n"]


def test_the_record_is_complete_when_the_agent_notices_the_end(servers: Servers) -> None:
    server = servers.start("sh", "-c", "read -r line; echo oh no >&2; exit 3")
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(b"initialize\n")
    server.stdin.flush()
    assert server.stdout.read() == b""
    assert servers.read_records() == [b"server", b"3\n", b"oh no\n"]


def test_records_a_missing_command(servers: Servers) -> None:
    """The command is looked up in the server's own PATH."""
    server = servers.start("cat", env={"PATH": "/nowhere"})
    assert read_rest(server) == (b"", b"cat: command not found\n", 127)
    assert servers.read_records() == [b"server", b"127\n", b"cat: command not found\n"]


def test_keeps_only_the_end_of_the_error_output(servers: Servers) -> None:
    server = servers.start(sys.executable, "-c", "import sys; sys.stderr.write('x' * 500_000 + 'the end'); sys.exit(1)")
    _, stderr, _ = read_rest(server)
    assert len(stderr) == 500_007, "the agent gets all of it"
    _, _, kept = servers.read_records()
    assert len(kept) == 8192
    assert kept.endswith(b"the end")


def test_passes_input_and_output_and_ends_with_the_input(servers: Servers) -> None:
    data = bytes(range(256)) * 4000
    server = servers.start("cat")
    assert server.communicate(data, timeout=DEADLINE_S) == (data, b"")
    assert server.returncode == 0
    assert servers.read_records() == []


def test_does_not_record_a_server_whose_input_was_closed(servers: Servers) -> None:
    server = servers.start(sys.executable, "-c", WAITING)
    assert server.communicate(timeout=DEADLINE_S) == (b"ready\n", b"")
    assert server.returncode == 6
    assert servers.read_records() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_passes_signals_and_does_not_record_a_stopped_server(servers: Servers, number: signal.Signals) -> None:
    server = servers.start(sys.executable, "-c", WAITING)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    server.send_signal(number)
    assert read_rest(server) == (f"signal {number.value}\n".encode(), b"", 4)
    assert servers.read_records() == []


def test_a_start_removes_the_earlier_record(servers: Servers) -> None:
    assert read_rest(servers.start("false"))[2] == 1
    assert servers.read_records() == [b"server", b"1\n", b""]
    server = servers.start("cat")
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(b"hello\n")
    server.stdin.flush()
    assert server.stdout.readline() == b"hello\n"
    assert servers.read_records() == []


def test_a_server_runs_without_a_place_for_its_record(servers: Servers) -> None:
    servers.folder.write_text("a file")
    assert servers.start("cat").communicate(b"hello", timeout=DEADLINE_S) == (b"hello", b"")
