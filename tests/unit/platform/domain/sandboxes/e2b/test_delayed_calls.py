"""One tenant's sandboxes, which may delay calls as long as they like, do not close the engine to others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from e2b import AsyncSandbox
from e2b.api.client.api.sandboxes import get_v_2_sandboxes_sandbox_id_logs
from e2b.exceptions import TimeoutException

from sandyard.kit.clock import ManualClock
from sandyard.platform.domain.sandboxes.e2b import (
    CircuitState,
    EngineBusyError,
    EngineError,
    EngineTimeoutError,
)
from sandyard.platform.domain.sandboxes.e2b.engine import FORK_TIMEOUT_S, MAX_FORKS
from tests.unit.platform.domain.sandboxes.e2b.delayed_operations import DELAYED, make_engine


class Pages:
    """A list of sandboxes that the engine returns at once, or not in time."""

    has_next = True

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def next_items(self) -> list[Any]:
        self.has_next = False
        if self._error is not None:
            raise self._error
        return []


async def time_out(*_: Any, **__: Any) -> None:
    raise TimeoutException("It took too long.")


@pytest.mark.parametrize("name", DELAYED)
async def test_timeouts_of_one_sandbox_do_not_open_breaker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, operation = DELAYED[name]
    monkeypatch.setattr(AsyncSandbox, method, time_out)
    engine = make_engine(ManualClock())
    for _ in range(6):
        with pytest.raises(EngineTimeoutError):
            await operation(engine)
    assert engine.breaker.state is CircuitState.CLOSED


async def test_timeouts_of_cheap_calls_open_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncSandbox, "list", lambda **_: Pages(TimeoutException("It took too long.")))
    engine = make_engine(ManualClock())
    for _ in range(2):
        with pytest.raises(EngineError):
            await engine.list()
    assert engine.breaker.state is CircuitState.OPEN


async def test_cheap_call_probes_before_a_delayed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    engine = make_engine(clock)
    monkeypatch.setattr(AsyncSandbox, "fork", time_out)
    with monkeypatch.context() as down:
        down.setattr(AsyncSandbox, "list", lambda **_: Pages(TimeoutException("It took too long.")))
        for _ in range(2):
            with pytest.raises(EngineError):
                await engine.list()
        await clock.advance(10)
        with pytest.raises(EngineTimeoutError):
            await engine.fork("i1", 9)
        assert engine.breaker.state is CircuitState.OPEN
    await clock.advance(10)
    monkeypatch.setattr(AsyncSandbox, "list", lambda **_: Pages())
    with pytest.raises(EngineTimeoutError):
        await engine.fork("i1", 9)
    assert engine.breaker.state is CircuitState.CLOSED


async def test_does_not_retry_reading_denied_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    async def count(*_: Any, **__: Any) -> None:
        nonlocal attempts
        attempts += 1
        raise TimeoutException("It took too long.")

    monkeypatch.setattr(get_v_2_sandboxes_sandbox_id_logs, "asyncio_detailed", count)
    with pytest.raises(EngineTimeoutError):
        await make_engine(ManualClock()).list_denied_connections("i1")
    assert attempts == 1


async def test_forks_of_one_sandbox_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    release = asyncio.Event()

    async def wait(engine_id: str, *, request_timeout: float, **_: Any) -> None:
        assert request_timeout == FORK_TIMEOUT_S
        seen.append(engine_id)
        await release.wait()
        raise TimeoutException("It took too long.")

    monkeypatch.setattr(AsyncSandbox, "fork", wait)
    engine = make_engine(ManualClock())
    forks = [asyncio.create_task(engine.fork("i1", 9)) for _ in range(MAX_FORKS)]
    while len(seen) < MAX_FORKS:
        await asyncio.sleep(0)
    with pytest.raises(EngineBusyError, match="forks of this sandbox"):
        await engine.fork("i1", 9)
    other = asyncio.create_task(engine.fork("i2", 9))
    while "i2" not in seen:
        await asyncio.sleep(0)
    release.set()
    results = await asyncio.gather(*forks, other, return_exceptions=True)
    assert all(isinstance(result, EngineTimeoutError) for result in results)
    with pytest.raises(EngineTimeoutError):
        await engine.fork("i1", 9)
