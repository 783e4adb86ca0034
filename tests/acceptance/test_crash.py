"""kill -9 of the engine at random moments under load: nothing that was promised is lost, nothing half-made stays.

A few times in `make test`, `SANDYARD_CRASHES` times (10) in the long run, `SANDYARD_SEED` repeats a run.
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

from tests.protocol.engine import Engine

FEW, CRASHES = 2, int(os.environ.get("SANDYARD_CRASHES", "10"))
SEED = int(os.environ.get("SANDYARD_SEED", secrets.randbelow(1 << 32)))
WORKERS = 4
MOST = 10
"""Sandboxes alive at a time."""

MARK = "/home/user/mark"
BEAT = "/home/user/beat"


@dataclass
class Promise:
    """What the client was told of one sandbox, and what else may be true because an answer never came."""

    mark: str
    pid: int
    may_be: set[str]
    sandbox: Sandbox
    lock: threading.Lock = field(default_factory=threading.Lock)


class Load:
    """Workers that create, use, pause, wake, copy and kill, each on its own, until their engine is gone."""

    def __init__(self, seed: int) -> None:
        self.promises: dict[str, Promise] = {}
        self.unanswered = 0  # creates and forks whose answer never came: at most so many strangers may exist
        self.dice = random.Random(seed)
        self.guard = threading.Lock()
        self.stop = threading.Event()
        self.surprises: list[str] = []

    def run(self) -> list[threading.Thread]:
        self.stop.clear()
        threads = [threading.Thread(target=self._work, args=(self.dice.getrandbits(32),)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        return threads

    def _work(self, seed: int) -> None:
        dice = random.Random(seed)
        while not self.stop.is_set():
            with self.guard:
                known = list(self.promises.items())
            grow = len(known) < MOST and (not known or dice.random() < 0.3)
            try:
                if grow:
                    self._create()
                else:
                    self._use(*dice.choice(known), dice)
            except AssertionError as error:
                self.surprises.append(str(error))
                return
            except Exception as error:
                # the crash may be seen here a moment before the one who caused it says so
                if not self.stop.wait(1):
                    self.surprises.append(f"{type(error).__name__}: {error}")
                return

    def _create(self) -> None:
        with self.guard:
            self.unanswered += 1
        sandbox = Sandbox.create(timeout=3600)
        self._promise(sandbox)

    def _promise(self, sandbox: Sandbox) -> None:
        """From its answer on a sandbox counts."""
        promise = Promise(mark="", pid=0, may_be={"running"}, sandbox=sandbox)
        with promise.lock:
            with self.guard:
                self.unanswered -= 1
                self.promises[sandbox.sandbox_id] = promise
            self._settle(sandbox.sandbox_id, promise)

    def _settle(self, _: str, promise: Promise) -> None:
        """Its mark and its heartbeat are promised once both answers came."""
        mark = secrets.token_hex(8)
        promise.sandbox.files.write(MARK, mark)
        beat = f"while :; do echo . >> {BEAT}; sleep 0.05; done"
        pid = promise.sandbox.commands.run(beat, background=True, timeout=0).pid
        promise.mark, promise.pid = mark, pid

    def _use(self, sandbox_id: str, promise: Promise, dice: random.Random) -> None:
        if not promise.lock.acquire(blocking=False):
            return
        try:
            verb = dice.choice(["exec", "exec", "pause", "fork", "kill"]) if promise.pid else "settle"
            if promise.may_be == {"paused"}:
                verb = dice.choice(["connect", "connect", "kill"])
            getattr(self, f"_{verb}")(sandbox_id, promise)
        finally:
            promise.lock.release()

    def _exec(self, _: str, promise: Promise) -> None:
        seen = promise.sandbox.commands.run(f"cat {MARK}").stdout
        assert seen == promise.mark, f"the mark was {promise.mark}, is {seen!r}"

    def _pause(self, _: str, promise: Promise) -> None:
        promise.may_be = {"running", "paused"}
        promise.sandbox.pause()
        promise.may_be = {"paused"}

    def _connect(self, _: str, promise: Promise) -> None:
        promise.may_be = {"running", "paused"}
        promise.sandbox.connect(timeout=3600)
        promise.may_be = {"running"}

    def _kill(self, sandbox_id: str, promise: Promise) -> None:
        promise.may_be |= {"gone"}
        promise.sandbox.kill()
        with self.guard:
            del self.promises[sandbox_id]

    def _fork(self, _: str, promise: Promise) -> None:
        with self.guard:
            self.unanswered += 1
        (copy,) = promise.sandbox.fork(timeout=3600)
        if isinstance(copy, Exception):
            raise copy
        assert copy.files.read(MARK) == promise.mark, "a fork starts with what the original had"
        self._promise(copy)

    def check(self) -> None:
        """Against a fresh engine: every promise holds, and there are no more strangers than unanswered requests."""
        states = dict(listing())
        for sandbox_id, promise in list(self.promises.items()):
            state = states.pop(sandbox_id, "gone")
            assert state in promise.may_be, f"{sandbox_id} was promised {promise.may_be}, is {state}"
            if state == "gone":
                del self.promises[sandbox_id]
                continue
            promise.may_be = {state}
            if state == "running" and promise.pid:
                alive(promise)
        strangers = list(states)
        assert len(strangers) <= self.unanswered, f"{len(strangers)} sandboxes nobody asked for: {strangers}"
        for sandbox_id in strangers:
            Sandbox.kill(sandbox_id)
        self.unanswered = 0

    def check_paused(self) -> None:
        """What is paused can be woken, and the very processes go on."""
        for promise in self.promises.values():
            if promise.may_be == {"paused"}:
                promise.sandbox.connect(timeout=3600)
                promise.may_be = {"running"}
                if promise.pid:
                    alive(promise)


def listing() -> Iterator[tuple[str, str]]:
    pages = Sandbox.list(query=SandboxQuery(), limit=100)
    while pages.has_next:
        yield from ((info.sandbox_id, info.state.value) for info in pages.next_items())


def alive(promise: Promise) -> None:
    """Its command runs under the pid it had, its heart beats, its file is as it was written."""
    assert promise.sandbox.files.read(MARK) == promise.mark
    assert promise.pid in [process.pid for process in promise.sandbox.commands.list()]
    beats = promise.sandbox.commands.run(f"stat -c %s {BEAT}").stdout
    deadline = time.monotonic() + 60
    while promise.sandbox.commands.run(f"stat -c %s {BEAT}").stdout == beats:
        assert time.monotonic() < deadline, "the command is there but does not go on"


@pytest.mark.timeout(60 + 15 * CRASHES)
@pytest.mark.parametrize("crashes", [FEW, pytest.param(CRASHES, marks=pytest.mark.slow)])
def test_a_crash_loses_nothing_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, crashes: int) -> None:
    engine = Engine({"POOL_SIZE": "8"})  # restarts are what takes the time, and a crash leaves the whole pool to sweep
    for name, value in {**engine.environment, "E2B_CONNECTION_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    dice = random.Random(SEED)
    load = Load(SEED)
    engine.start()
    try:
        for crash in range(crashes):
            threads = load.run()
            time.sleep(dice.uniform(0, 0.4))
            load.stop.set()
            engine.kill()
            for thread in threads:
                thread.join()
            assert not load.surprises, f"seed {SEED}, crash {crash}: {load.surprises}\n{engine.tail()}"
            engine.start()
            try:
                load.check()
                if crash % 5 == 4:
                    load.check_paused()
            except Exception as error:
                raise AssertionError(f"seed {SEED}, crash {crash}: {error}\n{engine.tail()}") from error
        load.check_paused()
    finally:
        if engine.process and engine.process.poll() is not None:
            engine.start()  # only an engine can take down what a crash left
        left = engine.stop()
    assert not left, f"seed {SEED}: left behind {left}"
