"""How what a host sends is read: in turns, and within its budget."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from typing import Any, cast

import pytest

from sandyard.engine.contract import Stats
from sandyard.engine.drivers.cluster import peer as peer_module
from sandyard.engine.drivers.cluster.codec import encode_stats
from sandyard.engine.drivers.cluster.peer import MAX_HOST_FRAME, MAX_HOST_VALUES, Peer
from sandyard.engine.drivers.cluster.reading_budget import CPU_BURST_S, CPU_SHARE, HOST_BURST, ReadingBudget
from sandyard.kit.bounded_json import count_values


class Transport:
    """A transport that only remembers whether it is read and closed."""

    def __init__(self) -> None:
        self.is_read, self.is_closed = True, False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True


def frame(message: Any) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack("!I", len(data)) + data


async def refuse(verb: str, arguments: Mapping[str, Any]) -> Any:
    raise AssertionError(verb)


def connect(budget: ReadingBudget | None) -> tuple[Peer, Transport]:
    peer, transport = Peer("The host h", refuse, budget=budget), Transport()
    peer.connection_made(cast(asyncio.Transport, transport))
    return peer, transport


async def test_others_have_a_turn_while_many_frames_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "TURN_S", 0.0)
    peer, transport = connect(ReadingBudget())
    received = frame({"c": 1}) * 50
    peer.data_received(received + b"\0\0")
    assert not transport.is_read
    turns = 0
    while not transport.is_read:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    peer.data_received(struct.pack("!I", 1)[2:] + b"x")
    await peer.ended
    assert transport.is_closed


class UsedBudget(ReadingBudget):
    """A budget that is never enough."""

    def get_delay(self) -> float:
        return 0.001


async def test_a_host_that_used_its_budget_is_not_read_for_a_while() -> None:
    peer, transport = connect(UsedBudget())
    assert not transport.is_read
    transport.resume_reading()  # as LineProtocol does
    peer.data_received(frame({}))
    assert (transport.is_read, transport.is_closed) == (False, False)
    await peer.ended  # it was read later, and is no message
    assert transport.is_closed


def test_a_budget_is_used_up_by_time_and_by_bytes() -> None:
    budget = ReadingBudget()
    budget.charge(cpu_s=CPU_BURST_S + 10)
    assert 0 < budget.get_delay() <= 10 / CPU_SHARE
    assert ReadingBudget().get_delay() == 0


def test_bytes_and_time_are_counted_for_the_host_and_not_for_its_connection() -> None:
    budget = ReadingBudget()
    budget.charge(size=2 * HOST_BURST)
    assert budget.get_delay() > 1
    budget = ReadingBudget()
    with budget.measure():
        sum(range(100_000))
    assert budget._cpu_s < CPU_BURST_S


def test_the_news_of_a_legitimate_host_are_far_below_the_limits() -> None:
    stats = encode_stats(Stats(123456.789012, 64, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1000))
    data = json.dumps({f"{number:024d}": stats for number in range(5000)}, separators=(",", ":")).encode()
    assert len(data) < MAX_HOST_FRAME
    assert count_values(data, MAX_HOST_VALUES) < MAX_HOST_VALUES
