from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from tenacity import wait_fixed

from sandyard.kit.clock import ManualClock
from sandyard.kit.secret import Secret
from sandyard.platform.domain.sandboxes.e2b import (
    CircuitOpenError,
    EngineAuthError,
    EngineBusyError,
    EngineError,
    EngineInvalidError,
    EngineNotConfiguredError,
    EngineQuotaError,
    EngineTimeoutError,
    EngineUnreachableError,
)
from sandyard.platform.domain.sandboxes.e2b.terminals import Terminals
from sandyard.platform.domain.sandboxes.e2b.transport import (
    BACKOFF,
    CircuitBreaker,
    EngineConfig,
    EngineTransport,
    retry_transient_errors,
)


class Flaky:
    """Raises these errors one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


class InstantClock:
    """A clock that never waits and records how long it should have."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_three_attempts_with_pauses_of_1_to_10_seconds() -> None:
    clock, call = InstantClock(), Flaky(EngineUnreachableError(), EngineTimeoutError())
    assert await retry_transient_errors("info", call, clock=clock, idempotent=True) == "done"
    assert call.calls == 3
    assert len(clock.slept) == 2
    assert all(1 <= pause <= 10 for pause in clock.slept)
    assert clock.slept[0] <= 2

    call = Flaky(*[EngineUnreachableError(f"Failure {number}.") for number in range(5)])
    with pytest.raises(EngineUnreachableError, match=r"Failure 2\."):
        await retry_transient_errors("info", call, clock=clock, idempotent=True)
    assert call.calls == 3


def test_backoff_grows_with_jitter_up_to_limit() -> None:
    def pauses(attempt: int) -> list[float]:
        return [BACKOFF(SimpleNamespace(attempt_number=attempt)) for _ in range(50)]  # type: ignore[arg-type]

    assert max(pauses(1)) <= 2 <= min(pauses(2)) <= 4 <= min(pauses(3))
    assert max(pauses(20)) <= 10
    assert len(set(pauses(1))) > 1


@pytest.mark.parametrize(
    "error",
    [
        EngineQuotaError(),
        EngineAuthError(),
        EngineInvalidError(),
        EngineNotConfiguredError(),
        CircuitOpenError(),
        ValueError(),
    ],
)
async def test_does_not_retry_permanent_errors(error: Exception) -> None:
    clock, call = InstantClock(), Flaky(error)
    with pytest.raises(type(error)):
        await retry_transient_errors("create", call, clock=clock, idempotent=True)
    assert (call.calls, clock.slept) == (1, [])


async def test_retries_non_idempotent_call_only_if_unsent() -> None:
    async def attempts(error: EngineError) -> int:
        call = Flaky(error)
        with contextlib.suppress(EngineError):
            await retry_transient_errors("fork", call, clock=InstantClock(), idempotent=False)
        return call.calls

    assert await attempts(EngineTimeoutError()) == 1
    assert await attempts(EngineUnreachableError()) == 1
    assert await attempts(EngineUnreachableError(unsent=True)) == 2
    assert await attempts(EngineBusyError(unsent=True)) == 2


async def test_waits_by_given_clock() -> None:
    clock, call = ManualClock(), Flaky(EngineUnreachableError())
    task = asyncio.create_task(retry_transient_errors("info", call, clock=clock, idempotent=True, wait=wait_fixed(7)))
    await clock.advance(6.9)
    assert call.calls == 1
    await clock.advance(0.2)
    assert await task == "done"


@pytest.mark.parametrize("error", [None, ConnectError(Code.CANCELED, "Request was cancelled")])
async def test_honors_cancellation_swallowed_by_sdk(error: Exception | None) -> None:
    clock, answer = InstantClock(), asyncio.get_running_loop().create_future()
    transport = EngineTransport(EngineConfig(Secret("e2b_key")), CircuitBreaker(clock), clock)

    async def call() -> str:
        try:
            await answer
        except asyncio.CancelledError:
            if error is not None:
                raise error from None
        return "done"

    task = asyncio.create_task(transport.call_api("info", call))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,), timeout=5)
    assert task.cancelled()
    assert clock.slept == []


async def test_sdk_timeout_is_not_cancellation() -> None:
    clock = InstantClock()
    transport = EngineTransport(EngineConfig(Secret("e2b_key")), CircuitBreaker(clock), clock)

    async def call() -> str:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(10)
        return "done"

    with pytest.raises(EngineTimeoutError):
        await transport.call_api("info", call)
    assert len(clock.slept) == 2


@pytest.mark.parametrize("verb", ["open", "attach"])
async def test_disconnects_abandoned_terminal(verb: str) -> None:
    answer, disconnected = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def forever() -> None:
        await asyncio.Event().wait()

    async def disconnect() -> None:
        disconnected.set()

    async def swallow_cancellation(*_: object, **__: object) -> SimpleNamespace:
        with contextlib.suppress(asyncio.CancelledError):
            await answer
        return SimpleNamespace(pid=1, wait=forever, disconnect=disconnect)

    transport = EngineTransport(EngineConfig(Secret("e2b_key")), CircuitBreaker(InstantClock()), InstantClock())
    pty = SimpleNamespace(create=swallow_cancellation, connect=swallow_cancellation)
    sandbox: Any = SimpleNamespace(sandbox_id="box", pty=pty)
    transport.remember(sandbox)
    terminals = Terminals(transport)
    task = asyncio.create_task(terminals.open("box", 80, 24) if verb == "open" else terminals.attach("box", 1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,), timeout=5)
    assert task.cancelled()
    assert disconnected.is_set()
