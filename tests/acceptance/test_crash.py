"""Kill the engine with SIGKILL at random moments under load: no acknowledged state is lost, and no incomplete sandbox is left.

`make test` runs a few crashes, the slow test `SANDYARD_CRASHES` (10). `SANDYARD_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from e2b import Sandbox, SandboxQuery

from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.kit.errors import UnsupportedError
from tests.harness.engine import Engine
from tests.proof.record import record

FEW, CRASHES = 2, int(os.environ.get("SANDYARD_CRASHES", "10"))
SEED = int(os.environ.get("SANDYARD_SEED", secrets.randbelow(1 << 32)))
WORKERS = 4
MAX_SANDBOXES = 10
"""Maximum number of sandboxes at a time."""
BUSY = 3
"""Number of running sandboxes with a command that must exist before a kill: creating one may take longer than the time until the kill."""
MAX_DELAY_S = {"namespace": 0.4, "gvisor": 3.0}
"""Maximum time from then until the kill, in which most operations end."""

MARK = "/home/user/mark"
HEARTBEAT = "/home/user/beat"


@dataclass
class ExpectedSandbox:
    """The state of a sandbox as the client knows it, and the states it may have because a response was lost."""

    mark: str
    pid: int
    possible_states: set[str]
    sandbox: Sandbox
    lock: threading.Lock = field(default_factory=threading.Lock)


class LoadGenerator:
    """Workers that create, use, pause, resume, fork and kill sandboxes until the engine is killed."""

    def __init__(self, seed: int) -> None:
        self.expected: dict[str, ExpectedSandbox] = {}
        self.unanswered = 0  # creates and forks without a response: at most this many unexpected sandboxes may exist
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.errors: list[str] = []

    def run(self) -> list[threading.Thread]:
        self.stop.clear()
        threads = [threading.Thread(target=self._work, args=(self.rng.getrandbits(32),)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        return threads

    def wait_until_busy(self) -> None:
        deadline = time.monotonic() + 120
        while not self.errors and self._count_busy() < BUSY:
            assert time.monotonic() < deadline, f"fewer than {BUSY} sandboxes run a command after 120 s"
            time.sleep(0.02)

    def _count_busy(self) -> int:
        with self.lock:
            return sum(bool(known.pid) and known.possible_states == {"running"} for known in self.expected.values())

    def _work(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.stop.is_set():
            with self.lock:
                sandboxes = list(self.expected.items())
            should_create = len(sandboxes) < MAX_SANDBOXES and (not sandboxes or rng.random() < 0.3)
            try:
                if should_create:
                    self._create()
                else:
                    self._use(*rng.choice(sandboxes), rng)
            except AssertionError as error:
                self.errors.append(str(error))
                return
            except Exception as error:
                # a worker may see the crash shortly before `stop` is set
                if not self.stop.wait(1):
                    self.errors.append(f"{type(error).__name__}: {error}")
                return

    def _create(self) -> None:
        with self.lock:
            self.unanswered += 1
        sandbox = Sandbox.create(timeout=3600)
        self._expect(sandbox)

    def _expect(self, sandbox: Sandbox) -> None:
        """Expect the sandbox from its response on."""
        expected = ExpectedSandbox(mark="", pid=0, possible_states={"running"}, sandbox=sandbox)
        with expected.lock:
            with self.lock:
                self.unanswered -= 1
                self.expected[sandbox.sandbox_id] = expected
            self._settle(sandbox.sandbox_id, expected)

    def _settle(self, _: str, expected: ExpectedSandbox) -> None:
        """Expect the mark and the heartbeat once both responses arrived."""
        mark = secrets.token_hex(8)
        expected.sandbox.files.write(MARK, mark)
        heartbeat = f"while :; do echo . >> {HEARTBEAT}; sleep 0.05; done"
        pid = expected.sandbox.commands.run(heartbeat, background=True, timeout=0).pid
        expected.mark, expected.pid = mark, pid

    def _use(self, sandbox_id: str, expected: ExpectedSandbox, rng: random.Random) -> None:
        if not expected.lock.acquire(blocking=False):
            return
        try:
            verb = rng.choice(["exec", "exec", "pause", "fork", "kill"]) if expected.pid else "settle"
            if expected.possible_states == {"paused"}:
                verb = rng.choice(["connect", "connect", "kill"])
            getattr(self, f"_{verb}")(sandbox_id, expected)
        finally:
            expected.lock.release()

    def _exec(self, _: str, expected: ExpectedSandbox) -> None:
        mark = expected.sandbox.commands.run(f"cat {MARK}").stdout
        assert mark == expected.mark, f"expected the mark {expected.mark}, found {mark!r}"

    def _pause(self, _: str, expected: ExpectedSandbox) -> None:
        expected.possible_states = {"running", "paused"}
        expected.sandbox.pause()
        expected.possible_states = {"paused"}

    def _connect(self, _: str, expected: ExpectedSandbox) -> None:
        expected.possible_states = {"running", "paused"}
        expected.sandbox.connect(timeout=3600)
        expected.possible_states = {"running"}

    def _kill(self, sandbox_id: str, expected: ExpectedSandbox) -> None:
        expected.possible_states |= {"gone"}
        expected.sandbox.kill()
        with self.lock:
            del self.expected[sandbox_id]

    def _fork(self, _: str, expected: ExpectedSandbox) -> None:
        with self.lock:
            self.unanswered += 1
        (copy,) = expected.sandbox.fork(timeout=3600)
        if isinstance(copy, Exception):
            raise copy
        assert copy.files.read(MARK) == expected.mark, "a fork must start with the files of the original"
        self._expect(copy)

    def check(self) -> int:
        """Check on the restarted engine that every expected sandbox exists, and no more others than requests without a
        response. Return how many were expected."""
        states = dict(list_states())
        checked = len(self.expected)
        for sandbox_id, expected in list(self.expected.items()):
            state = states.pop(sandbox_id, "gone")
            assert state in expected.possible_states, (
                f"{sandbox_id} is {state}, expected one of {expected.possible_states}"
            )
            if state == "gone":
                del self.expected[sandbox_id]
                continue
            expected.possible_states = {state}
            if state == "running" and expected.pid:
                assert_still_running(expected)
        unexpected = list(states)
        assert len(unexpected) <= self.unanswered, f"{len(unexpected)} unexpected sandboxes: {unexpected}"
        for sandbox_id in unexpected:
            Sandbox.kill(sandbox_id)
        self.unanswered = 0
        return checked

    def check_paused(self) -> None:
        """Check that paused sandboxes can be resumed with the same processes."""
        for expected in self.expected.values():
            if expected.possible_states == {"paused"}:
                expected.sandbox.connect(timeout=3600)
                expected.possible_states = {"running"}
                if expected.pid:
                    assert_still_running(expected)


def list_states() -> Iterator[tuple[str, str]]:
    pages = Sandbox.list(query=SandboxQuery(), limit=100)
    while pages.has_next:
        yield from ((info.sandbox_id, info.state.value) for info in pages.next_items())


def assert_still_running(expected: ExpectedSandbox) -> None:
    """Check that the command runs under the same pid, the heartbeat continues, and the file is unchanged."""
    assert expected.sandbox.files.read(MARK) == expected.mark
    assert expected.pid in [process.pid for process in expected.sandbox.commands.list()]
    heartbeats = expected.sandbox.commands.run(f"stat -c %s {HEARTBEAT}").stdout
    deadline = time.monotonic() + 60
    while expected.sandbox.commands.run(f"stat -c %s {HEARTBEAT}").stdout == heartbeats:
        assert time.monotonic() < deadline, "the command exists but does not continue"


@pytest.mark.timeout(120 + 30 * CRASHES)
@pytest.mark.parametrize(
    ("isolation", "crashes"),
    [
        pytest.param("namespace", FEW, id="namespace-few"),
        pytest.param("namespace", CRASHES, marks=pytest.mark.slow, id="namespace-many"),
        pytest.param("gvisor", CRASHES, marks=pytest.mark.slow, id="gvisor-many"),
    ],
)
def test_engine_crashes_lose_no_sandbox_and_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, isolation: str, crashes: int
) -> None:
    if isolation == "gvisor":
        try:
            Runsc.find()
        except UnsupportedError as error:
            pytest.skip(error.message)
    # restarts take most of the time, and each crash leaves the whole pool to clean up
    engine = Engine({"POOL_SIZE": "2", "MIN_ISOLATION": isolation})
    for name, value in {**engine.environment, "E2B_CONNECTION_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    rng = random.Random(SEED)
    load = LoadGenerator(SEED)
    checked = 0
    engine.start()
    try:
        for crash in range(crashes):
            threads = load.run()
            try:
                load.wait_until_busy()
                time.sleep(rng.uniform(0, MAX_DELAY_S[isolation]))
            finally:
                load.stop.set()
            engine.kill()
            for thread in threads:
                thread.join()
            assert not load.errors, f"seed {SEED}, crash {crash}: {load.errors}\n{engine.tail()}"
            engine.start()
            try:
                checked += load.check()
                if crash % 5 == 4:
                    load.check_paused()
            except Exception as error:
                raise AssertionError(f"seed {SEED}, crash {crash}: {error}\n{engine.tail()}") from error
        load.check_paused()
    finally:
        if engine.process and engine.process.poll() is not None:
            engine.start()  # only an engine can remove what a crash left behind
        left = engine.stop()
    assert not left, f"seed {SEED}: left behind {left}"
    record({"kills of the engine": crashes, "sandboxes checked": checked}, {"sandboxes": 0, "processes": 0, "files": 0})
