"""Connections that send many tiny pieces take turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sandyard.kit import pacing
from sandyard.kit.pacing import PARTS, PIECES, PacedInput, count_turns_for, set_turn_owner, take_turn


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.reading, self.aborted = True, False

    def is_closing(self) -> bool:
        return self.aborted

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


class Parser:
    """`costly`: every byte counts as a part."""

    def __init__(self, *, costly: bool = True) -> None:
        self.transport, self.seen, self.open = FakeTransport(), b"", True
        self.costly = costly
        self.paced_input = PacedInput(self.transport, self.parse, slice_bytes=16, wanted=lambda: self.open)

    def parse(self, data: bytes) -> int:
        assert len(data) <= 16
        self.seen += data
        return len(data) if self.costly else 0


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_parsing_pauses_after_a_number_of_parts_and_continues_later() -> None:
    parser, data = Parser(), bytes(range(250)) * 40
    parser.paced_input.receive(data)
    assert len(parser.seen) == PARTS
    assert not parser.transport.reading
    parser.paced_input.receive(b"and more")
    assert len(parser.seen) == PARTS, "data is parsed in the order received"
    await until(lambda: not parser.paced_input.busy)
    assert parser.seen == data + b"and more"
    assert parser.transport.reading


async def test_cheap_data_is_parsed_at_once() -> None:
    parser = Parser(costly=False)
    parser.paced_input.receive(bytes(100_000))
    assert len(parser.seen) == 100_000
    assert parser.transport.reading


async def test_connections_take_turns() -> None:
    greedy, modest = Parser(), Parser()
    ahead: list[int] = []  # how much `greedy` had parsed at each step of `modest`
    parse = modest.paced_input.parse
    modest.paced_input.parse = lambda data: ahead.append(len(greedy.seen)) or parse(data)  # type: ignore[func-returns-value]
    greedy.paced_input.receive(bytes(PARTS * 1000))
    modest.paced_input.receive(bytes(PARTS * 3))
    await until(lambda: not modest.paced_input.busy)
    assert sorted(set(ahead)) == [PARTS, PARTS * 2, PARTS * 3]
    greedy.paced_input.drop()


async def test_a_reader_that_is_not_open_gets_no_data() -> None:
    parser = Parser()
    parser.open = False
    parser.paced_input.receive(b"abc")
    assert (parser.seen, parser.transport.reading) == (b"", False)
    parser.paced_input.resume()
    await asyncio.sleep(0.01)
    assert parser.seen == b""
    parser.open = True
    parser.paced_input.resume()
    await until(lambda: parser.seen == b"abc")
    assert parser.transport.reading


async def test_the_end_is_reported_after_all_received_data() -> None:
    parser, ended = Parser(), list[int]()
    parser.paced_input.receive(bytes(PARTS * 3))
    parser.paced_input.end(lambda: ended.append(len(parser.seen)))
    assert not ended
    await until(lambda: ended)
    assert ended == [PARTS * 3]
    parser.paced_input.end(lambda: ended.append(0))
    assert ended[1:] == [0], "no data is pending"


async def test_a_failing_parser_aborts_only_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, other, reports = Parser(), Parser(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    broken.paced_input.receive(bytes(PARTS * 2))
    other.paced_input.receive(bytes(PARTS * 2))
    broken.paced_input.parse = lambda _: 1 // 0
    await until(lambda: not other.paced_input.busy)
    assert broken.transport.aborted
    assert not broken.paced_input.busy
    assert isinstance(reports[0]["exception"], ZeroDivisionError)


async def test_pieces_are_passed_on_in_the_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "REST_SECONDS", 0.0)
    passed: list[int] = []

    async def take_and_record(number: int) -> None:
        await take_turn()
        passed.append(number)

    tasks = [asyncio.ensure_future(take_and_record(number)) for number in range(PIECES * 3)]
    await asyncio.sleep(0)
    assert passed == list(range(PIECES)), "the others wait until other tasks have run"
    tasks[PIECES].cancel()
    await asyncio.wait(tasks, timeout=10)
    assert passed == [number for number in range(PIECES * 3) if number != PIECES]


class Periods:
    """Turns by owner in each period. A period lasts until `end` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: Counter[str] = Counter()
        self.tasks: list[asyncio.Task[None]] = []
        self._begin: list[Callable[[], None]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda _, callback: self._begin.append(callback))

    def open(self, owner: str, connections: int = 1) -> None:
        """Open connections of the owner that forward their next piece as soon as they have forwarded one."""
        with count_turns_for(owner):
            self.tasks += [asyncio.ensure_future(self._forward(owner)) for _ in range(connections)]

    async def _forward(self, owner: str) -> None:
        while True:
            await take_turn()
            self.turns[owner] += 1

    async def end(self) -> Counter[str]:
        """Return the turns in this period, and begin the next one."""
        for _ in range(10 * PIECES):
            await asyncio.sleep(0)
        turns, self.turns = self.turns, Counter()
        (begin,) = self._begin
        self._begin.clear()
        begin()
        return turns

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()


async def test_an_owner_with_many_connections_gets_no_more_turns_than_one_with_a_single_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    periods = Periods(monkeypatch)
    periods.open("greedy", 120)
    assert await periods.end() == {"greedy": PIECES}, "nobody else is there"
    periods.open("modest")
    await periods.end()  # the turns of this period are taken
    for _ in range(3):
        assert await periods.end() == {"greedy": PIECES // 2, "modest": PIECES // 2}
    periods.close()


async def test_turns_that_an_owner_does_not_use_are_used_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    periods = Periods(monkeypatch)
    periods.open("greedy", 120)
    total = 0
    for _ in range(10):
        with count_turns_for("modest"):
            turn = asyncio.ensure_future(take_turn())
        total += (await periods.end())["greedy"]
        await asyncio.sleep(0)
        assert turn.done(), "who asks for one turn gets it in the next period at the latest"
    assert total >= 9 * (PIECES - 1)
    periods.close()


async def test_more_owners_than_turns_are_served_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    periods = Periods(monkeypatch)
    periods.open("greedy", 120)
    await periods.end()
    names = [f"user-{number}" for number in range(2 * PIECES - 1)]
    for name in names:
        periods.open(name)
    await periods.end()
    for _ in range(3):
        both = await periods.end() + await periods.end()
        assert both == dict.fromkeys(("greedy", *names), 1)
    periods.close()


async def test_a_connection_that_is_closed_while_it_waits_costs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    periods = Periods(monkeypatch)
    periods.open("greedy", 120)
    periods.open("gone")
    await asyncio.sleep(0)
    periods.tasks.pop().cancel()
    assert sum([(await periods.end())["greedy"] for _ in range(3)]) == 3 * PIECES
    periods.close()


async def test_tasks_count_for_the_owner_of_the_task_that_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[str] = []

    async def wait_for_turn(_: object, owner: str) -> None:
        owners.append(owner)

    monkeypatch.setattr(pacing.ForwardingLimiter, "wait_for_turn", wait_for_turn)

    async def request() -> None:
        set_turn_owner("someone")
        with count_turns_for("sandbox"):
            await asyncio.ensure_future(take_turn("git"))
        await take_turn()

    await asyncio.ensure_future(request())
    await take_turn("git")
    await take_turn()
    assert owners == ["sandbox", "someone", "git", "other"]
