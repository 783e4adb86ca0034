"""Test the output of commands while the engine is killed repeatedly: a client that reconnects misses no line. Also test that the platform
keeps every byte of a large output when it and the engine are killed."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import threading
import time

import pytest
from e2b import Sandbox

from tests.harness.engine import Engine
from tests.harness.platform import ok, running, until
from tests.proof.record import record

SEED = int(os.environ.get("SANDYARD_SEED", secrets.randbelow(1 << 32)))
COMMANDS = 10
KILLS = int(os.environ.get("SANDYARD_OUTPUT_KILLS", "50"))
PRINT_NUMBERS = """exec python3 -uc 'import itertools, time
for number in itertools.count():
    print(number)
    time.sleep(0.01)'"""


class Follower:
    """A command and all output that its client received."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._handle = sandbox.commands.run(PRINT_NUMBERS, background=True, timeout=0)
        self.pid = self._handle.pid
        self.output = ""
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        try:
            for out, _, _ in self._handle:
                self.output += out or ""
        except Exception:  # the engine was killed
            return

    def connect(self) -> None:
        self.thread.join(30)
        assert not self.thread.is_alive()
        self._handle = self._sandbox.commands.connect(self.pid, timeout=0)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def has_lines(self, count: int) -> bool:
        return self.output.count("\n") >= count

    def read_numbers(self) -> list[int]:
        """Return the numbers received, without the last one, which may be incomplete."""
        return [int(line) for line in self.output.splitlines()[:-1]]


def run_with_kills(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine({"POOL_SIZE": "0"})
    for name, value in {**engine.environment, "E2B_CONNECTION_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    rng = random.Random(SEED)
    engine.start()
    followers: list[Follower] = []
    try:
        sandbox = Sandbox.create(timeout=3600)
        followers = [Follower(sandbox) for _ in range(COMMANDS)]
        for _ in range(times):
            time.sleep(rng.uniform(0.1, 0.4))
            engine.kill()
            engine.start()
            for follower in followers:
                follower.connect()
        deadline = time.monotonic() + 60
        counts_before = [follower.output.count("\n") for follower in followers]
        while not all(follower.has_lines(count + 5) for follower, count in zip(followers, counts_before, strict=True)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        if engine.process and engine.process.poll() is not None:
            engine.start()
        leftovers = engine.stop()
        for follower in followers:
            follower.thread.join(30)
    missing = repeated = 0
    for follower in followers:
        numbers = follower.read_numbers()
        missing += numbers[-1] + 1 - len(set(numbers))
        repeated += len(numbers) - len(set(numbers))
    print(f"{times} kills of {COMMANDS} commands: {missing} lines missing, {repeated} repeated")
    assert not missing, f"seed {SEED}: {missing} lines missing"
    assert repeated <= times * COMMANDS, f"seed {SEED}: {repeated} lines repeated"
    assert not leftovers
    lines = sum(len(follower.read_numbers()) for follower in followers)
    record({"kills of the engine": times, "lines": lines}, {"lines": missing})


@pytest.mark.timeout(300)
def test_no_line_of_a_command_is_lost_when_the_engine_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_kills(2, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_line_of_a_command_is_lost_in_many_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_kills(KILLS, monkeypatch)


# 20 MB that hardly compress, over enough time to kill two processes meanwhile
LARGE_OUTPUT_COMMAND = "for i in $(seq 20); do head -c 1000000 /dev/urandom | tee -a /tmp/copy; sleep 0.1; done; exit 7"
LARGE_OUTPUT_BYTES = 20 * 1_000_000


@pytest.mark.timeout(300)
def test_no_byte_of_large_output_is_lost_when_platform_and_engine_are_killed(engine: Engine) -> None:
    with running(engine) as platform:
        client = platform.client
        sandbox = ok(client.post("/sandboxes", json={}))["id"]
        request = {"command": LARGE_OUTPUT_COMMAND, "background": True}
        command = ok(client.post(f"/sandboxes/{sandbox}/execute", json=request), 202)["id"]
        until(lambda: ok(client.get(f"/commands/{command}"))["stdoutBytes"] > 2_000_000)
        platform.kill()
        engine.kill()
        engine.start()
        platform.start()
        client = platform.client  # the address has changed
        finished = until(lambda: (state := ok(client.get(f"/commands/{command}")))["status"] == "exited" and state)
        assert (finished["exitCode"], finished["stdoutBytes"]) == (7, LARGE_OUTPUT_BYTES)
        copied = ok(client.post(f"/sandboxes/{sandbox}/execute", json={"command": "sha256sum < /tmp/copy"}))
        stored = hashlib.sha256()
        (file,) = platform.folder.glob(f"data/output/*/{command}/stdout")
        with file.open("rb") as content:
            while piece := content.read(1 << 20):
                stored.update(piece)
        assert stored.hexdigest() == copied["stdout"].split()[0]
        ok(client.delete(f"/sandboxes/{sandbox}"))
    record({"kills of platform and engine": 2, "bytes": LARGE_OUTPUT_BYTES}, {"bytes": 0})
