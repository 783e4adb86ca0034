"""Test when a host is considered lost."""

from __future__ import annotations

import pytest

from sandyard.engine.drivers.cluster.model import LOCAL_HOST_ID, HostRecord, HostState, HostStatus
from sandyard.engine.hosts.loss import LossWatch
from sandyard.kit.clock import ManualClock
from sandyard.kit.errors import SandyardError

AFTER_S = 100.0
LOCAL = HostStatus(HostRecord(LOCAL_HOST_ID, LOCAL_HOST_ID, "127.0.0.1", 0), HostState.READY, 0.0)


def make_status(name: str, silent_since: float | None = None, *, ready: bool = False, lost: bool = False) -> HostStatus:
    state = HostState.READY if ready else HostState.UNREACHABLE
    return HostStatus(HostRecord(name, name, "10.0.0.1", 1, lost=lost), state, 0.0, silent_since=silent_since)


READY = make_status("other", ready=True)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([READY, make_status("silent", 0.0)], ["silent"]),
        ([READY, make_status("silent", 1.0)], []),
        ([READY, make_status("refuses", None)], []),
        ([READY, make_status("known", 0.0, lost=True)], []),
        ([make_status("only", 0.0)], ["only"]),
        ([make_status("one", 0.0), make_status("two", 0.0)], []),
        ([READY, make_status("one", 0.0), make_status("two", 0.0)], ["one", "two"]),
    ],
)
async def test_a_host_that_answers_nothing_for_long_is_lost(statuses: list[HostStatus], expected: list[str]) -> None:
    clock, lost = ManualClock(), list[str]()
    start = clock.now()
    shifted = [
        status if status.silent_since is None else set_silent_since(status, start + status.silent_since)
        for status in statuses
    ]
    watch = LossWatch(lambda: [LOCAL, *shifted], lost.append, clock, AFTER_S)
    await clock.advance(AFTER_S - 1)
    watch.check()
    assert not lost
    await clock.advance(1)
    watch.check()
    assert lost == expected


def set_silent_since(status: HostStatus, silent_since: float) -> HostStatus:
    return make_status(status.record.id, silent_since, lost=status.record.lost)


async def test_a_loss_that_cannot_be_recorded_is_declared_again() -> None:
    clock, tries = ManualClock(), list[str]()

    def fail(host_id: str) -> None:
        tries.append(host_id)
        raise SandyardError("The disk is full.")

    watch = LossWatch(lambda: [LOCAL, make_status("silent", clock.now() - AFTER_S)], fail, clock, AFTER_S)
    watch.check()
    watch.check()
    assert tries == ["silent", "silent"]
