from __future__ import annotations

import asyncio

import pytest

from sandyard.engine.drivers.namespace.forker import ForkedProcess, Forker, SendRequest, _Pending


async def test_an_error_names_the_cause_of_this_death_of_the_zygote_not_of_an_earlier_one() -> None:
    async def set_up(pid: int, send_request: SendRequest) -> None: ...

    forker = Forker("title", "guest", set_up, lambda pid, code: None, lambda: None)
    messages = []
    for fatal in ({"fatal": "MemoryError"}, {}):
        pending = _Pending(asyncio.get_running_loop().create_future())
        forker._pending = {1: pending}
        if fatal:
            forker._dispatch(fatal, [])
        forker._handle_zygote_loss()
        messages.append(str(pending.future.exception()))
    assert "MemoryError" in messages[0] and "MemoryError" not in messages[1]


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40")])
async def test_a_process_that_a_signal_ends_during_its_start_fails_the_start(number: int, name: str) -> None:
    async def set_up(pid: int, send_request: SendRequest) -> None: ...

    exits = []
    forker = Forker("title", "guest", set_up, lambda pid, code: exits.append((pid, code)), lambda: None)
    pending = _Pending(asyncio.get_running_loop().create_future())
    pending.started = ForkedProcess(10, -1)
    forker._pending, forker._starts_by_pid = {1: pending}, {10: 1}
    forker._dispatch({"gone": 10, "status": number}, [])
    assert name in pending.future.result()["error"] and exits == [(10, -number)]
