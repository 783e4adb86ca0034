"""The smaller parts: metrics, timers, capacity, logs, request digests, the agent's settings and engine settings."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from sandyard.engine.contract import Room, Stats
from sandyard.engine.sandboxes.agent import send_settings
from sandyard.engine.sandboxes.capacity import MIB, Capacity
from sandyard.engine.sandboxes.logs import SandboxLogs
from sandyard.engine.sandboxes.metrics import Series
from sandyard.engine.sandboxes.model import CreateSandbox, Defaults, LogLevel, LogQuery, Network, OnTimeout
from sandyard.engine.sandboxes.repository import compute_digest
from sandyard.engine.sandboxes.timers import Timers
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.kit.clock import ManualClock
from sandyard.kit.errors import FullError, InvalidInputError, UnreachableError
from tests.unit.engine.sandboxes.harness import SandboxesHarness


def stats(cpu: float, memory: int = 1 << 20) -> Stats:
    return Stats(cpu, 2, memory, 2 << 20, 512 << 20, 3 << 20, 10 << 30)


def test_cpu_usage_is_computed_between_two_samples() -> None:
    series = Series(10)
    series.add(stats(5.0), 100.0)
    series.add(stats(7.0), 102.0)
    series.add(stats(17.0), 104.0)  # more than two cores can use: the clock jumped
    series.restart()
    series.add(stats(1.0), 106.0)
    assert [metric.cpu_used_pct for metric in series.list_between(None, None)] == [0.0, 50.0, 100.0, 0.0]


def test_the_series_keeps_the_newest_samples() -> None:
    series = Series(3)
    assert not series and series.get_last() is None
    for number in range(8):
        series.add(stats(0.0, number << 10), float(number))
    assert len(series) == 3
    assert [metric.timestamp for metric in series.list_between(None, None)] == [5.0, 6.0, 7.0]
    assert [metric.mem_used for metric in series.list_between(6.0, 6.5)] == [6 << 10]
    assert series.get_last().timestamp == 7.0
    assert series.get_last().disk_total == 10 << 30


async def test_timers_fire_once_and_in_order() -> None:
    clock, fired = ManualClock(0), []
    timers = Timers(clock, lambda name: fired.append((name, clock.now())))
    running = asyncio.create_task(timers.run())
    await asyncio.sleep(0)
    timers.set("b", 20)
    timers.set("a", 10)
    timers.set("c", 5)
    timers.set("c", 30)
    timers.set("d", 7)
    timers.cancel("d")
    await clock.advance(100)
    assert [name for name, _ in fired] == ["a", "b", "c"]
    assert fired == [("a", 10), ("b", 20), ("c", 30)]
    timers.set("past", 1)
    await clock.advance(0)
    assert fired[-1][0] == "past"
    running.cancel()


async def test_frequent_refreshes_do_not_fill_the_timer_heap() -> None:
    clock = ManualClock(0)
    timers = Timers(clock, lambda name: None)
    for number in range(10_000):
        timers.set("a", 1000 + number)
    assert len(timers) < 100


async def test_timers_notice_that_the_clock_was_set_forward() -> None:
    clock, fired = ManualClock(0), []
    timers = Timers(clock, fired.append)
    running = asyncio.create_task(timers.run())
    await asyncio.sleep(0)
    timers.set("a", 10_000)
    await clock.advance(1)
    clock.set(20_000)  # the clock is set forward
    await clock.advance(11)
    assert fired == ["a"]
    running.cancel()


def test_capacity_is_checked_against_memory_disk_and_the_limit() -> None:
    settings = EngineSettings(memory_reserve_mb=10, disk_reserve_mb=10, max_sandboxes=2)
    room, reads = Room(100 * MIB, 100 * MIB, "/data"), 0

    def get_room() -> Room:
        nonlocal reads
        reads += 1
        return room

    def make_capacity() -> Capacity:
        return Capacity(settings, get_room)

    capacity = make_capacity()
    for _ in range(100):
        capacity.check(1)
    assert reads <= 2
    with pytest.raises(FullError, match="2 of 2"):
        capacity.check(2)
    capacity.check(2, check_count=False)
    with pytest.raises(FullError, match="95 MiB are needed"):
        capacity.check(1, promised=95 * MIB)
    room = Room(5 * MIB, 100 * MIB, "/data")
    with pytest.raises(FullError, match="5 MiB of memory"):
        make_capacity().check(0)
    assert make_capacity().is_memory_low()
    room = Room(None, 100 * MIB, "/data")
    make_capacity().check(0)
    assert not make_capacity().is_memory_low()
    room = Room(None, MIB, "/data")
    with pytest.raises(FullError, match="1 MiB of disk are free at /data"):
        make_capacity().check(0)
    room = Room(None, None, "/data", "The store is full.")
    with pytest.raises(FullError, match=r"The store is full\."):
        make_capacity().check(0)
    assert make_capacity().find_shortage() == "The store is full."


def test_logs_are_bounded_and_searchable(tmp_path: Path) -> None:
    database = Database(tmp_path / "engine.db")
    database.open()
    clock = ManualClock(1000)
    logs = SandboxLogs(database, clock, kept=50, retention_s=100)
    for number in range(300):
        clock.set(clock.now() + 1)
        logs.append("i1", LogLevel.ERROR if number % 2 else LogLevel.INFO, f"entry {number}", n=str(number))
    logs.append("i2", LogLevel.INFO, "x" * 10_000)
    kept = logs.query("i1", LogQuery())
    assert 50 <= len(kept) <= 50 + 64 and kept[-1].message == "entry 299" and kept[-1].fields == {"n": "299"}
    newest = logs.query("i1", LogQuery(newest_first=True, limit=2))
    assert [entry.message for entry in newest] == ["entry 299", "entry 298"]
    assert [e.message for e in logs.query("i1", LogQuery(start=1299, limit=1))] == ["entry 298"]
    assert [e.message for e in logs.query("i1", LogQuery(start=1299, newest_first=True, limit=1))] == ["entry 298"]
    assert all(entry.level is LogLevel.ERROR for entry in logs.query("i1", LogQuery(level=LogLevel.WARN)))
    assert [e.message for e in logs.query("i1", LogQuery(search="299"))] == ["entry 299"]
    assert len(logs.query("i2", LogQuery())[0].message) == 4096
    logs.mark_ended("i1")
    clock.set(clock.now() + 50)
    logs.delete_expired()
    assert logs.has_entries("i1")
    clock.set(clock.now() + 100)
    logs.delete_expired()
    assert not logs.has_entries("i1") and logs.has_entries("i2")
    database.close()


def test_logs_of_many_ended_sandboxes_are_removed_in_small_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.sandboxes.logs.MAX_ENDED", 50)
    database = Database(tmp_path / "engine.db")
    database.open()
    clock = ManualClock(1000)
    logs = SandboxLogs(database, clock, kept=50, retention_s=1e9)
    for number in range(250):
        clock.set(clock.now() + 1)
        logs.append(f"i{number}", LogLevel.INFO, "x")
        logs.mark_ended(f"i{number}")
    counts = []
    for _ in range(4):
        logs.delete_expired()
        counts.append(database.query("SELECT count(*) FROM logs")[0][0])
    assert counts == [150, 50, 50, 50] and logs.has_entries("i249")
    database.close()


def test_digests_distinguish_requests() -> None:
    base = CreateSandbox(metadata={"a": "b", "c": "d"}, env={"X": "1"})
    assert compute_digest(base) == compute_digest(
        CreateSandbox(metadata={"c": "d", "a": "b"}, env={"X": "1"}, idempotency_key="k")
    )
    for other in (
        CreateSandbox(metadata={"a": "b", "c": "e"}, env={"X": "1"}),
        CreateSandbox(metadata={"a": "b", "c": "d"}, env={"X": "2"}),
        CreateSandbox(metadata={"a": "b", "c": "d"}, env={"X": "1"}, timeout_s=1),
        CreateSandbox(metadata={"a": "b", "c": "d"}, env={"X": "1"}, on_timeout=OnTimeout.PAUSE),
        CreateSandbox(metadata={"a": "b", "c": "d"}, env={"X": "1"}, network=Network(config={"allowOut": []})),
    ):
        assert compute_digest(other) != compute_digest(base)


@pytest.mark.parametrize(
    "response",
    [b"", b"HTTP/1.1 500 No\r\n\r\n", b"garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 200_000, b"HTTP/1.1\r\n\r\n"],
)
async def test_an_invalid_agent_response_is_an_error(response: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()

    async def agent() -> None:
        with theirs:
            await loop.sock_recv(theirs, 65536)
            with contextlib.suppress(OSError):
                await loop.sock_sendall(theirs, response)

    task = asyncio.create_task(agent())
    with pytest.raises(UnreachableError):
        await asyncio.wait_for(send_settings(ours, {"A": "1"}, Defaults()), 5)
    await task


async def test_all_of_many_sandboxes_are_sampled(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, metrics_interval_s=5)
    await harness.start()
    for _ in range(200):
        await harness.create(timeout_s=50_000)
    await harness.clock.advance(1)
    await harness.settle()
    for _ in range(3):
        await harness.clock.advance(6)
        await harness.settle()
    counts = {len(await harness.service.list_metrics(item.id)) for item in harness.service.list().items}
    assert min(counts) >= 2
    await harness.stop()


async def test_processes_that_were_killed_for_lack_of_memory_are_logged_once(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, metrics_interval_s=5)
    await harness.start()
    sandbox = await harness.create()

    async def list_events(kills: int) -> list[str]:
        harness.host.machines[sandbox.id].oom_kills = kills
        for _ in range(2):
            await harness.clock.advance(6)
            await harness.settle()
        messages = [entry.message for entry in harness.service.list_logs(sandbox.id)]
        return [message for message in messages if "out of memory" in message]

    one = "A process was killed: out of memory (the limit of the sandbox is 512 MiB)"
    assert await list_events(0) == []
    assert await list_events(1) == [one]
    assert await list_events(3) == [one, one.replace("A process was", "2 processes were")]
    await harness.stop()


def test_settings_come_from_options_then_variables_then_defaults() -> None:
    environ = {
        "SANDYARD_PORT": "4000",
        "SANDYARD_HOST": "::1",
        "SANDYARD_API_KEYS": "a, b",
        "SANDYARD_LOG_JSON": "true",
    }
    settings = EngineSettings.load(environ, port=5000, host=None)
    assert (settings.port, settings.host, settings.log_json) == (5000, "::1", True)
    assert [key.reveal() for key in settings.api_keys] == ["a", "b"]
    assert "a" not in repr(settings.api_keys)
    assert settings.get_deadline("create") == 30 and settings.get_deadline("freeze") == settings.default_deadline_s
    for bad in ({"port": 70_000}, {"log_level": "loud"}, {"pool_size": -1}, {"nonsense": 1}):
        with pytest.raises(InvalidInputError, match=next(iter(bad))):
            EngineSettings.load({}, **bad)
    with pytest.raises(InvalidInputError, match="port"):
        EngineSettings.load({"SANDYARD_PORT": "x"})
