from __future__ import annotations

import asyncio

import pytest

from sandyard.kit.clock import ManualClock
from sandyard.platform.domain.sandboxes.e2b import (
    CircuitBreaker,
    CircuitOpenError,
    CircuitState,
    EngineBusyError,
    EngineError,
    EngineInvalidError,
    EngineTimeoutError,
    EngineUnreachableError,
    SandboxUnreachableError,
)


async def attempt(breaker: CircuitBreaker, error: EngineError | None = None, *, counts: bool = True) -> None:
    async with breaker.guard(counts=counts):
        if error is not None:
            raise error


async def fail(
    breaker: CircuitBreaker, times: int = 1, error: EngineError | None = None, *, counts: bool = True
) -> None:
    for _ in range(times):
        with pytest.raises(EngineError):
            await attempt(breaker, error or EngineUnreachableError("It is away."), counts=counts)


async def test_opens_after_five_consecutive_failures() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock)
    await fail(breaker, 4)
    await attempt(breaker)
    await fail(breaker, 4)
    assert breaker.state is CircuitState.CLOSED
    await fail(breaker)
    assert breaker.state is CircuitState.OPEN
    assert (breaker.reason, breaker.opened_at) == ("It is away.", clock.now())
    with pytest.raises(CircuitOpenError, match=r"5 times in a row .* It is away\.") as refused:
        await attempt(breaker)
    assert (refused.value.code, refused.value.status) == ("engine_unreachable", 503)


async def test_allows_one_probe_after_cooldown() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock)
    await fail(breaker, 5)
    await clock.advance(9.9)
    assert breaker.state is CircuitState.OPEN
    await clock.advance(0.1)
    assert breaker.state is CircuitState.HALF_OPEN

    probing, answer = asyncio.Event(), asyncio.Event()

    async def probe() -> None:
        async with breaker.guard():
            probing.set()
            await answer.wait()

    task = asyncio.create_task(probe())
    await probing.wait()
    assert breaker.state is CircuitState.HALF_OPEN
    with pytest.raises(CircuitOpenError):
        await attempt(breaker)
    answer.set()
    await task
    assert breaker.state is CircuitState.CLOSED
    assert breaker.reason is None
    assert breaker.opened_at is None


async def test_failed_probe_opens_again() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock)
    await fail(breaker, 5)
    await clock.advance(10)
    await fail(breaker)
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(CircuitOpenError):
        await attempt(breaker)


async def test_cancelled_probe_allows_another() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock)
    await fail(breaker, 5)
    await clock.advance(10)

    async def probe() -> None:
        async with breaker.guard():
            await asyncio.Event().wait()

    task = asyncio.create_task(probe())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await attempt(breaker)
    assert breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize("error", [EngineInvalidError(), EngineBusyError()])
async def test_error_answers_are_not_failures(error: EngineError) -> None:
    breaker = CircuitBreaker(ManualClock())
    await fail(breaker, 4)
    await fail(breaker, 10, error)
    await fail(breaker, 4)
    assert breaker.state is CircuitState.CLOSED


async def test_unreachable_sandbox_does_not_open_breaker() -> None:
    breaker = CircuitBreaker(ManualClock())
    await fail(breaker, 10, counts=False)
    assert breaker.state is CircuitState.CLOSED


async def test_only_failed_connections_of_calls_that_tenants_can_delay_count() -> None:
    breaker = CircuitBreaker(ManualClock())

    async def fail_per_sandbox(error: EngineError) -> None:
        with pytest.raises(EngineError):
            async with breaker.guard(per_sandbox=True):
                raise error

    for error in (EngineTimeoutError(), EngineUnreachableError(), SandboxUnreachableError(unsent=True)):
        for _ in range(10):
            await fail_per_sandbox(error)
    assert breaker.state is CircuitState.CLOSED
    for _ in range(5):
        await fail_per_sandbox(EngineUnreachableError(unsent=True))
    assert breaker.state is CircuitState.OPEN


async def test_calls_that_tenants_can_delay_are_not_used_as_probes() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock)
    await fail(breaker, 5)
    await clock.advance(10)
    with pytest.raises(CircuitOpenError):
        async with breaker.guard(per_sandbox=True):
            pass
    assert breaker.state is CircuitState.HALF_OPEN
